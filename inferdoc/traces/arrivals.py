"""How requests arrive: rate and its change, bursts against a Poisson process, and the time of day.

A clock that steps says nothing of what happens within a step, so windows shorter than one have no value, and longer
ones are made whole numbers of steps. Segments have clocks of their own: nothing is computed across them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import special

from inferdoc.evidence import Contract
from inferdoc.traces.clocks import Clock, Floats, arrivals_of, describe_clock, stretches
from inferdoc.traces.daily import DailyProfile, daily_profile
from inferdoc.traces.trace import Trace

WINDOWS_S = (1.0, 10.0, 60.0, 600.0)
FEWEST_WINDOWS = 20
MOST_WINDOWS = 20_000_000
FEWEST_FOR_TENTHS = 100
BURSTY = 2.0
"""Local index of dispersion from which arrivals count as burstier than Poisson's 1 (our limit)."""
RAMP = 2.0
"""Ratio of the last tenth's rate to the first's from which a mean rate describes neither (our limit)."""
_P = 0.001

Character = Literal["burstier than Poisson", "close to Poisson", "more regular than Poisson"]


class Dispersion(Contract):
    """Counts of arrivals in consecutive whole windows. A Poisson process has both indices at 1."""

    asked_s: float
    window_s: float | None
    """The window used: a whole number of the clock's steps."""
    windows: int | None = None
    mean_requests: float | None = None
    dispersion: float | None = None
    """Index of dispersion of counts: variance over mean."""
    local_dispersion: float | None = None
    """The same from differences of neighbouring windows, so that a slow change of the rate is not a burst."""
    burstier_p: float | None = None
    """Chance of such a `dispersion` or a larger one in a Poisson process of constant rate: chi-square dispersion test
    (Cochran, "Some methods for strengthening the common chi-square tests", Biometrics 10, 1954), from a mean of 1
    request a window on."""
    regular_p: float | None = None
    """The same for such a dispersion or a smaller one."""
    peak_over_mean: float | None = None
    poisson_peak_over_mean: float | None = None
    """Median of the same in a Poisson process of that mean and as many windows."""
    reason: str | None = None


class SegmentArrivals(Contract):
    """Arrivals on one clock."""

    segment: int | None
    requests: int
    duration_s: float
    """First arrival to last."""
    rate_per_s: float | None
    """Arrivals after the first over the duration."""
    clock: Clock
    interarrival_cv: float | None = None
    """1 for a Poisson process."""
    dispersions: list[Dispersion] = Field(default_factory=list)
    character: Character | None = None
    """By the local dispersion in the shortest window with at least 1 request on average."""
    character_window_s: float | None = None
    tenths_per_s: list[float] | None = None
    """Rate in each tenth of the duration."""
    last_over_first_tenth: float | None = None
    rate_note: str | None = None
    """Set where the mean rate describes no part of the trace."""
    daily: DailyProfile | None = None
    daily_reason: str | None = None
    reason: str | None = None
    """Why there is no rate, no interarrival CV or no character."""


class ArrivalAnalysis(Contract):
    segments: list[SegmentArrivals] = Field(default_factory=list)
    other_segments: int = 0
    """Segments with fewer requests, which are not described."""
    reason: str | None = None

    @property
    def whole(self) -> SegmentArrivals | None:
        """The arrivals, where the trace has one clock."""
        return self.segments[0] if len(self.segments) == 1 and not self.other_segments else None


def analyse_arrivals(trace: Trace) -> ArrivalAnalysis:
    """Arrivals of each segment, those with the most requests where there are many."""
    found, others, reason = stretches(trace)
    return ArrivalAnalysis(
        segments=[describe_arrivals(arrivals_of(trace, stretch), stretch.segment) for stretch in found],
        other_segments=others,
        reason=reason
        or ("segments have clocks of their own: no rate holds for all of them" if len(found) > 1 else None),
    )


def describe_arrivals(arrival_s: Floats, segment: int | None = None) -> SegmentArrivals:
    """Arrivals at ascending times from 0."""
    n, duration, clock = len(arrival_s), float(arrival_s[-1]), describe_clock(arrival_s)
    if not duration:
        return SegmentArrivals(
            segment=segment, requests=n, duration_s=0.0, rate_per_s=None, clock=clock, reason=clock.reason
        )
    rate, step = (n - 1) / duration, clock.step_s
    cv, reasons = _interarrival_cv(arrival_s, rate, step)
    dispersions = [describe_dispersion(arrival_s, window, step) for window in WINDOWS_S]
    character, window, reason = _character(dispersions)
    tenths = _tenths(arrival_s, step) if n >= FEWEST_FOR_TENTHS else None
    change = tenths[-1] / tenths[0] if tenths and tenths[0] else None
    daily, daily_reason = daily_profile(arrival_s)
    return SegmentArrivals(
        segment=segment,
        requests=n,
        duration_s=duration,
        rate_per_s=rate,
        clock=clock,
        interarrival_cv=cv,
        dispersions=dispersions,
        character=character,
        character_window_s=window,
        tenths_per_s=tenths,
        last_over_first_tenth=change,
        rate_note=_rate_note(tenths),
        daily=daily,
        daily_reason=daily_reason,
        reason="; ".join(filter(None, [*reasons, reason])) or None,
    )


def window_counts(arrival_s: Floats, window_s: float, step_s: float) -> npt.NDArray[np.int64]:
    """Arrivals in each whole window from the first arrival on. `window_s` is a multiple of the clock's `step_s`."""
    return np.diff(np.searchsorted(arrival_s, window_edges(float(arrival_s[-1]), window_s, step_s)))


def window_edges(last_s: float, window_s: float, step_s: float) -> Floats:
    """Edges of the whole windows up to the last arrival. They lie half a step before stamps, so jitter moves none."""
    whole = int((last_s + step_s) / window_s * (1 + 1e-12))
    return np.arange(whole + 1, dtype=np.float64) * window_s - step_s / 2


def describe_dispersion(arrival_s: Floats, asked_s: float, step_s: float) -> Dispersion:
    """Counts in windows of about `asked_s` seconds, of arrivals on a clock that steps by `step_s`."""
    window = asked_s if step_s < 1e-3 else round(asked_s / step_s) * step_s
    if step_s > asked_s:
        return Dispersion(asked_s=asked_s, window_s=None, reason=f"the clock steps by {step_s:.3g} s")
    whole = int((float(arrival_s[-1]) + step_s) / window * (1 + 1e-12))
    if not FEWEST_WINDOWS <= whole <= MOST_WINDOWS:
        bound = f"at least {FEWEST_WINDOWS}" if whole < FEWEST_WINDOWS else f"at most {MOST_WINDOWS:,}"
        reason = f"{whole:,} whole windows: {bound} are needed"
        return Dispersion(asked_s=asked_s, window_s=window, windows=whole, reason=reason)
    counts = window_counts(arrival_s, window, step_s)
    mean = float(counts.mean())
    index = float(counts.var(ddof=1)) / mean
    enough, squares = mean >= 1, (whole - 1) * index
    peak = special.pdtrik(0.5 ** (1 / whole), mean)
    return Dispersion(
        asked_s=asked_s,
        window_s=window,
        windows=whole,
        mean_requests=mean,
        dispersion=index,
        local_dispersion=float((np.diff(counts).astype(np.float64) ** 2).mean()) / 2 / mean,
        burstier_p=float(special.chdtrc(whole - 1, squares)) if enough else None,
        regular_p=float(special.chdtr(whole - 1, squares)) if enough else None,
        peak_over_mean=float(counts.max()) / mean,
        poisson_peak_over_mean=float(np.ceil(peak)) / mean,
        reason=None if enough else f"{mean:.2g} requests a window: too few for the test",
    )


def _interarrival_cv(arrival_s: Floats, rate: float, step: float) -> tuple[float | None, list[str]]:
    if step > 1e-6 and step * rate > 0.2:
        return None, [f"the clock's step of {step:.3g} s is long against the {1 / rate:.3g} s between requests"]
    gaps = np.diff(arrival_s)
    if len(gaps) < 2:
        return None, ["two requests have one time between them"]
    return float(gaps.std() / gaps.mean()), []


def _character(dispersions: list[Dispersion]) -> tuple[Character | None, float | None, str | None]:
    tested = next((entry for entry in dispersions if entry.burstier_p is not None), None)
    if tested is None or tested.local_dispersion is None or tested.burstier_p is None or tested.regular_p is None:
        return None, None, "no window has enough requests to compare with a Poisson process"
    if tested.burstier_p < _P and tested.local_dispersion >= BURSTY:
        return "burstier than Poisson", tested.window_s, None
    if tested.regular_p < _P and tested.local_dispersion <= 1 / BURSTY:
        return "more regular than Poisson", tested.window_s, None
    return "close to Poisson", tested.window_s, None


def _tenths(arrival_s: Floats, step: float) -> list[float]:
    length = (float(arrival_s[-1]) + step) / 10
    edges = np.arange(11) * length - step / 2
    places = np.searchsorted(arrival_s, edges)
    places[-1] = len(arrival_s)
    return [float(count) / length for count in np.diff(places)]


def _rate_note(tenths: list[float] | None) -> str | None:
    if not tenths or max(tenths) < RAMP * min(tenths):
        return None
    return (
        f"the rate is not one number: {min(tenths):.2g} to {max(tenths):.2g} requests/s over tenths of the time"
        f" ({tenths[0]:.2g} in the first, {tenths[-1]:.2g} in the last)"
    )

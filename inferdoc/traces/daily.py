"""Whether load repeats from day to day."""

from __future__ import annotations

import numpy as np
from scipy import special

from inferdoc.evidence import Contract
from inferdoc.traces.clocks import Floats

HOUR_S, DAY_S = 3600.0, 86_400.0
_P = 0.001


class DailyProfile(Contract):
    """Arrivals by hour of a day that begins with the first arrival.

    A trace keeps times from its first request, so hour 0 is that request's, not midnight's.
    """

    days: float
    requests_per_s: list[float]
    """Mean rate in each of the 24 hours, over the whole hours of the trace."""
    busiest_hour: int
    quietest_hour: int
    busiest_over_mean: float
    repeats: bool | None = None
    """The hour explains the rate better than chance (one-way analysis of variance over hours, p < 0.001)."""
    explained_share: float | None = None
    """Of the variance of hourly counts, the part between hours of the day."""
    reason: str | None = None
    """Why it is not known whether the profile repeats."""


def daily_profile(arrival_s: Floats) -> tuple[DailyProfile | None, str | None]:
    """The profile of ascending arrival times from 0, or why there is none."""
    last = float(arrival_s[-1])
    if last < DAY_S:
        return None, f"the trace spans {last / HOUR_S:.2g} hours, less than a day"
    hours = int(last // HOUR_S)
    counts = np.diff(np.searchsorted(arrival_s, np.arange(hours + 1) * HOUR_S)).astype(np.float64)
    hour = np.arange(hours) % 24
    seen = np.bincount(hour, minlength=24)
    means = np.bincount(hour, counts, minlength=24) / seen
    total = float(((counts - counts.mean()) ** 2).sum())
    within = float(((counts - means[hour]) ** 2).sum())
    known = hours >= 48 and total > 0
    repeats = explained = None
    if known:
        explained = 1 - within / total
        # F of 23 and hours - 24 degrees of freedom, as a tail of the beta distribution, which needs no division by 0.
        repeats = bool(special.betainc((hours - 24) / 2, 23 / 2, within / total) < _P)
    return DailyProfile(
        days=last / DAY_S,
        requests_per_s=(means / HOUR_S).tolist(),
        busiest_hour=int(means.argmax()),
        quietest_hour=int(means.argmin()),
        busiest_over_mean=float(means.max() / means.mean()),
        repeats=repeats,
        explained_share=explained,
        reason=None if known else "less than two whole days" if hours < 48 else "every hour has the same count",
    ), None

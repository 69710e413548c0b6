"""Peak and off-peak: stretches of a trace that differ in load, found from the load itself.

Time is cut into at most 480 equal bins of 8 requests or more on average. Load is tokens (input and output) a second;
where tokens show no change of level, since their lengths vary too much, it is requests a second. A stretch between two
changes (see `change_points`) with at least 1.2 times the mean load is peak, one below the mean is off-peak. Where
nothing changes by that much, the trace is one steady window.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from inferdoc.evidence import Contract
from inferdoc.statistics import samples_needed
from inferdoc.traces.arrivals import SegmentArrivals, describe_arrivals, window_edges
from inferdoc.traces.change_points import change_points
from inferdoc.traces.clocks import Floats, Stretch, arrivals_of, describe_clock, stretches
from inferdoc.traces.counts import Counts, count_column
from inferdoc.traces.lengths import LengthAnalysis, analyse_lengths
from inferdoc.traces.trace import Trace

PEAK_OVER_MEAN = 1.2
MOST_BINS = 480
FEWEST_BINS = 20
REQUESTS_A_BIN = 8
SHORTEST_SHARE = 48
"""A window is at least this part of the trace: half an hour of a day."""
FEWEST_REQUESTS = 30
"""In a window that stands for peak or off-peak."""

Kind = Literal["peak", "off_peak", "steady"]
Load = Literal["tokens", "requests"]


class LoadWindow(Contract):
    """Consecutive requests: ``trace.window(first_request, requests)``."""

    kind: Kind
    segment: int | None
    start_s: float
    """On the segment's clock, from its first arrival."""
    end_s: float
    first_request: int
    """Position in the trace, from 0."""
    requests: int
    rate_per_s: float | None
    tokens_per_s: float | None
    """Input and output tokens of the requests that arrive, where known."""
    load_over_mean: float
    """Load of the window over that of the whole segment, by `Windows.load`."""
    request_share: float
    """Of the segment's requests."""
    time_share: float
    """Of the segment's time."""
    input_mean_tokens: float | None
    input_p50_tokens: float | None
    output_mean_tokens: float | None
    output_p50_tokens: float | None


class WindowStatistics(Contract):
    window: LoadWindow
    lengths: LengthAnalysis
    arrivals: SegmentArrivals


class Windows(Contract):
    """The windows of a trace in order, those of one segment after those of another."""

    windows: list[LoadWindow] = Field(default_factory=list)
    peak: WindowStatistics | None = None
    """The window with the highest load."""
    off_peak: WindowStatistics | None = None
    """The window with the lowest load."""
    load: Load | None = None
    """What changes; ``None`` where nothing does."""
    text: str
    """What was found, in a sentence."""
    reason: str | None = None
    """Why there is no window."""


@dataclass(frozen=True)
class _Binned:
    """Bins of a stretch: edges in seconds, position of each one's first request, tokens and requests by bin."""

    edges: Floats
    positions: npt.NDArray[np.intp]
    tokens: Floats
    requests: Floats


@dataclass(frozen=True)
class _Piece:
    """A window before it is described: requests from `first` up to `upto` of its stretch."""

    kind: Kind
    start_s: float
    end_s: float
    first: int
    upto: int
    over_mean: float


def split_windows(trace: Trace) -> Windows:
    """Find the windows of `trace`. Equal traces have equal windows: the random orders of the test are fixed."""
    found, others, reason = stretches(trace)
    if reason is not None:
        return Windows(text=f"no windows: {reason}", reason=reason)
    windows: list[LoadWindow] = []
    loads: set[Load] = set()
    for stretch in found:
        own, load = _of_stretch(trace, stretch)
        windows.extend(own)
        loads.update([load] if load else [])
    large = [window for window in windows if window.requests >= FEWEST_REQUESTS]
    peak = max((w for w in large if w.kind == "peak"), key=lambda w: w.load_over_mean, default=None)
    off_peak = min((w for w in large if w.kind == "off_peak"), key=lambda w: w.load_over_mean, default=None)
    return Windows(
        windows=windows,
        peak=_statistics(trace, peak),
        off_peak=_statistics(trace, off_peak),
        load="tokens" if "tokens" in loads else "requests" if loads else None,
        text=_text(windows, peak, off_peak, others),
    )


def _of_stretch(trace: Trace, stretch: Stretch) -> tuple[list[LoadWindow], Load | None]:
    rows, arrival_s = trace.rows.slice(stretch.start, stretch.count), arrivals_of(trace, stretch)
    binned = _binned(rows, arrival_s, describe_clock(arrival_s).step_s)
    loads: dict[Load, Floats] = {"tokens": binned.tokens, "requests": binned.requests} if binned else {}
    for load, by_bin in loads.items():
        pieces = _pieces(binned, by_bin) if binned else []
        if pieces:
            return [_described(rows, stretch, piece) for piece in pieces], load
    whole = _Piece("steady", 0.0, float(arrival_s[-1]), 0, len(rows), 1.0)
    return [_described(rows, stretch, whole)], None


def _binned(rows: pl.DataFrame, arrival_s: Floats, step: float) -> _Binned | None:
    """The load by bin, or ``None`` where there are too few requests, or the clock is too coarse."""
    n, last = len(arrival_s), float(arrival_s[-1])
    bins = min(MOST_BINS, n // REQUESTS_A_BIN)
    if bins < FEWEST_BINS or not last:
        return None
    width = (last + step) / bins
    if step > 1e-3:
        width = -(-width // step) * step
    edges = window_edges(last, width, step)
    if len(edges) <= FEWEST_BINS:
        return None
    positions = np.searchsorted(arrival_s, edges)
    requests, tokens = np.diff(positions), np.zeros(len(edges) - 1)
    for column in ("input_tokens", "output_tokens"):
        if rows[column].null_count() < n:
            sums = np.add.reduceat(rows[column].fill_null(0).to_numpy(), positions[positions < n])
            # `reduceat` gives an empty bin the next request's tokens.
            tokens += np.where(requests > 0, sums[: len(requests)], 0)
    # What lies beyond the last whole bin belongs to the last window.
    edges[0], edges[-1], positions[-1] = 0.0, last, n
    return _Binned(edges, positions, tokens, requests.astype(np.float64))


def _pieces(binned: _Binned, load: Floats) -> list[_Piece]:
    """Windows that differ in `load`; none where it is steady."""
    changes = change_points(load, max(3, len(load) // SHORTEST_SHARE))
    if not changes:
        return []
    mean = float(load.mean())
    levels = [(a, b, float(load[a:b].mean()) / mean) for a, b in pairwise([0, *changes, len(load)])]
    if max(level for _, _, level in levels) < PEAK_OVER_MEAN:
        return []
    pieces = []
    for kind, group in groupby(levels, key=lambda level: _kind(level[2])):
        same = list(group)
        a, b = same[0][0], same[-1][1]
        pieces.append(
            _Piece(
                kind=kind,
                start_s=float(binned.edges[a]),
                end_s=float(binned.edges[b]),
                first=int(binned.positions[a]),
                upto=int(binned.positions[b]),
                over_mean=float(load[a:b].mean()) / mean,
            )
        )
    return pieces


def _kind(over_mean: float) -> Kind:
    return "peak" if over_mean >= PEAK_OVER_MEAN else "off_peak" if over_mean < 1 else "steady"


def _described(rows: pl.DataFrame, stretch: Stretch, piece: _Piece) -> LoadWindow:
    count = piece.upto - piece.first
    own = rows.slice(piece.first, count)
    prompts, outputs = (count_column(own, column) for column in ("input_tokens", "output_tokens"))
    seconds = piece.end_s - piece.start_s
    last = float(rows["arrival_s"][-1]) - float(rows["arrival_s"][0])
    tokens = prompts.total + outputs.total if prompts.n or outputs.n else None
    return LoadWindow(
        kind=piece.kind,
        segment=stretch.segment,
        start_s=piece.start_s,
        end_s=piece.end_s,
        first_request=stretch.start + piece.first,
        requests=count,
        rate_per_s=count / seconds if seconds else None,
        tokens_per_s=tokens / seconds if seconds and tokens is not None else None,
        load_over_mean=piece.over_mean,
        request_share=count / len(rows),
        time_share=seconds / last if last else 1.0,
        input_mean_tokens=prompts.mean if prompts.n else None,
        input_p50_tokens=_median(prompts),
        output_mean_tokens=outputs.mean if outputs.n else None,
        output_p50_tokens=_median(outputs),
    )


def _median(counts: Counts) -> float | None:
    return counts.percentile(50) if counts.n >= samples_needed(0.5) else None


def _statistics(trace: Trace, window: LoadWindow | None) -> WindowStatistics | None:
    if window is None:
        return None
    own = trace.window(window.first_request, window.requests)
    times = own.rows["arrival_s"].to_numpy()
    return WindowStatistics(window=window, lengths=analyse_lengths(own), arrivals=describe_arrivals(times))


def _text(windows: list[LoadWindow], peak: LoadWindow | None, off_peak: LoadWindow | None, others: int) -> str:
    rest = f"; {others:,} smaller segments are not looked at" if others else ""
    if peak is None:
        few = sum(window.requests for window in windows) < FEWEST_BINS * REQUESTS_A_BIN
        why = f"fewer than {FEWEST_BINS * REQUESTS_A_BIN} requests" if few else "no lasting change of the load by 20%"
        return f"steady: one window ({why}){rest}"
    low = f", off-peak {off_peak.load_over_mean:.2g} times" if off_peak else ""
    return f"{len(windows)} windows: peak {peak.load_over_mean:.2g} times the mean load{low}{rest}"

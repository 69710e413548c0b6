"""A contiguous part of a trace, and what of the whole it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from inferdoc.errors import InputError, TraceError
from inferdoc.traces.clocks import Floats, stretches
from inferdoc.traces.comparison import HIT_RATE, Comparison, compare
from inferdoc.traces.prefixes import window_hits
from inferdoc.traces.prompt_blocks import unknown_prompts
from inferdoc.traces.timespans import between, lasting
from inferdoc.traces.trace import Trace
from inferdoc.traces.windows import LoadWindow, split_windows

Around = Literal["peak", "off-peak", "busiest"]


@dataclass(frozen=True)
class Sampled:
    trace: Trace
    comparison: Comparison
    notes: list[str]


def sample_count(trace: Trace, start: int, count: int) -> Sampled:
    """The `count` requests from position `start` on.

    Raises:
        InputError: no request is there.
    """
    if not 0 <= start < len(trace) or count < 1:
        raise InputError(f"--start {start} --count {count}: the trace has {len(trace):,} requests, numbered from 0")
    return _sampled(trace, start, min(count, len(trace) - start))


def sample_window(trace: Trace, seconds: float, around: Around | float) -> Sampled:
    """The requests of `seconds` around a time of the trace, or its peak, off-peak or busiest stretch.

    Raises:
        TraceError: no times, clocks of their own, or no such window.
        InputError: no request arrives there.
    """
    times, notes = _times(trace), []
    last = float(times[-1])
    if isinstance(around, str):
        if around == "busiest":
            start = _busiest(trace, times, seconds)
        else:
            window = _window(trace, around)
            start = _typical(trace, times, seconds, window)
            length = window.end_s - window.start_s
            if length < seconds <= last:
                notes.append(
                    f"sample: the {around} window is {lasting(length)}, shorter than what was asked for: the sample"
                    f" holds {lasting(seconds)} around it"
                )
    else:
        start = around - seconds / 2
    start = min(max(0.0, start), max(0.0, last - seconds))
    first, upto = np.searchsorted(times, [start, start + seconds])
    if first == upto:
        raise InputError(f"no request arrives {between(start, start + seconds)}; the trace has {lasting(last)}")
    return _sampled(trace, int(first), int(upto - first), notes)


def _times(trace: Trace) -> Floats:
    found, others, reason = stretches(trace)
    if reason is not None:
        raise TraceError(f"{reason}: a part of it can be taken with --start and --count", where=trace.source)
    if len(found) > 1 or others:
        raise TraceError("has parts with clocks of their own: take a part with --start and --count", where=trace.source)
    return trace.rows["arrival_s"].to_numpy()


def _window(trace: Trace, kind: Literal["peak", "off-peak"]) -> LoadWindow:
    """Raises:
    TraceError: the trace has none.
    """
    windows = split_windows(trace)
    found = windows.peak if kind == "peak" else windows.off_peak
    if found is None:
        raise TraceError(f"has no {kind} window ({windows.text}); use --around busiest, or a time", where=trace.source)
    return found.window


def _typical(trace: Trace, times: Floats, seconds: float, window: LoadWindow) -> float:
    """Where a stretch begins whose load is most like that of `window`, inside it."""
    length = window.end_s - window.start_s
    if length <= seconds:
        return window.start_s + (length - seconds) / 2
    inside = (times >= window.start_s) & (times <= window.end_s - seconds)
    own = slice(window.first_request, window.first_request + window.requests)
    if not inside.any():
        return float(times[own][window.requests // 2]) - seconds / 2
    mean = float(_load(trace)[own].sum()) / length * seconds
    return float(times[inside][np.argmin(np.abs(_within(trace, times, seconds)[inside] - mean))])


def _busiest(trace: Trace, times: Floats, seconds: float) -> float:
    """Where the stretch with most load begins, the first of equal ones."""
    return float(times[np.argmax(_within(trace, times, seconds))])


def _within(trace: Trace, times: Floats, seconds: float) -> Floats:
    """The load of the stretch that begins with each request."""
    sums = np.concatenate(([0.0], np.cumsum(_load(trace))))
    found: Floats = sums[np.searchsorted(times, times + seconds)] - sums[:-1]
    return found


def _load(trace: Trace) -> Floats:
    """Tokens of each request; 1 where lengths are not known."""
    lengths = trace.rows.select("input_tokens", "output_tokens").sum_horizontal()
    known = lengths.sum() > 0
    return lengths.to_numpy().astype(np.float64) if known else np.ones(len(trace))


def _sampled(trace: Trace, start: int, count: int, more: Sequence[str] = ()) -> Sampled:
    made = trace.window(start, count)
    notes = [f"sample: {count:,} of {len(trace):,} requests in a row, from position {start:,}"]
    if trace.duration_s and made.has("arrival_s"):
        begin = float(trace.rows["arrival_s"][start])
        end = float(trace.rows["arrival_s"][start + count - 1])
        notes[0] += f" ({between(begin, end)} of {lasting(trace.duration_s)})"
    notes += more
    comparison = compare(trace, made)
    cold = next((entry.after for entry in comparison.numbers if entry.label == HIT_RATE), None)
    if cold is not None and start and unknown_prompts(trace) is None:
        warm = window_hits(trace, start, count, (trace.block_size or 16) if trace.content == "block hashes" else 16)
        if warm.hit_rate is not None:
            notes.append(
                f"sample: its ideal hit rate is {cold:.1%} by itself and {warm.hit_rate:.1%} with all that came before"
                " it in the cache"
            )
    return Sampled(made, comparison, notes)

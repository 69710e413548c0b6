"""A contiguous part of a trace, and what of the whole it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from inferdoc.errors import InputError, TraceError
from inferdoc.traces.clocks import Floats, stretches
from inferdoc.traces.comparison import Comparison, compare
from inferdoc.traces.prefixes import window_hits
from inferdoc.traces.prompt_blocks import unknown_prompts
from inferdoc.traces.trace import Trace
from inferdoc.traces.windows import split_windows

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
    times = _times(trace)
    if around == "busiest":
        start = _busiest(trace, times, seconds)
    else:
        middle = _middle(trace, around) if isinstance(around, str) else around
        start = min(max(0.0, middle - seconds / 2), max(0.0, float(times[-1]) - seconds))
    first, upto = np.searchsorted(times, [start, start + seconds])
    if first == upto:
        raise InputError(f"no request arrives from {start:g} s to {start + seconds:g} s; the trace has {times[-1]:g} s")
    return _sampled(trace, int(first), int(upto - first))


def _times(trace: Trace) -> Floats:
    found, others, reason = stretches(trace)
    if reason is not None:
        raise TraceError(f"{reason}: a part of it can be taken with --start and --count", where=trace.source)
    if len(found) > 1 or others:
        raise TraceError("has parts with clocks of their own: take a part with --start and --count", where=trace.source)
    return trace.rows["arrival_s"].to_numpy()


def _middle(trace: Trace, kind: str) -> float:
    windows = split_windows(trace)
    found = windows.peak if kind == "peak" else windows.off_peak
    if found is None:
        raise TraceError(f"has no {kind} window ({windows.text}); use --around busiest, or a time", where=trace.source)
    return (found.window.start_s + found.window.end_s) / 2


def _busiest(trace: Trace, times: Floats, seconds: float) -> float:
    """Where the window with most tokens begins (requests, where lengths are not known), the first of equal ones."""
    load = np.ones(len(times))
    lengths = trace.rows.select("input_tokens", "output_tokens").sum_horizontal()
    if not lengths.null_count() and lengths.sum():
        load = lengths.to_numpy().astype(np.float64)
    sums = np.concatenate(([0.0], np.cumsum(load)))
    upto = np.searchsorted(times, times + seconds)
    best = int(np.argmax(sums[upto] - sums[np.arange(len(times))]))
    return float(times[best])


def _sampled(trace: Trace, start: int, count: int) -> Sampled:
    made = trace.window(start, count)
    notes = [f"sample: {count:,} of {len(trace):,} requests in a row, from position {start:,}"]
    if trace.duration_s and made.has("arrival_s"):
        begin = float(trace.rows["arrival_s"][start])
        end = float(trace.rows["arrival_s"][start + count - 1])
        notes[0] += f" ({begin:,.6g} s to {end:,.6g} s of {trace.duration_s:,.6g} s)"
    comparison = compare(trace, made)
    cold = next((entry.after for entry in comparison.numbers if entry.label == "ideal hit rate"), None)
    if cold is not None and start and unknown_prompts(trace) is None:
        warm = window_hits(trace, start, count, trace.block_size if trace.content == "block hashes" else 16)
        if warm.hit_rate is not None:
            notes.append(
                f"sample: its ideal hit rate is {cold:.1%} by itself and {warm.hit_rate:.1%} with all that came before"
                " it in the cache"
            )
    return Sampled(made, comparison, notes)

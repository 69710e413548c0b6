"""The clocks behind a trace's arrivals: stretches that share one, and how finely it steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferdoc.evidence import Contract
from inferdoc.traces.trace import Trace

MOST_SEGMENTS = 16
"""Segments that are described one by one, those with the most requests."""
NO_TIMES = "the trace has no arrival times"
FEWEST_STEPS = 10
_STEPS_LOOKED_AT = 1_000_000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stretch:
    """Consecutive rows of one clock."""

    segment: int | None
    start: int
    count: int


class Clock(Contract):
    """How finely arrival times are recorded."""

    distinct_stamps: int
    equal_stamp_share: float | None
    """Of the times from one request to the next, those that are 0."""
    resolution_s: float | None
    """The step of the clock: all stamps lie on multiples of it, within 5% of a step. ``1e-06`` means that or finer.
    Where no stamp occurs twice, it may be the pace of the requests instead."""
    reason: str | None = None

    @property
    def step_s(self) -> float:
        """What happens within so long is not known: the resolution where stamps repeat, else 0."""
        return self.resolution_s or 0.0 if self.equal_stamp_share else 0.0


def stretches(trace: Trace) -> tuple[list[Stretch], int, str | None]:
    """The stretches of one clock to describe, in order; how many others there are; or why there is none.

    Segments of a clock that starts again follow each other (`arrival_s` goes on), and are one stretch.
    """
    rows = trace.rows
    if not len(trace) or not trace.has("arrival_s"):
        return [], 0, NO_TIMES
    if rows["arrival_s"].null_count():
        return [], 0, f"{rows['arrival_s'].null_count():,} requests have no arrival time"
    if not trace.independent_clocks:
        return [Stretch(None, 0, len(trace))], 0, None
    ids = rows["segment"].fill_null(-1).to_numpy()
    starts = np.concatenate(([0], np.flatnonzero(np.diff(ids)) + 1))
    counts = np.diff(np.append(starts, len(ids)))
    largest = np.sort(np.argsort(-counts, kind="stable")[:MOST_SEGMENTS])
    found = [
        Stretch(int(ids[starts[i]]) if ids[starts[i]] >= 0 else None, int(starts[i]), int(counts[i])) for i in largest
    ]
    return found, len(starts) - len(found), None


def arrivals_of(trace: Trace, stretch: Stretch) -> Floats:
    """Arrival times of a stretch in seconds from its first request, ascending."""
    times = trace.rows["arrival_s"].slice(stretch.start, stretch.count).to_numpy()
    return times if times[0] == 0 else times - times[0]


def describe_clock(arrival_s: Floats) -> Clock:
    """The clock of ascending arrival times."""
    n = len(arrival_s)
    if n < 2:
        return Clock(distinct_stamps=n, equal_stamp_share=None, resolution_s=None, reason="one request")
    gaps = np.diff(arrival_s)
    steps = gaps[gaps > 0]
    equal = 1 - len(steps) / len(gaps)
    if not len(steps):
        reason = "all requests have the same time"
        return Clock(distinct_stamps=1, equal_stamp_share=1.0, resolution_s=None, reason=reason)
    if not equal and len(steps) < FEWEST_STEPS:
        reason = f"{n} requests at different times do not show the clock's steps"
        return Clock(distinct_stamps=n, equal_stamp_share=0.0, resolution_s=None, reason=reason)
    resolution = _resolution(steps[:_STEPS_LOOKED_AT], jitter=equal >= 0.01)
    return Clock(distinct_stamps=len(steps) + 1, equal_stamp_share=equal, resolution_s=resolution)


def _resolution(steps: Floats, *, jitter: bool) -> float:
    """The greatest common divisor of the steps in whole microseconds; where stamps repeat, a step with jitter, too.

    A clock that steps by 3 s and is recorded in ms shows steps of 2.999, 3.000 and 3.001 s. It is told from a fast
    clock by equal stamps and by gaps that are all close to multiples of the smallest ones.
    """
    exact = int(np.gcd.reduce(np.maximum(np.rint(steps * 1e6).astype(np.int64), 1))) / 1e6
    if not jitter:
        return exact
    smallest = float(np.quantile(steps, 0.05))
    step = float(np.median(steps[steps <= 1.1 * smallest]))
    multiples = steps[steps < 20 * step] / step
    on_grid = (np.abs(multiples - np.rint(multiples)) <= 0.05) & (multiples >= 0.5)
    # A step that is short against the typical gap has nothing close to its multiples, unless it is the clock's.
    return max(exact, step) if np.mean(on_grid) >= 0.99 and len(multiples) >= 20 else exact

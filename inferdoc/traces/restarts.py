"""Where the clock of a log starts again, as in two logs written one after the other.

A log in order of completion steps back often: rows of long requests lie among those of later ones. A clock that starts
again steps back once, far, and stays there. Told by the range of times covered since the last restart:

* a row lies below the middle of that range, and so do most of the rows behind it (5; up to 50 where there are many);
* beside that fall, next to no row on either side of it (`_LATE_SHARE` of the shorter side) comes later than the rows
  around it by half of the fall: otherwise the disorder is as large as the fall, which then tells nothing.

Fewer than `_LEAST_ROWS` rows on one side tell nothing either.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

_LEAST_ROWS = 5
_WINDOW = 5
_MOST_OF_WINDOW = 3
_LONGEST_WINDOW = 50
_LATE_SHARE = 0.1
_MOST_FALLS = 1000
_ROWS_AT_ONCE = 1 << 8

Times = npt.NDArray[np.int64]


def restarts(times: Times) -> list[int]:
    """Positions of the first rows of a clock that starts again. A little disorder before and behind is no matter."""
    if not (times[1:] < times[:-1]).any():
        return []
    found = _falls(times)
    while found:
        kept = [
            start
            for (begin, start), (_, end) in pairwise(pairwise([0, *found, len(times)]))
            if _stands_out(times[begin:start], times[start:end])
        ]
        if kept == found:
            return found
        found = kept
    return found


def _falls(times: Times) -> list[int]:
    """Positions from which on most rows lie in the lower half of the times since the fall before.

    None where there are more than `_MOST_FALLS`: the rows have no order then.
    """
    found: list[int] = []
    begin = 0
    while (start := _first_fall(times, begin)) is not None:
        if len(found) == _MOST_FALLS:
            return []
        found.append(start)
        begin = start
    return found


def _first_fall(times: Times, begin: int) -> int | None:
    """Reads as far as it has to, in ever longer parts, so that many falls take no longer than few."""
    at, size = begin + _LEAST_ROWS, _ROWS_AT_ONCE
    if len(times) - at < _LEAST_ROWS:
        return None
    most, least = times[begin:at].max(), times[begin:at].min()
    while len(times) - at >= _LEAST_ROWS:
        part = times[at : at + size]
        # The range before each row, not with it: every row below all others would else lie in the lower half.
        highest = np.maximum.accumulate(np.concatenate(([most], part)))[:-1]
        lowest = np.minimum.accumulate(np.concatenate(([least], part)))[:-1]
        middle = highest - (highest - lowest) // 2
        for position in np.flatnonzero((part < middle) & (highest > lowest)):
            behind = times[at + position : at + position + _WINDOW]
            if len(behind) == _WINDOW and np.count_nonzero(behind < middle[position]) >= _MOST_OF_WINDOW:
                return int(at + position)
        most, least = max(most, part.max()), min(least, part.min())
        at, size = at + len(part), size * 2
    return None


def _stands_out(before: Times, behind: Times) -> bool:
    """Whether the fall between two stretches is far larger than what is unordered in them."""
    start = behind[: max(_WINDOW, min(round(len(behind) ** 0.5), len(before) // 3, _LONGEST_WINDOW))]
    middle = before.max() - (before.max() - before.min()) // 2
    if np.count_nonzero(start < middle) < len(start) / 2:
        return False
    fall = before.max() - np.median(behind[:_WINDOW])
    fewest = _LATE_SHARE * min(len(before), len(behind))
    return all(np.count_nonzero(_lateness(part) > fall / 2) <= fewest for part in (before, behind))


def _lateness(times: Times) -> Times:
    """How far each row lies before the latest one so far."""
    late: Times = np.maximum.accumulate(times) - times
    return late

"""For how long a changing amount has each size: time-weighted quantiles of piecewise linear functions.

Sizes are sorted into bins whose edges are the floating-point numbers (of size + 2**14) with 14 bits after the leading
one: bins are 1 wide below 16,384, and about 1/16,384 of their size beyond. The time spent below each edge is exact, so
a quantile is off by less than the bin that it falls in, whatever the number of pieces.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inferdoc.evidence import Contract

BITS = 14
RELATIVE_ERROR = 2.0**-BITS
_SHIFT = 52 - BITS
_OFFSET = 2.0**BITS
_FIRST = (1023 + BITS) << BITS
_BINS = (48 - BITS) << BITS
"""Up to 2**48."""

Floats = npt.NDArray[np.float64]


class OverTime(Contract):
    """Time-weighted; mean and maximum are exact, percentiles within 1 + `RELATIVE_ERROR` times their size."""

    mean: float
    p50: float
    p99: float
    max: float


class TimeWeighted:
    """Collects pieces of a function and tells its quantiles over time.

    A piece from size a to size b spends ``pace * (q - a)`` seconds below q on its way, and ``pace * (q - b)`` less once
    q is past b; ``pace = seconds / (b - a)`` is negative where it falls. So sums of pace and of pace times size, by the
    bin that holds a or b, give the time below every edge.
    """

    def __init__(self) -> None:
        self._constant, self._pace, self._pace_size = np.zeros((3, _BINS))
        self.seconds = self._integral = self.max = 0.0
        self._used = 1
        self.max_at: float | None = None
        """The first moment at which the size is largest."""

    def add(self, begin: Floats, end: Floats, seconds: Floats, at: Floats) -> None:
        """Pieces that go straight from `begin` to `end` within `seconds`, the first moment of each being `at`."""
        self._note_max(begin, end, seconds, at)
        self.seconds += float(seconds.sum())
        self._integral += float(((begin + end) * seconds).sum()) / 2
        change, first = end - begin, _bins(begin)
        flat = np.abs(change) <= 1e-7 * (begin + 1)
        self._used = max(self._used, int(first.max()) + 1)
        _add(self._constant, first, np.where(flat, seconds, 0.0))
        if flat.all():
            return
        last = _bins(end)
        self._used = max(self._used, int(last.max()) + 1)
        pace = np.where(flat, 0.0, seconds / np.where(flat, 1.0, change))
        for bins, sizes, sign in ((first, begin, 1), (last, end, -1)):
            _add(self._pace, bins, sign * pace)
            _add(self._pace_size, bins, sign * pace * sizes)

    def _note_max(self, begin: Floats, end: Floats, seconds: Floats, at: Floats) -> None:
        for sizes, late in ((begin, False), (end, True)):
            lasting = np.where(seconds > 0, sizes, 0.0)
            top = int(lasting.argmax())
            moment = float(at[top] + (seconds[top] if late else 0.0))
            if lasting[top] > self.max or (lasting[top] == self.max > 0 and moment < (self.max_at or 0.0)):
                self.max, self.max_at = float(lasting[top]), moment

    def summary(self) -> OverTime:
        """Raises:
        ValueError: no time passed.
        """
        if not self.seconds:
            raise ValueError("no time passed")
        used = self._used
        edges = _edges(used)
        within = np.cumsum(self._constant[:used])
        within += edges[1:] * np.cumsum(self._pace[:used]) - np.cumsum(self._pace_size[:used])
        upto = np.maximum.accumulate(within)
        return OverTime(
            mean=self._integral / self.seconds,
            p50=self._quantile(edges, upto, 0.5),
            p99=self._quantile(edges, upto, 0.99),
            max=self.max,
        )

    def _quantile(self, edges: Floats, upto: Floats, share: float) -> float:
        """The smallest size that the function is at or below for `share` of the time."""
        wanted = share * self.seconds * (1 - 1e-12)
        place = min(int(np.searchsorted(upto, wanted)), len(upto) - 1)
        rest = wanted - (upto[place - 1] if place else 0.0) - self._constant[place]
        if rest <= 0:
            return min(float(edges[place]), self.max)
        sloping = upto[place] - (upto[place - 1] if place else 0.0) - self._constant[place]
        part = min(1.0, rest / sloping) if sloping > 0 else 1.0
        return min(float(edges[place] + part * (edges[place + 1] - edges[place])), self.max)


def _add(sums: Floats, bins: npt.NDArray[np.int64], amounts: Floats) -> None:
    if len(bins):
        lowest = int(bins.min())
        part = np.bincount(bins - lowest, amounts)
        sums[lowest : lowest + len(part)] += part


def _bins(sizes: Floats) -> npt.NDArray[np.int64]:
    bits: npt.NDArray[np.int64] = (np.maximum(sizes, 0.0) + _OFFSET).view(np.int64) >> _SHIFT
    return np.minimum(bits - _FIRST, _BINS - 1)


def _edges(bins: int) -> Floats:
    bits = (np.arange(bins + 1, dtype=np.int64) + _FIRST) << _SHIFT
    return bits.view(np.float64) - _OFFSET

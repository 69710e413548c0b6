"""Lengths as a count for each distinct one: exact, and small however many requests there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

ROWS_AT_ONCE = 1_000_000
DENSE = 1 << 22
"""Lengths below are counted in a table with a place for every length; above, it would be mostly empty."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Distinct lengths, ascending, and how many requests have each."""

    values: Ints
    counts: Ints

    @classmethod
    def of(cls, parts: Iterable[Ints]) -> Counts:
        """Count lengths (not negative) that come in parts."""
        tallies = [_tally(part) for part in parts if len(part)]
        if not tallies:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        every = np.concatenate([values for values, _ in tallies])
        values, place = np.unique(every, return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts for _, counts in tallies]))
        return cls(values, counts.astype(np.int64))

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        return int(self.values @ self.counts)

    @property
    def mean(self) -> float:
        return self.total / self.n

    @property
    def variance(self) -> float:
        """Mean squared distance from the mean."""
        return float((self.values - self.mean) ** 2 @ self.counts) / self.n

    def percentile(self, percent: float) -> float:
        """What ``numpy.percentile`` gives for the lengths one by one; at least one length."""
        place = (self.n - 1) * (percent / 100)
        below = int(place)
        upto = np.cumsum(self.counts)
        low, high = (int(self.values[np.searchsorted(upto, at, "right")]) for at in (below, min(below + 1, self.n - 1)))
        share, step = place - below, high - low
        # The form that numpy takes, so that the last digit agrees.
        return low + step * share if share < 0.5 else high - step * (1 - share)

    def longest_share(self, share: float) -> float:
        """Tokens in the longest `share` of the requests, rounded up to whole requests, over all tokens."""
        wanted = -int(-self.n * share // 1)
        before = np.cumsum(self.counts[::-1]) - self.counts[::-1]
        taken = np.clip(wanted - before, 0, self.counts[::-1])
        return int(taken @ self.values[::-1]) / self.total

    def midranks(self) -> Floats:
        """Rank of each distinct length, from 1; the mean of its ranks where it occurs more than once."""
        upto = np.cumsum(self.counts)
        return upto - (self.counts - 1) / 2


def count_column(rows: pl.DataFrame, column: str) -> Counts:
    """How often each length occurs in a column, nulls left out."""
    return Counts.of(part[column].drop_nulls().to_numpy() for part in rows.select(column).iter_slices(ROWS_AT_ONCE))


def _tally(part: Ints) -> tuple[Ints, Ints]:
    if int(part.max()) < DENSE:
        seen = np.bincount(part)
        values = np.flatnonzero(seen)
        return values, seen[values]
    return np.unique(part, return_counts=True)

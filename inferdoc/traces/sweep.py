"""A sweep over starts, first tokens and ends: what is live at each moment, part by part of a long trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from inferdoc.traces.service import Floats, Ints, Lives
from inferdoc.traces.time_weighted import TimeWeighted


@dataclass
class _Amount:
    """One amount between two parts: its size and slope now, and the changes of events still to come."""

    over_time: TimeWeighted
    jumps: Floats
    bends: Floats
    size: float = 0.0
    slope: float = 0.0


class Sweep:
    """Adds up amounts over all live requests.

    Every request brings each amount at the size that it has at its start, goes to another one from its first token to
    its end, and takes it away at its end. Memory is in proportion to a part and what is live after it.
    """

    def __init__(self, amounts: list[str]) -> None:
        self._amounts = {name: _Amount(TimeWeighted(), np.zeros(0), np.zeros(0)) for name in ["requests", *amounts]}
        self._times = np.zeros(0)
        self._now: float | None = None

    def __getitem__(self, name: str) -> TimeWeighted:
        """Sizes over time of one amount; ``requests`` is how many are live."""
        return self._amounts[name].over_time

    @property
    def unsettled(self) -> int:
        """Events that are still to come."""
        return len(self._times)

    def add(self, lives: Lives, sizes: Mapping[str, tuple[Ints, Ints]], horizon_s: float) -> None:
        """Take in requests, and settle all that happens before `horizon_s`, at which a later part's first one starts.

        Args:
            sizes: by amount, its size from `Lives.start` on and at `Lives.end`, for each request.
        """
        times = np.concatenate((self._times, lives.start, lives.first, lives.end))
        order = np.argsort(times, kind="stable")
        settled = int(np.searchsorted(times, horizon_s, sorter=order))
        done, later = order[:settled], order[settled:]
        moments = times[done]
        if settled:
            begin = np.concatenate(([self._now if self._now is not None else moments[0]], moments[:-1]))
            seconds = moments - begin
        growing = np.maximum(lives.end - lives.first, 0.0)
        still = growing == 0
        ones = np.ones(len(lives.start), np.int64)
        for name, amount in self._amounts.items():
            low, high = (ones, ones) if name == "requests" else sizes[name]
            pace = np.where(still, 0.0, (high - low) / np.where(still, 1.0, growing))
            jumps = np.concatenate((amount.jumps, low, np.where(still, high - low, 0.0), np.negative(high)))
            bends = np.concatenate((amount.bends, np.zeros(len(pace)), pace, -pace))
            if settled:
                _settle(amount, jumps[done], bends[done], begin, seconds)
            amount.jumps, amount.bends = jumps[later], bends[later]
        self._times = times[later]
        self._now = float(moments[-1]) if settled else self._now


def _settle(amount: _Amount, jumps: Floats, bends: Floats, begin: Floats, seconds: Floats) -> None:
    """Follow an amount over events, each `seconds` after the one before it, which was at `begin`."""
    slopes = amount.slope + np.cumsum(bends)
    grown = np.concatenate(([amount.slope], slopes[:-1])) * seconds
    after = amount.size + np.cumsum(grown + jumps)
    before = after - jumps
    from_size = np.concatenate(([amount.size], after[:-1]))
    amount.over_time.add(from_size, before, seconds, begin)
    amount.size, amount.slope = float(after[-1]), float(slopes[-1])

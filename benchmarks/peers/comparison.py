"""Pairs of jobs to ratios, and outputs to the places where they part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inferdoc.statistics import METHOD, MIN_PAIRS, hodges_lehmann, log_gains, signed_rank_interval


@dataclass(frozen=True)
class Ratio:
    """How many times as fast ours is as a peer; the interval is None below `MIN_PAIRS` pairs."""

    estimate: float
    low: float | None
    high: float | None
    pairs: int

    @classmethod
    def of(cls, ours: Sequence[float], peer: Sequence[float]) -> Ratio:
        """From tokens/s, paired by position.

        Raises:
            ValueError: no pair, or a rate that is not positive and finite.
        """
        if not ours:
            raise ValueError("a ratio needs a pair")
        logs = log_gains(peer, ours, higher_is_better=True)
        interval = signed_rank_interval(logs)
        low, high = (None, None) if interval is None else map(math.exp, interval)
        return cls(math.exp(hodges_lehmann(logs)), low, high, len(logs))

    def describe(self) -> dict[str, Any]:
        return {**asdict(self), "level": 0.95, "method": METHOD}

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.estimate:.3f}x (no interval: {self.pairs} of at least {MIN_PAIRS} pairs)"
        return f"{self.estimate:.3f}x [{self.low:.3f}, {self.high:.3f}]"


def first_divergences(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> dict[int, int]:
    """Request to the first output position at which two engines' tokens differ; a missing token differs."""
    found = {}
    for request, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if list(a) != list(b):
            shared = min(len(a), len(b))
            found[request] = next((i for i in range(shared) if a[i] != b[i]), shared)
    return found


def earliest(divergences: Iterable[dict[int, int]]) -> dict[int, int]:
    """Request to the first position of all jobs' divergences."""
    found: dict[int, int] = {}
    for job in divergences:
        for request, position in job.items():
            found[request] = min(position, found.get(request, position))
    return found

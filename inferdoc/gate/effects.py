"""How much worse one metric got: harm on the log scale, estimated and bounded by exact rank statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from inferdoc.evidence import Direction
from inferdoc.rank_tests import (
    fewest_pairs,
    mann_whitney_p,
    shift_estimate,
    shift_interval,
    shift_upper,
    signed_rank_p,
    signed_rank_upper,
)
from inferdoc.statistics import hodges_lehmann, signed_rank_interval


@dataclass(frozen=True)
class Effect:
    """Harm of the candidate: log of how many times worse it is (0: no change; above 0: worse).

    p: one-sided, that it is worse. upper: one-sided bound. sd: standard error of the estimate times the root of `n`;
    ``None`` where so few values have none.
    """

    n: int
    estimate: float
    p: float
    interval: tuple[float, float] | None
    upper: float | None
    sd: float | None


@dataclass(frozen=True)
class Sample:
    """The values of one metric that count: of pairs that have both, or of two histories what each has.

    effect: ``None`` where `problem` says why there is none.
    """

    baseline: list[float]
    candidate: list[float]
    paired: bool
    missing: str | None
    effect: Effect | None
    problem: str | None

    @classmethod
    def of(
        cls,
        baseline: Sequence[float | None],
        candidate: Sequence[float | None],
        direction: Direction | None,
        *,
        level: float,
        paired: bool,
    ) -> Sample:
        """
        Raises:
            ValueError: a paired design whose arms have unlike numbers of values.
        """
        if paired:
            pairs = [(a, b) for a, b in zip(baseline, candidate, strict=True) if a is not None and b is not None]
            before, after = [a for a, _ in pairs], [b for _, b in pairs]
        else:
            before = [value for value in baseline if value is not None]
            after = [value for value in candidate if value is not None]
        given = len(candidate) if paired else len(baseline) + len(candidate)
        lost = given - (len(after) if paired else len(before) + len(after))
        missing = f"{lost} of {given} {'pairs' if paired else 'sessions'} without a value" if lost else None
        problem = _problem(before, after, direction)
        effect = None if problem else _measure(before, after, direction, level=level, paired=paired)
        return cls(before, after, paired, missing, effect, problem)

    @property
    def unit(self) -> str:
        return "pairs" if self.paired else "sessions"

    @property
    def equal(self) -> bool:
        """Whether nothing differs between the arms."""
        if self.paired:
            return bool(self.baseline) and self.baseline == self.candidate
        return bool(self.baseline and self.candidate) and len({*self.baseline, *self.candidate}) == 1

    def too_few(self, level: float) -> bool:
        """Whether no test of so many values could rule anything out."""
        if self.paired:
            return len(self.candidate) < fewest_pairs(1 - level)
        orders = math.comb(len(self.baseline) + len(self.candidate), len(self.candidate))
        return (1 - level) * orders < 1 - 1e-9

    @property
    def change(self) -> float:
        """Of the medians, in the metric's unit."""
        return median(self.candidate) - median(self.baseline)


def _problem(before: list[float], after: list[float], direction: Direction | None) -> str | None:
    if not before or not after:
        return "no value to compare"
    if direction is None:
        return "neither direction is better; use kind = exact"
    if min(*before, *after) <= 0:
        return "values of 0 or below have no ratio; give max_value or min_value"
    return None


def _measure(
    baseline: list[float], candidate: list[float], direction: Direction | None, *, level: float, paired: bool
) -> Effect:
    sign = -1 if direction == "higher" else 1
    before, after = ([sign * math.log(value) for value in arm] for arm in (baseline, candidate))
    if not paired:
        return Effect(
            n=len(after),
            estimate=shift_estimate(before, after),
            p=mann_whitney_p(before, after),
            interval=shift_interval(before, after, level),
            upper=shift_upper(before, after, level),
            sd=_pooled_sd(before, after),
        )
    # Rounded, so that a change and its reverse tie whatever floating point makes of their logarithms.
    differences = [round(b - a, 12) for a, b in zip(before, after, strict=True)]
    return Effect(
        n=len(differences),
        estimate=hodges_lehmann(differences),
        p=signed_rank_p(differences),
        interval=signed_rank_interval(differences, level),
        upper=signed_rank_upper(differences, level),
        sd=float(np.std(differences, ddof=1)) if len(differences) > 1 else None,
    )


def _pooled_sd(a: list[float], b: list[float]) -> float | None:
    freedom = len(a) + len(b) - 2
    if freedom < 1:
        return None
    variance = (float(np.var(a)) * len(a) + float(np.var(b)) * len(b)) / freedom
    return math.sqrt(variance * (1 + len(b) / len(a)))

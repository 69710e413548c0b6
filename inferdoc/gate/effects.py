"""How much worse one metric got: harm on the log scale, estimated and bounded by exact rank statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_high, median_low

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

_ZERO_HARM = 1e6
"""Log harm of a change to or from zero, for the ranks: beyond that of any two numbers, at most 1,455."""
_TIE = 1e-12


@dataclass(frozen=True)
class Effect:
    """Harm of the candidate: log of how many times worse it is (0: no change; above 0: worse; infinite: of a change to
    or from zero).

    p: one-sided, that it is worse. upper: one-sided bound. sd: standard error of the estimate times the root of `n`;
    ``None`` where so few values have none, or one is infinite. upper_change: one-sided bound of the change for the
    worse in the metric's unit, where zeros leave no bound to a ratio.
    """

    n: int
    estimate: float
    p: float
    interval: tuple[float, float] | None
    upper: float | None
    sd: float | None
    upper_change: float | None = None


@dataclass(frozen=True)
class Sample:
    """The values of one metric that count: of pairs that have both, or of two histories what each has.

    missing: what has no value. hidden: whether that may be what got worse, so that the rest can't pass. effect:
    ``None`` where `problem` says why there is none.
    """

    baseline: list[float]
    candidate: list[float]
    direction: Direction | None
    paired: bool
    missing: str | None
    hidden: bool
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
        hidden = bool(lost) if paired else len(after) < len(candidate)
        problem = _problem(before, after, direction, paired=paired)
        effect = None if problem else _measure(before, after, direction, level=level, paired=paired)
        return cls(before, after, direction, paired, missing, hidden, effect, problem)

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
    def zeros(self) -> str | None:
        """In how many pairs one side alone is zero."""
        pairs = list(zip(self.baseline, self.candidate, strict=True)) if self.paired else []
        fell, rose = sum(b == 0 != a for a, b in pairs), sum(a == 0 != b for a, b in pairs)
        parts = [
            f"{what} 0 in {count} of {len(pairs)} pairs"
            for what, count in (("fell to", fell), ("rose from", rose))
            if count
        ]
        return ", ".join(parts) or None

    @property
    def change(self) -> float:
        """Of the medians, in the metric's unit."""
        return middle(self.candidate) - middle(self.baseline)


def middle(values: Sequence[float]) -> float:
    """Median, also where the sum of two values is beyond floating point."""
    found = float(median(values))
    return found if math.isfinite(found) else median_low(values) / 2 + median_high(values) / 2


def _problem(before: list[float], after: list[float], direction: Direction | None, *, paired: bool) -> str | None:
    if not before or not after:
        return "no value to compare"
    if direction is None:
        return "neither direction is better; use kind = exact"
    # In pairs, a change to or from zero has a rank, if no ratio; between histories it would tie with nothing.
    lowest, highest = min(*before, *after), max(*before, *after)
    if lowest < 0 or highest == 0 or (lowest == 0 and not paired):
        return "values of 0 or below have no ratio; give max_value or min_value"
    return None


def _measure(
    baseline: list[float], candidate: list[float], direction: Direction | None, *, level: float, paired: bool
) -> Effect:
    sign = -1 if direction == "higher" else 1
    if not paired:
        before, after = ([sign * math.log(value) for value in arm] for arm in (baseline, candidate))
        return Effect(
            n=len(after),
            estimate=shift_estimate(before, after),
            p=mann_whitney_p(before, after),
            interval=shift_interval(before, after, level),
            upper=shift_upper(before, after, level),
            sd=_pooled_sd(before, after),
        )
    pairs = list(zip(baseline, candidate, strict=True))
    harms = _tied([sign * _log_ratio(a, b) for a, b in pairs])
    to_zero = any(abs(harm) == _ZERO_HARM for harm in harms)
    interval, upper = signed_rank_interval(harms, level), signed_rank_upper(harms, level)
    return Effect(
        n=len(harms),
        estimate=_harm(hodges_lehmann(harms)),
        p=signed_rank_p(harms),
        interval=(_harm(interval[0]), _harm(interval[1])) if interval else None,
        upper=_harm(upper) if upper is not None else None,
        sd=float(np.std(harms, ddof=1)) if len(harms) > 1 and not to_zero else None,
        upper_change=signed_rank_upper([sign * (b - a) for a, b in pairs], level) if to_zero else None,
    )


def _log_ratio(before: float, after: float) -> float:
    if before == after:
        return 0.0
    if before == 0 or after == 0:
        return math.copysign(_ZERO_HARM, after - before)
    return math.log(after) - math.log(before)


def _harm(average: float) -> float:
    """Mean harm of two pairs, or the middle of two such; infinite where a change to or from zero is part of it."""
    return average if abs(average) < _ZERO_HARM / 10 else math.copysign(math.inf, average)


def _tied(differences: Sequence[float]) -> list[float]:
    """A change and its reverse tie, whatever floating point makes of their logarithms."""
    tied, size = list(differences), 0.0
    for place in sorted(range(len(tied)), key=lambda place: abs(tied[place])):
        if abs(tied[place]) - size > _TIE:
            size = abs(tied[place])
        tied[place] = math.copysign(size, tied[place])
    return tied


def _pooled_sd(a: list[float], b: list[float]) -> float | None:
    freedom = len(a) + len(b) - 2
    if freedom < 1:
        return None
    variance = (float(np.var(a)) * len(a) + float(np.var(b)) * len(b)) / freedom
    return math.sqrt(variance * (1 + len(b) / len(a)))

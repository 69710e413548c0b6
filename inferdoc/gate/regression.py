"""Whether a change is a regression, or one is ruled out, or neither, and how many pairs would tell."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from inferdoc.gate.effects import Effect, Sample, middle
from inferdoc.gate.policy import MetricPolicy
from inferdoc.gate.result import MetricVerdict
from inferdoc.rank_tests import pairs_for_power

FLOOR_TOO_HIGH = "the floor is above the baseline"
LARGEST_LOG = math.log(sys.float_info.max)
_EDGE = 1e-9
"""A change of exactly the limit reaches it, whatever floating point makes of its logarithm."""


@dataclass(frozen=True)
class Test:
    """How sure the test of one metric must be.

    family: how many metrics share `alpha`.
    """

    alpha: float
    family: int = 1
    p_adjusted: float | None = None


def verdict_of(limits: MetricPolicy, sample: Sample, effect: Effect, test: Test) -> tuple[MetricVerdict, str | None]:
    limit, floor = limits.max_regression, limits.floor
    if limit is None:
        return MetricVerdict.ADVISORY, "no limit is given"
    p = effect.p if test.p_adjusted is None else test.p_adjusted
    beyond = effect.estimate >= math.log1p(limit) - _EDGE
    change = sample.change if sample.direction == "lower" else -sample.change
    reaches_floor = floor is None or change >= floor * (1 - _EDGE)
    if p <= test.alpha and beyond and reaches_floor:
        return MetricVerdict.REGRESSED, None
    if floor_too_high(limits, sample):
        return MetricVerdict.INCONCLUSIVE, FLOOR_TOO_HIGH
    if effect.upper is None:
        return MetricVerdict.INCONCLUSIVE, f"{effect.n} {sample.unit}: too few to judge"
    below_floor = floor is not None and effect.upper_change is not None and effect.upper_change < floor * (1 - _EDGE)
    if below_floor or effect.upper < _smallest_regression(limits, sample) - _EDGE:
        better = effect.interval is not None and effect.interval[1] < 0
        if sample.hidden:
            return MetricVerdict.INCONCLUSIVE, None
        return MetricVerdict.IMPROVED if better else MetricVerdict.PASS, None
    if not beyond:
        return MetricVerdict.INCONCLUSIVE, f"{_worse(effect.upper)} is not ruled out"
    if p > test.alpha:
        return MetricVerdict.INCONCLUSIVE, f"beyond the limit, but noise may explain it (p {p:.2g} > {test.alpha:.3g})"
    return MetricVerdict.INCONCLUSIVE, "beyond the limit, but the medians differ by less than the floor"


def _worse(harm: float) -> str:
    if harm < math.log(100):
        return f"{math.expm1(harm):.1%} worse"
    return f"{math.exp(harm):.3g} times worse" if harm < LARGEST_LOG else "a change without a finite ratio"


def floor_too_high(limits: MetricPolicy, sample: Sample) -> bool:
    """Whether what may only fall can't fall by the floor, so that nothing could fail."""
    floor = limits.floor
    if floor is None or sample.direction != "higher" or not sample.baseline:
        return False
    return floor >= middle(sample.baseline) * (1 - _EDGE)


def _smallest_regression(limits: MetricPolicy, sample: Sample) -> float:
    """Log harm that reaches both limit and floor, the floor as a share of the baseline's median."""
    relative, floor, before = math.log1p(limits.max_regression or 0.0), limits.floor, 0.0
    if floor is not None:
        before = middle(sample.baseline)
    if floor is None or before == 0:
        return relative
    share = floor / before
    if sample.direction == "lower":
        return max(relative, math.log1p(share))
    return max(relative, -math.log1p(-share)) if share < 1 else math.inf


def pairs_needed(limits: MetricPolicy, sample: Sample, effect: Effect, test: Test, level: float) -> int | None:
    """To rule the smallest regression out, or to be sure of what looks like one; ``None`` where no number would."""
    smallest = _smallest_regression(limits, sample)
    if effect.estimate < smallest and sample.hidden:
        return None
    distance, alpha = (
        (smallest - effect.estimate, 1 - level)
        if effect.estimate < smallest
        else (effect.estimate, test.alpha / test.family)
    )
    if effect.sd is None or alpha <= 0 or not _EDGE < distance < math.inf:
        return None
    return max(effect.n + 1, pairs_for_power(effect.sd, distance, alpha))

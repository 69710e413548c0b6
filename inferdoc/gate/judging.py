"""Verdicts on metrics from the values of repeats: regressed, passed, or not decided, with the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from inferdoc.evidence import Direction, Interval
from inferdoc.gate.effects import Effect, Sample
from inferdoc.gate.policy import MetricPolicy, StatisticsPolicy
from inferdoc.gate.result import Kind, MetricResult, MetricVerdict
from inferdoc.rank_tests import HISTORY_METHOD, PAIRED_METHOD, benjamini_hochberg, detectable, holm, pairs_for_power
from inferdoc.statistics import median_interval

WARN_Q = 0.10
"""False discovery rate of the metrics that only warn."""
_EDGE = 1e-9
"""A change of exactly the limit reaches it, whatever floating point makes of its logarithm."""


@dataclass(frozen=True)
class Series:
    """One metric of the policy with a value for each repeat; ``None`` where a repeat has none."""

    metric: MetricPolicy
    label: str
    unit: str
    direction: Direction | None
    kind: Kind
    baseline: Sequence[float | None] = ()
    candidate: Sequence[float | None] = ()

    @property
    def has_budget(self) -> bool:
        return self.metric.max_value is not None or self.metric.min_value is not None


@dataclass(frozen=True)
class _Test:
    """How sure the test of one metric must be.

    family: how many metrics share `alpha`.
    """

    alpha: float
    family: int = 1
    p_adjusted: float | None = None


def judge(
    series: Sequence[Series], *, statistics: StatisticsPolicy, alpha_of_look: float, paired: bool
) -> list[MetricResult]:
    """Judge every metric against its limit of change; absolute limits are for `judge_budget`.

    Args:
        alpha_of_look: of the whole family of failing metrics at this look; 0: none of them can regress.
        paired: values pair by position (signed-rank), or are two histories of sessions (Mann-Whitney).

    Returns:
        One result for each series, in order, without those that have an absolute limit only.
    """
    judged = [one for one in series if one.kind == "exact" or _limited(one) or not one.has_budget]
    samples = [
        Sample.of(one.baseline, one.candidate, one.direction, level=statistics.interval, paired=paired)
        for one in judged
    ]
    tests = _tests(judged, samples, alpha_of_look)
    return [
        _exact(one, sample) if one.kind == "exact" else _change(one, sample, test, statistics.interval)
        for one, sample, test in zip(judged, samples, tests, strict=True)
    ]


def gated(series: Sequence[Series]) -> list[Series]:
    """The family: the metrics whose changes may fail the gate."""
    return [one for one in series if _limited(one) and one.metric.role == "fail"]


def _limited(series: Series) -> bool:
    return series.kind == "timing" and series.metric.max_regression is not None


def _tests(judged: Sequence[Series], samples: Sequence[Sample], alpha_of_look: float) -> list[_Test]:
    tests = [_Test(alpha_of_look)] * len(judged)
    for role, alpha, correct in (("fail", alpha_of_look, holm), ("warn", WARN_Q, benjamini_hochberg)):
        family = [i for i, one in enumerate(judged) if _limited(one) and one.metric.role == role]
        # One without a p still takes its share of alpha: the family is the policy's, whatever was measured.
        ps = [effect.p if (effect := samples[i].effect) else 1.0 for i in family]
        for i, p in zip(family, correct(ps), strict=True):
            tests[i] = _Test(alpha, len(family), p if samples[i].effect else None)
    return tests


def _change(series: Series, sample: Sample, test: _Test, level: float) -> MetricResult:
    limits = series.metric
    result = _result(
        series,
        sample.baseline,
        sample.candidate,
        rule="regression",
        limit=limits.max_regression,
        floor=limits.floor,
    )
    effect = sample.effect
    if effect is None:
        equal = sample.equal and not sample.too_few(level)
        if limits.max_regression is None:
            result.verdict = MetricVerdict.ADVISORY
        elif equal:
            result.verdict = MetricVerdict.PASS
        result.reason = _joined("every value is the same" if equal else sample.problem, sample.missing)
        return result
    lower_is_better = series.direction == "lower"
    result.ratio = math.exp(effect.estimate if lower_is_better else -effect.estimate)
    if effect.interval is not None:
        low, high = effect.interval if lower_is_better else (-effect.interval[1], -effect.interval[0])
        method = PAIRED_METHOD if sample.paired else HISTORY_METHOD
        result.interval = Interval(low=math.exp(low), high=math.exp(high), level=level, method=method)
    result.p, result.p_adjusted = effect.p, test.p_adjusted
    if effect.sd is not None:
        result.min_detectable = detectable(effect.sd, effect.n)
    result.verdict, reason = _verdict(series, sample, effect, test)
    result.reason = _joined(reason, sample.missing)
    if result.verdict is MetricVerdict.INCONCLUSIVE:
        result.pairs_needed = _pairs_needed(effect, _smallest_regression(series, sample), test, level)
    return result


def _verdict(series: Series, sample: Sample, effect: Effect, test: _Test) -> tuple[MetricVerdict, str | None]:
    limit, floor = series.metric.max_regression, series.metric.floor
    if limit is None:
        return MetricVerdict.ADVISORY, "no limit is given"
    p = effect.p if test.p_adjusted is None else test.p_adjusted
    beyond = effect.estimate >= math.log1p(limit) - _EDGE
    change = sample.change if series.direction == "lower" else -sample.change
    reaches_floor = floor is None or change >= floor * (1 - _EDGE)
    if p <= test.alpha and beyond and reaches_floor:
        return MetricVerdict.REGRESSED, None
    if effect.upper is None:
        return MetricVerdict.INCONCLUSIVE, f"{effect.n} {sample.unit}: too few to judge"
    if effect.upper < _smallest_regression(series, sample) - _EDGE:
        better = effect.interval is not None and effect.interval[1] < 0
        return MetricVerdict.IMPROVED if better else MetricVerdict.PASS, None
    if not beyond:
        return MetricVerdict.INCONCLUSIVE, f"{math.expm1(effect.upper):.1%} worse is not ruled out"
    if p > test.alpha:
        return MetricVerdict.INCONCLUSIVE, f"beyond the limit, but noise may explain it (p {p:.2g} > {test.alpha:.3g})"
    return MetricVerdict.INCONCLUSIVE, "beyond the limit, but the medians differ by less than the floor"


def _smallest_regression(series: Series, sample: Sample) -> float:
    """Log harm that reaches both limit and floor, the floor as a share of the baseline's median."""
    relative, floor = math.log1p(series.metric.max_regression or 0.0), series.metric.floor
    if floor is None:
        return relative
    share = floor / median(sample.baseline)
    if series.direction == "lower":
        return max(relative, math.log1p(share))
    return max(relative, -math.log1p(-share)) if share < 1 else math.inf


def _pairs_needed(effect: Effect, smallest: float, test: _Test, level: float) -> int | None:
    """To rule the smallest regression out, or to be sure of what looks like one."""
    distance, alpha = (
        (smallest - effect.estimate, 1 - level)
        if effect.estimate < smallest
        else (effect.estimate, test.alpha / test.family)
    )
    if effect.sd is None or alpha <= 0 or not _EDGE < distance < math.inf:
        return None
    return max(effect.n + 1, pairs_for_power(effect.sd, distance, alpha))


def _exact(series: Series, sample: Sample) -> MetricResult:
    """Counts that must be equal: in each pair, or over all sessions of both histories."""
    result = _result(series, sample.baseline, sample.candidate, rule="exact")
    baseline = sample.baseline if sample.paired else sample.baseline[:1] * len(sample.candidate)
    pairs = list(zip(baseline, sample.candidate, strict=False))
    different = [(index, pair) for index, pair in enumerate(pairs) if pair[0] != pair[1]]
    if not pairs:
        result.verdict, reason = MetricVerdict.INCONCLUSIVE, sample.problem
    elif not sample.paired and len(set(sample.baseline)) > 1:
        result.verdict, reason = MetricVerdict.INCONCLUSIVE, "the baseline's own sessions differ"
    elif different:
        index, (before, after) = different[0]
        where = f"{'pair' if sample.paired else 'session'} {index + 1} of {len(pairs)}"
        result.verdict, reason = MetricVerdict.REGRESSED, f"{before:.10g} against {after:.10g} in {where}"
    else:
        result.verdict, reason = MetricVerdict.PASS, None
    result.reason = _joined(reason, sample.missing)
    return result


def judge_budget(
    metric: MetricPolicy,
    label: str,
    unit: str,
    direction: Direction | None,
    values: Sequence[float | None],
    interval: Interval | None = None,
) -> MetricResult:
    """Judge the candidate against absolute limits; works with no baseline.

    The median of the repeats must be surely beyond a limit to break it: by the one-sided 95% bound of the sign test, by
    every value where they are fewer than five or exact, or by `interval` where the caller knows one.
    """
    series = Series(metric, label, unit, direction, metric.kind, candidate=values)
    known = [value for value in values if value is not None]
    result = _result(series, [], known, rule="budget", max_value=metric.max_value, min_value=metric.min_value)
    if not known:
        result.verdict, result.reason = MetricVerdict.INCONCLUSIVE, "not measured"
        return result
    bounds = None if metric.kind == "exact" else median_interval(known, level=0.90)
    low, high = (interval.low, interval.high) if interval else bounds or (min(known), max(known))
    most = math.inf if metric.max_value is None else metric.max_value
    least = -math.inf if metric.min_value is None else metric.min_value
    reason = None
    if low > most or high < least:
        result.verdict = MetricVerdict.BROKEN
    elif high <= most and low >= least:
        result.verdict = MetricVerdict.PASS
    else:
        result.verdict, reason = MetricVerdict.INCONCLUSIVE, f"between {low:.4g} and {high:.4g} {unit}: on both sides"
    lost = len(values) - len(known)
    result.reason = _joined(reason, f"{lost} of {len(values)} repeats without a value" if lost else None)
    return result


def _result(series: Series, baseline: list[float], candidate: list[float], **fields: object) -> MetricResult:
    """What every result has, undecided."""
    return MetricResult.model_validate(
        {
            "metric": series.metric.id,
            "label": series.label,
            "unit": series.unit,
            "direction": series.direction,
            "role": series.metric.role,
            "kind": series.kind,
            "baseline_values": list(series.baseline),
            "candidate_values": list(series.candidate),
            "baseline": median(baseline) if baseline else None,
            "candidate": median(candidate) if candidate else None,
            "n": len(candidate),
            "verdict": MetricVerdict.INCONCLUSIVE,
            "policy_line": series.metric.line,
            **fields,
        }
    )


def _joined(*reasons: str | None) -> str | None:
    return "; ".join(filter(None, reasons)) or None

"""Verdicts on metrics from the values of repeats: regressed, passed, or not decided, with the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inferdoc.evidence import Direction, Interval
from inferdoc.gate.effects import Sample, middle
from inferdoc.gate.policy import MetricPolicy, StatisticsPolicy
from inferdoc.gate.regression import FLOOR_TOO_HIGH, LARGEST_LOG, Test, floor_too_high, pairs_needed, verdict_of
from inferdoc.gate.result import Kind, MetricResult, MetricVerdict
from inferdoc.rank_tests import (
    HISTORY_METHOD,
    PAIRED_METHOD,
    benjamini_hochberg,
    detectable,
    holm,
    sign_p,
)
from inferdoc.statistics import median_interval

WARN_Q = 0.10
"""False discovery rate of the metrics that only warn."""
BUDGET_ALPHA = 0.05
"""One-sided, of a budget that is judged alone."""


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
        return self.metric.has_budget


def judge(
    series: Sequence[Series], *, statistics: StatisticsPolicy, alpha_of_look: float, paired: bool
) -> list[MetricResult]:
    """Judge every metric against its limit of change; absolute limits are for `judge_budgets`.

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


def gated_budgets(series: Sequence[Series]) -> list[Series]:
    """The other family: the budgets that may fail the gate and that noise may break. Counts have none."""
    return [one for one in series if one.has_budget and one.kind == "timing" and one.metric.role == "fail"]


def _limited(series: Series) -> bool:
    return series.kind == "timing" and series.metric.max_regression is not None


def _tests(judged: Sequence[Series], samples: Sequence[Sample], alpha_of_look: float) -> list[Test]:
    tests = [Test(alpha_of_look)] * len(judged)
    for role, alpha, correct in (("fail", alpha_of_look, holm), ("warn", WARN_Q, benjamini_hochberg)):
        family = [i for i, one in enumerate(judged) if _limited(one) and one.metric.role == role]
        # One without a p still takes its share of alpha: the family is the policy's, whatever was measured.
        ps = [effect.p if (effect := samples[i].effect) else 1.0 for i in family]
        for i, p in zip(family, correct(ps), strict=True):
            tests[i] = Test(alpha, len(family), p if samples[i].effect else None)
    return tests


def _change(series: Series, sample: Sample, test: Test, level: float) -> MetricResult:
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
        reason = "every value is the same" if equal else sample.problem
        if limits.max_regression is None:
            result.verdict = MetricVerdict.ADVISORY
        elif equal and floor_too_high(limits, sample):
            reason = FLOOR_TOO_HIGH
        elif equal and not sample.hidden:
            result.verdict = MetricVerdict.PASS
        result.reason = _joined(reason, sample.missing)
        return result
    lower_is_better = series.direction == "lower"
    result.ratio = _ratio(effect.estimate if lower_is_better else -effect.estimate)
    if effect.interval is not None:
        low, high = effect.interval if lower_is_better else (-effect.interval[1], -effect.interval[0])
        result.interval = _interval(low, high, level, PAIRED_METHOD if sample.paired else HISTORY_METHOD)
    result.p, result.p_adjusted = effect.p, test.p_adjusted
    if effect.sd is not None:
        result.min_detectable = detectable(effect.sd, effect.n)
    result.verdict, reason = verdict_of(limits, sample, effect, test)
    extreme = "too far apart for a ratio" if result.ratio is None else None
    result.reason = _joined(reason, sample.zeros or extreme, sample.missing)
    if result.verdict is MetricVerdict.INCONCLUSIVE:
        result.pairs_needed = pairs_needed(limits, sample, effect, test, level)
    return result


def _ratio(log: float) -> float | None:
    return math.exp(log) if log < LARGEST_LOG else None


def _interval(low: float, high: float, level: float, method: str) -> Interval | None:
    ends = _ratio(low), _ratio(high)
    if ends[0] is None or ends[1] is None:
        return None
    return Interval(low=ends[0], high=ends[1], level=level, method=method)


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
        result.verdict, reason = (MetricVerdict.INCONCLUSIVE if sample.hidden else MetricVerdict.PASS), None
    result.reason = _joined(reason, sample.missing)
    return result


def judge_budgets(series: Sequence[Series], *, alpha_of_look: float) -> list[MetricResult]:
    """Judge the candidate of every metric that has absolute limits against them.

    Args:
        alpha_of_look: of the family of `gated_budgets` at this look, corrected by Holm; another is judged alone.
    """
    family = gated_budgets(series)
    corrected = iter(holm([_p_beyond(one.metric, _known(one.candidate)) for one in family]))
    return [
        _budget(one, None, alpha_of_look, next(corrected)) if one in family else _budget(one, None, BUDGET_ALPHA, None)
        for one in series
        if one.has_budget
    ]


def judge_budget(
    metric: MetricPolicy,
    label: str,
    unit: str,
    direction: Direction | None,
    values: Sequence[float | None],
    interval: Interval | None = None,
    *,
    alpha: float = BUDGET_ALPHA,
) -> MetricResult:
    """Judge one candidate against absolute limits; works with no baseline.

    Args:
        interval: of the median, where the caller knows one; it decides in place of the test.
        alpha: one-sided; of a whole family divided by its size.
    """
    return _budget(Series(metric, label, unit, direction, metric.kind, candidate=values), interval, alpha, None)


def _budget(series: Series, interval: Interval | None, alpha: float, p_adjusted: float | None) -> MetricResult:
    """To break a limit, the median of the repeats must be surely beyond it: by the exact sign test, by `interval`, or
    by every value where they are counts, or too few for a test and of no family. To keep it, the one-sided 95% bound
    must be within (every value, where so few have none), and no repeat may lack its value.
    """
    metric, known = series.metric, _known(series.candidate)
    result = _result(series, [], known, rule="budget", max_value=metric.max_value, min_value=metric.min_value)
    if not known:
        result.reason = "not measured"
        return result
    bounds = None if series.kind == "exact" else median_interval(known, level=0.90)
    low, high = (interval.low, interval.high) if interval else bounds or (min(known), max(known))
    most = math.inf if metric.max_value is None else metric.max_value
    least = -math.inf if metric.min_value is None else metric.min_value
    beyond, reason = low > most or high < least, None
    lost = len(series.candidate) - len(known)
    few = bounds is None and series.kind == "timing" and interval is None
    if p_adjusted is not None or not (few or interval or series.kind == "exact"):
        result.p, result.p_adjusted = _p_beyond(metric, known), p_adjusted
        p = result.p if p_adjusted is None else p_adjusted
        broken = p <= alpha
        if beyond and not broken:
            reason = f"beyond the limit, but noise may explain it (p {p:.2g} > {alpha:.3g})"
    else:
        broken = beyond and not (few and lost)
    if broken:
        result.verdict = MetricVerdict.BROKEN
    elif high <= most and low >= least:
        result.verdict = MetricVerdict.INCONCLUSIVE if lost else MetricVerdict.PASS
    elif not beyond:
        reason = f"between {low:.4g} and {high:.4g} {series.unit}: on both sides"
    result.reason = _joined(reason, f"{lost} of {len(series.candidate)} repeats without a value" if lost else None)
    return result


def _p_beyond(metric: MetricPolicy, known: Sequence[float]) -> float:
    """One-sided p that the median is beyond a limit; of two limits the smaller, twice."""
    ps = []
    if metric.max_value is not None:
        ps.append(sign_p([value - metric.max_value for value in known]))
    if metric.min_value is not None:
        ps.append(sign_p([metric.min_value - value for value in known]))
    return min(1.0, len(ps) * min(ps))


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


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
            "baseline": middle(baseline) if baseline else None,
            "candidate": middle(candidate) if candidate else None,
            "n": len(candidate),
            "verdict": MetricVerdict.INCONCLUSIVE,
            "policy_line": series.metric.line,
            **fields,
        }
    )


def _joined(*reasons: str | None) -> str | None:
    return "; ".join(filter(None, reasons)) or None

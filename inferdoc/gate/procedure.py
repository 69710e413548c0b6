"""The gate's procedure: two looks that share alpha, confirmation on fresh pairs, and the verdict of the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from inferdoc.errors import EXIT_INCONCLUSIVE, EXIT_NOT_COMPARABLE, EXIT_REGRESSED
from inferdoc.gate.judging import Series, gated, gated_budgets, judge, judge_budgets
from inferdoc.gate.policy import DesignPolicy, ExitPolicy, StatisticsPolicy
from inferdoc.gate.result import Confirmation, DiagnosisChange, Family, GateVerdict, MetricResult, MetricVerdict
from inferdoc.rank_tests import BUDGET_METHOD, PAIRED_METHOD, fewest_pairs

Values = dict[str, tuple[list[float | None], list[float | None]]]
Draw = Callable[[int, bool], Values]
"""(pairs, whether they confirm) -> by metric the values of baseline and candidate in fresh pairs, those that count."""

CONFIRM_ALPHA = 0.05
"""One-sided and uncorrected: the fresh pairs test only what was flagged."""
NOT_CONFIRMED = "flagged, not confirmed on fresh pairs"
TOO_FEW_FRESH = "flagged, too few fresh pairs to confirm it"
_NAMED = 3
"""Metrics that the headline names."""
_FAR = 100.0
"""From here on a ratio is said as one, not in percent."""


@dataclass(frozen=True)
class Outcome:
    """What the pairs decided.

    results: of every limit of change. budgets: of every absolute limit. pairs: that counted, without those that
    confirm.
    """

    results: list[MetricResult]
    budgets: list[MetricResult]
    family: Family
    pairs: int
    confirm_pairs: int
    looks: int


def alpha_of_look(design: DesignPolicy, statistics: StatisticsPolicy) -> float:
    """Each look's share of alpha."""
    return statistics.alpha / _planned(design)


def _planned(design: DesignPolicy) -> int:
    """Looks."""
    return 2 if design.max_pairs > design.pairs else 1


def run_procedure(metrics: Sequence[Series], design: DesignPolicy, statistics: StatisticsPolicy, draw: Draw) -> Outcome:
    """Draw pairs until the metrics that may fail are decided, or `max_pairs` are used.

    The second look pools all pairs and is taken only where a failing metric is undecided and none has failed: one that
    failed already decides the exit code. Changes share alpha, and budgets another; each look has its part of both.

    Args:
        metrics: without values.
    """
    alpha = alpha_of_look(design, statistics)
    series, looks = _extended(metrics, draw(design.pairs, False)), 1
    results, budgets = _judged(series, statistics, alpha)
    failing = [result.verdict for result in (*results, *budgets) if result.role == "fail"]
    if (
        _planned(design) == 2
        and MetricVerdict.INCONCLUSIVE in failing
        and not any(verdict.fails for verdict in failing)
    ):
        series, looks = _extended(series, draw(design.max_pairs - design.pairs, False)), 2
        results, budgets = _judged(series, statistics, alpha)
    results, confirm_pairs = _confirmed(results, metrics, design, statistics, draw)
    family = Family(
        method=_method(metrics),
        alpha=statistics.alpha,
        alpha_of_look=alpha,
        look=looks,
        size=len(gated(metrics)),
    )
    pairs = max((len(one.candidate) for one in series), default=0)
    return Outcome(results, budgets, family, pairs, confirm_pairs, looks)


def _extended(series: Sequence[Series], drawn: Values) -> list[Series]:
    extended = []
    for one in series:
        baseline, candidate = drawn[one.metric.id]
        extended.append(
            replace(one, baseline=[*one.baseline, *baseline], candidate=[*one.candidate, *candidate]),
        )
    return extended


def _judged(
    series: Sequence[Series], statistics: StatisticsPolicy, alpha: float
) -> tuple[list[MetricResult], list[MetricResult]]:
    changes = judge(series, statistics=statistics, alpha_of_look=alpha, paired=True)
    return changes, judge_budgets(series, alpha_of_look=alpha)


def _method(metrics: Sequence[Series]) -> str:
    changes = f"Holm over the metrics that may fail; {PAIRED_METHOD}"
    return f"{changes}; budgets by themselves: Holm, {BUDGET_METHOD}" if gated_budgets(metrics) else changes


def _confirmed(
    results: list[MetricResult],
    metrics: Sequence[Series],
    design: DesignPolicy,
    statistics: StatisticsPolicy,
    draw: Draw,
) -> tuple[list[MetricResult], int]:
    """Test each failing metric that was flagged again, alone, on fresh pairs. Counts need no second test.

    Pairs that were left out, or lack a value, are replaced by at most `confirm` more.
    """
    flagged = {result.metric for result in results if _flagged(result)}
    if not flagged or not design.confirm:
        return results, 0
    alone = [
        replace(one, metric=one.metric.model_copy(update={"role": "info"}))
        for one in gated(metrics)
        if one.metric.id in flagged
    ]
    fresh, spare = _extended(alone, draw(design.confirm, True)), design.confirm
    while spare and (short := design.confirm - min(map(_usable, fresh))) > 0:
        fresh = _extended(fresh, draw(min(short, spare), True))
        spare -= min(short, spare)
    second = {
        result.metric: result
        for result in judge(fresh, statistics=statistics, alpha_of_look=CONFIRM_ALPHA, paired=True)
    }
    confirmed = [_with_second(result, second[result.metric]) if _flagged(result) else result for result in results]
    return confirmed, max(len(one.candidate) for one in fresh)


def _flagged(result: MetricResult) -> bool:
    return result.role == "fail" and result.rule == "regression" and result.verdict is MetricVerdict.REGRESSED


def _usable(series: Series) -> int:
    return sum(None not in pair for pair in zip(series.baseline, series.candidate, strict=True))


def _with_second(first: MetricResult, second: MetricResult) -> MetricResult:
    confirmed = second.verdict is MetricVerdict.REGRESSED
    reason = TOO_FEW_FRESH if second.n < fewest_pairs(CONFIRM_ALPHA) else NOT_CONFIRMED
    record = Confirmation(pairs=second.n, ratio=second.ratio, p=second.p, confirmed=confirmed)
    if confirmed:
        return first.model_copy(update={"confirmation": record})
    return first.model_copy(update={"confirmation": record, "verdict": MetricVerdict.INCONCLUSIVE, "reason": reason})


def smallest_adjusted_p(pairs: int, family: int) -> float:
    """Smallest Holm-adjusted p that one of `family` metrics can reach, when only it got worse, in every pair."""
    return min(1.0, family * 0.5**pairs)


def design_problems(metrics: Sequence[Series], design: DesignPolicy, statistics: StatisticsPolicy) -> list[str]:
    """Why a design could never fail, or never pass, whatever was measured; each says how to mend it."""
    problems = []
    family = len(gated(metrics))
    if design.max_pairs < design.pairs:
        return [f"[design] max_pairs is {design.max_pairs}, below pairs = {design.pairs}; raise it or leave it out"]
    alpha = alpha_of_look(design, statistics)
    if family and smallest_adjusted_p(design.max_pairs, family) > alpha:
        problems.append(
            f"{family} metrics that may fail share alpha = {alpha:.3g} a look, which {design.max_pairs} pairs can't "
            f"reach (smallest p {smallest_adjusted_p(design.max_pairs, family):.3f}); set [design] max_pairs to "
            f'{fewest_pairs(alpha / family)} or more, or give fewer metrics role = "fail"'
        )
    budgets = [one.metric for one in gated_budgets(metrics)]
    # One with two limits is tested twice.
    tests = len(budgets) * (2 if any(None not in (one.max_value, one.min_value) for one in budgets) else 1)
    if tests and smallest_adjusted_p(design.max_pairs, tests) > alpha:
        problems.append(
            f"{len(budgets)} budgets that may fail share alpha = {alpha:.3g} a look, which {design.max_pairs} pairs "
            f"can't reach (smallest p {smallest_adjusted_p(design.max_pairs, tests):.3f}); set [design] max_pairs to "
            f'{fewest_pairs(alpha / tests)} or more, or give fewer budgets role = "fail"'
        )
    fewest = fewest_pairs(1 - statistics.interval)
    if family and design.max_pairs < fewest:
        problems.append(
            f"{design.max_pairs} pairs have no one-sided {statistics.interval:.0%} bound, so nothing could pass; "
            f"set [design] max_pairs to {fewest} or more"
        )
    fewest = fewest_pairs(CONFIRM_ALPHA)
    if family and 0 < design.confirm < fewest:
        problems.append(
            f"[design] confirm is {design.confirm}: so few pairs confirm nothing; set {fewest} or more, or 0 for none"
        )
    return problems


def overall(
    results: Sequence[MetricResult], changes: Sequence[DiagnosisChange], exit_policy: ExitPolicy
) -> tuple[GateVerdict, int, str]:
    """Verdict, exit code and headline. Only metrics of role ``fail`` and changes of outcome ``fail`` fail."""
    failing = [result for result in results if result.role == "fail"]
    bad = [_named(result) for result in failing if result.verdict.fails]
    bad += [f"{change.title} ({change.kind})" for change in changes if change.outcome == "fail"]
    undecided = [result.label for result in failing if result.verdict is MetricVerdict.INCONCLUSIVE]
    undecided += [change.title for change in changes if change.outcome == "inconclusive"]
    if bad:
        also = f"; {len(undecided)} not decided" if undecided else ""
        return GateVerdict.REGRESSED, EXIT_REGRESSED, _sentence(f"{_listed(bad)}{also}")
    if not results:
        return GateVerdict.NOT_COMPARABLE, EXIT_NOT_COMPARABLE, "Nothing was compared"
    if not any(_compared(result) for result in results):
        text = "No metric has a value on both sides, so nothing was compared"
        return GateVerdict.NOT_COMPARABLE, EXIT_NOT_COMPARABLE, text
    if undecided:
        code = EXIT_INCONCLUSIVE if exit_policy.inconclusive else 0
        return GateVerdict.INCONCLUSIVE, code, _sentence(f"{_listed(undecided)} could not be decided")
    counts = {
        "held": sum(result.verdict in (MetricVerdict.PASS, MetricVerdict.IMPROVED) for result in failing),
        "improved": sum(result.verdict is MetricVerdict.IMPROVED for result in results),
        "only shown": sum(result.verdict is MetricVerdict.ADVISORY for result in results),
        "warned about": sum(result.role == "warn" and result.verdict.fails for result in results),
    }
    first = f"{counts.pop('held')} of {len(failing)} limits that may fail hold"
    return GateVerdict.PASSED, 0, "; ".join([first, *(f"{n} {word}" for word, n in counts.items() if n)])


def _compared(result: MetricResult) -> bool:
    return result.candidate is not None and (result.baseline is not None or result.rule == "budget")


def _named(result: MetricResult) -> str:
    if result.rule == "regression":
        far = result.ratio is not None and result.ratio >= _FAR
        change = None if not result.ratio else f"{result.ratio:.3g} times" if far else f"{result.ratio - 1:+.1%}"
        return f"{result.label} {change or result.reason} (limit {result.limit:.1%})"
    if result.rule == "budget" and result.candidate is not None:
        over = result.max_value is not None and result.candidate > result.max_value
        limit = result.max_value if over else result.min_value
        return f"{result.label} {result.candidate:.4g} {result.unit} (limit {limit:.4g})"
    return f"{result.label} differs"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def geometric_mean(results: Sequence[MetricResult]) -> float | None:
    """Of the harm ratios of all changes that have one, not to zero; above 1 is worse. ``None`` where there is none."""
    harms = [
        math.log(result.ratio) * (1 if result.direction == "lower" else -1)
        for result in results
        if result.rule == "regression" and result.ratio
    ]
    return math.exp(math.fsum(harms) / len(harms)) if harms else None

"""Verdicts on stored results: without pairs a difference is only shown, a budget can fail, a history is tested."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Literal

from inferdoc.gate.judging import Series, gated, gated_budgets, judge, judge_budget
from inferdoc.gate.matching import Match, only_budget
from inferdoc.gate.policy import StatisticsPolicy
from inferdoc.gate.result import MetricResult, MetricVerdict
from inferdoc.gate.sessions import Measured

NOT_DECIDED = "beyond the limit, but one session a side can't tell a change from the noise between sessions"


def judge_stored(matches: Sequence[Match], statistics: StatisticsPolicy) -> list[MetricResult]:
    """The newest session of each side: exact counts and budgets decide, every other difference is advisory."""
    changes = [
        _exact(match, statistics) if match.metric.kind == "exact" else _advisory(match)
        for match in matches
        if not only_budget(match.metric)
    ]
    return changes + judge_candidate(matches, statistics, history=False)


def judge_history(matches: Sequence[Match], statistics: StatisticsPolicy) -> list[MetricResult]:
    """Sessions against sessions: the unit of replication is the session."""
    tested = [match for match in matches if not only_budget(match.metric)]
    series = [_series(match) for match in tested]
    results = judge(series, statistics=statistics, alpha_of_look=statistics.alpha, paired=False)
    alpha = statistics.alpha / max(1, len(gated(series)))
    results = [_with_load(_with_sessions(result, alpha), match) for result, match in zip(results, tested, strict=True)]
    return results + judge_candidate(matches, statistics, history=True)


def judge_candidate(matches: Sequence[Match], statistics: StatisticsPolicy, *, history: bool) -> list[MetricResult]:
    """The budgets, on the candidate alone: its newest session, or all sessions of a history."""
    budgets = [match for match in matches if match.metric.has_budget]
    alpha = statistics.alpha / max(1, len(gated_budgets([_series(match) for match in budgets])))
    return [_budget(match, match.candidate if history else match.candidate[-1:], alpha) for match in budgets]


def fewest_sessions(alpha: float) -> int:
    """Of each side, so that the exact Mann-Whitney test can reach a one-sided p of `alpha`: 1 / C(2n, n) <= alpha."""
    return next(n for n in count(1) if math.comb(2 * n, n) * alpha >= 1)


def _with_sessions(result: MetricResult, alpha: float) -> MetricResult:
    """What two histories are short of, where they are too short to fail whatever they hold."""
    before, after = (
        sum(value is not None for value in values) for values in (result.baseline_values, result.candidate_values)
    )
    undecided = result.verdict is MetricVerdict.INCONCLUSIVE and result.rule == "regression" and result.role == "fail"
    if not undecided or not before or not after or math.comb(before + after, after) * alpha >= 1:
        return result
    needed = max(result.pairs_needed or 0, fewest_sessions(alpha))
    reason = f"{before} and {after} sessions are too few to show a regression: {needed} a side would do"
    return result.model_copy(update={"pairs_needed": needed, "reason": reason})


def _series(match: Match) -> Series:
    return Series(
        metric=match.metric,
        label=match.known.label,
        unit=match.known.unit,
        direction=match.known.direction,
        kind=match.metric.kind,
        baseline=[_value(item) for item in match.baseline],
        candidate=[_value(item) for item in match.candidate],
    )


def _value(item: Measured | None) -> float | None:
    return item.value if item is not None else None


def _exact(match: Match, statistics: StatisticsPolicy) -> MetricResult:
    newest = Match(match.metric, match.baseline[-1:], match.candidate[-1:])
    problem = _missing(newest) or _load_problem([*newest.baseline, *newest.candidate])
    if problem is not None:
        return _result(newest, "exact", MetricVerdict.INCONCLUSIVE, problem)
    series = _series(newest)
    return judge([series], statistics=statistics, alpha_of_look=statistics.alpha, paired=False)[0]


def _advisory(match: Match) -> MetricResult:
    newest = Match(match.metric, match.baseline[-1:], match.candidate[-1:])
    sides = [*newest.baseline, *newest.candidate]
    problem = _missing(newest) or _load_problem(sides)
    if problem is not None:
        return _result(newest, "regression", MetricVerdict.INCONCLUSIVE, problem)
    result = _result(newest, "regression", MetricVerdict.ADVISORY, _load_note(sides))
    return result.model_copy(update={"reason": NOT_DECIDED}) if beyond_limit(result) else result


def _budget(match: Match, items: Sequence[Measured | None], alpha: float) -> MetricResult:
    """Of one session by its repeats and their interval; of a history by its sessions."""
    known, newest = match.known, items[-1]
    single = newest if len(items) == 1 else None
    if single is not None and single.value is not None:
        values, interval = single.values, single.interval
    else:
        values, interval = [_value(item) for item in items], None
    result = judge_budget(match.metric, known.label, known.unit, known.direction, values, interval, alpha=alpha)
    if result.candidate is None and newest is not None and newest.reason:
        return result.model_copy(update={"reason": newest.reason})
    problem = _load_problem(items)
    return _undecided(result, problem) if problem else result


def _result(
    match: Match, rule: Literal["regression", "exact"], verdict: MetricVerdict, reason: str | None
) -> MetricResult:
    """One session a side, shown as it is."""
    metric, known = match.metric, match.known
    before, after = _value(match.baseline[-1]), _value(match.candidate[-1])
    ratio = after / before if before is not None and after is not None and before > 0 and after > 0 else None
    return MetricResult(
        metric=metric.id,
        label=known.label,
        unit=known.unit,
        direction=known.direction,
        role=metric.role,
        kind=metric.kind,
        rule=rule,
        baseline_values=[before],
        candidate_values=[after],
        baseline=before,
        candidate=after,
        n=int(before is not None and after is not None),
        ratio=ratio,
        limit=metric.max_regression,
        floor=metric.floor,
        verdict=verdict,
        reason=reason,
        policy_line=metric.line,
    )


def _missing(match: Match) -> str | None:
    """Why a side has no value."""
    parts = []
    for name, item in (("baseline", match.baseline[-1]), ("candidate", match.candidate[-1])):
        if item is None:
            parts.append(f"{name}: its newest session did not measure it")
        elif item.value is None:
            parts.append(f"{name}: {item.reason or 'no reason was recorded'}")
    return "; ".join(parts) or None


def beyond_limit(result: MetricResult) -> bool:
    """Whether the change for the worse reaches the limit and the floor."""
    before, after, limit = result.baseline, result.candidate, result.limit
    if limit is None or before is None or after is None or before <= 0:
        return False
    # As the tests measure harm: how many times worse, so that a throughput cut to a third is 200% worse.
    worse = after / before if result.direction == "lower" else before / after if after > 0 else math.inf
    return worse - 1 >= limit and abs(after - before) >= (result.floor or 0.0)


def _load_problem(items: Iterable[Measured | None]) -> str | None:
    """Another kind of load, or another rate that was asked for, is another measurement."""
    loads = {_load(item): item.load or "not known" for item in items if item is not None}
    return f"not measured under one load: {_some(list(loads.values()))}" if len(loads) > 1 else None


def _load_note(items: Iterable[Measured | None]) -> str | None:
    loads = [item.load for item in items if item is not None and item.load is not None and item.rate is None]
    different = list(dict.fromkeys(loads))
    return f"each at a rate of its own: {_some(different)}" if len(different) > 1 else None


def _load(item: Measured) -> tuple[str | None, float | None]:
    """Kind and rate. A rate that follows from the saturation of its own run is no part of it."""
    if item.rate is not None:
        return "open loop", item.rate
    return (item.load.partition(" (")[0] if item.load is not None else None), None


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return ", ".join(texts[:3]) + more


def _with_load(result: MetricResult, match: Match) -> MetricResult:
    """A tested metric whose sessions served different loads is not decided, and no more sessions would do it."""
    items = [*match.baseline, *match.candidate]
    if problem := _load_problem(items):
        return _undecided(result, problem)
    return result if result.reason else result.model_copy(update={"reason": _load_note(items)})


def _undecided(result: MetricResult, reason: str) -> MetricResult:
    undecided = {"verdict": MetricVerdict.INCONCLUSIVE, "reason": reason, "pairs_needed": None}
    return result.model_copy(update=undecided)

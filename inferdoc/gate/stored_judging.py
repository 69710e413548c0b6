"""Verdicts on stored results: without pairs a difference is only shown, a budget can fail, a history is tested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from inferdoc.gate.judging import Series, gated, judge, judge_budget
from inferdoc.gate.matching import Match, is_budget, only_budget
from inferdoc.gate.policy import StatisticsPolicy
from inferdoc.gate.result import MetricResult, MetricVerdict
from inferdoc.gate.sessions import Measured

NOT_DECIDED = "beyond the limit, but one session a side can't tell a change from the noise between sessions"


def judge_stored(matches: Sequence[Match], statistics: StatisticsPolicy) -> list[MetricResult]:
    """The newest session of each side: exact counts and budgets decide, every other difference is advisory."""
    results = []
    for match in matches:
        if match.metric.kind == "exact":
            results.append(_exact(match, statistics))
        elif not only_budget(match.metric):
            results.append(_advisory(match))
        if is_budget(match.metric):
            results.append(_budget(match, match.candidate[-1:]))
    return results


def judge_history(matches: Sequence[Match], statistics: StatisticsPolicy) -> list[MetricResult]:
    """Sessions against sessions: the unit of replication is the session."""
    tested = [match for match in matches if not only_budget(match.metric)]
    series = [_series(match) for match in tested]
    results = judge(series, statistics=statistics, alpha_of_look=statistics.alpha, paired=False)
    results = [_with_load(result, match) for result, match in zip(results, tested, strict=True)]
    alpha = statistics.alpha / max(1, len(gated(series)))
    results = [_with_sessions(result, alpha) for result in results]
    return results + [_budget(match, match.candidate) for match in matches if is_budget(match.metric)]


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
    problem = _missing(newest)
    if problem is not None:
        return _result(newest, "exact", MetricVerdict.INCONCLUSIVE, problem)
    series = _series(newest)
    return judge([series], statistics=statistics, alpha_of_look=statistics.alpha, paired=False)[0]


def _advisory(match: Match) -> MetricResult:
    newest = Match(match.metric, match.baseline[-1:], match.candidate[-1:])
    problem = _missing(newest) or _Loads.of(newest).problem
    if problem is not None:
        return _result(newest, "regression", MetricVerdict.INCONCLUSIVE, problem)
    result = _result(newest, "regression", MetricVerdict.ADVISORY, _Loads.of(newest).note)
    return result.model_copy(update={"reason": NOT_DECIDED}) if beyond_limit(result) else result


def _budget(match: Match, items: Sequence[Measured | None]) -> MetricResult:
    """Of one session by its repeats and their interval; of a history by its sessions."""
    known, newest = match.known, items[-1]
    single = newest if len(items) == 1 else None
    if single is not None and single.value is not None:
        values, interval = single.values, single.interval
    else:
        values, interval = [_value(item) for item in items], None
    result = judge_budget(match.metric, known.label, known.unit, known.direction, values, interval)
    if result.candidate is None and newest is not None and newest.reason:
        return result.model_copy(update={"reason": newest.reason})
    return result


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


@dataclass(frozen=True)
class _Loads:
    """What the two sides were measured under."""

    baseline: str | None
    candidate: str | None

    @classmethod
    def of(cls, match: Match) -> _Loads:
        before, after = match.baseline[-1], match.candidate[-1]
        return cls(before.load if before is not None else None, after.load if after is not None else None)

    @property
    def problem(self) -> str | None:
        """Another kind of load is another measurement; the rate behind it may differ."""
        if self._kind(self.baseline) == self._kind(self.candidate):
            return None
        return f"not measured under one load: {self.baseline or 'not known'}, {self.candidate or 'not known'}"

    @property
    def note(self) -> str | None:
        if self.baseline == self.candidate or self.problem is not None:
            return None
        return f"each at a rate of its own: {self.baseline}, {self.candidate}"

    @staticmethod
    def _kind(load: str | None) -> str | None:
        return load.partition(" (")[0] if load is not None else None


def _with_load(result: MetricResult, match: Match) -> MetricResult:
    """A tested metric whose sides served different loads is not decided."""
    loads = _Loads.of(match)
    if loads.problem is not None:
        return result.model_copy(update={"verdict": MetricVerdict.INCONCLUSIVE, "reason": loads.problem})
    return result if result.reason else result.model_copy(update={"reason": loads.note})

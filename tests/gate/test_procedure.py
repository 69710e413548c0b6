from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from inferdoc.evidence import Question
from inferdoc.gate.judging import Series, judge_budget
from inferdoc.gate.policy import DesignPolicy, ExitPolicy, MetricPolicy, StatisticsPolicy
from inferdoc.gate.procedure import (
    NOT_CONFIRMED,
    TOO_FEW_FRESH,
    Outcome,
    Values,
    design_problems,
    geometric_mean,
    overall,
    run_procedure,
    smallest_adjusted_p,
)
from inferdoc.gate.result import DiagnosisChange, GateVerdict, MetricResult, MetricVerdict
from inferdoc.rank_tests import holm

V = MetricVerdict
POLICY = StatisticsPolicy()
STRICT = ExitPolicy()
QUIET = [1.0, 1.001, 0.999, 1.002]
"""Candidate over baseline: no change."""
UNCLEAR = [1.09, 0.95, 1.07, 0.97]
"""Passes neither way in 8 pairs."""


def metric(id: str = "ttft_p95", kind: Any = "timing", direction: Any = "lower", **limits: Any) -> Series:
    if kind == "timing":
        limits = {"max_regression": 0.05, **limits}
    return Series(MetricPolicy(id=id, kind=kind, **limits), f"label of {id}", "s", direction, kind)


class Scripted:
    """Draws that give each metric its factors in turn, and remembers what was asked for."""

    def __init__(self, **factors: tuple[Sequence[float], ...]) -> None:
        self.factors = factors
        self.asked: list[tuple[int, bool]] = []

    def __call__(self, count: int, confirming: bool) -> Values:
        at = len(self.asked)
        self.asked.append((count, confirming))
        drawn = {}
        for id, script in self.factors.items():
            cycle = script[min(at, len(script) - 1)]
            drawn[id] = ([1.0] * count, [cycle[i % len(cycle)] for i in range(count)])
        return drawn


def run(metrics: Sequence[Series], draw: Scripted, **design: Any) -> Outcome:
    return run_procedure(metrics, DesignPolicy(**design), POLICY, draw)


def test_a_clear_pass_needs_one_look():
    draw = Scripted(ttft_p95=(QUIET,))
    outcome = run([metric()], draw)
    assert draw.asked == [(8, False)]
    assert [result.verdict for result in outcome.results] == [V.PASS]
    assert (outcome.pairs, outcome.confirm_pairs, outcome.looks) == (8, 0, 1)
    assert (outcome.family.alpha, outcome.family.alpha_of_look, outcome.family.look) == (0.05, 0.025, 1)


def test_what_is_undecided_is_extended_once_and_all_pairs_are_pooled():
    draw = Scripted(ttft_p95=(UNCLEAR, QUIET))
    outcome = run([metric()], draw)
    assert draw.asked == [(8, False), (4, False)]
    (result,) = outcome.results
    assert result.candidate_values == UNCLEAR * 2 + QUIET
    assert (result.n, outcome.pairs, outcome.looks, outcome.family.look) == (12, 12, 2, 2)


def test_only_failing_metrics_are_worth_more_pairs():
    for role in ("warn", "info"):
        draw = Scripted(ttft_p95=(UNCLEAR,))
        outcome = run([metric(role=role)], draw)
        assert draw.asked == [(8, False)]
        assert outcome.results[0].verdict is V.INCONCLUSIVE


def test_an_undecided_budget_is_worth_more_pairs():
    draw = Scripted(ttft_p95=(UNCLEAR, QUIET))
    outcome = run([metric(max_regression=None, max_value=1.0)], draw)
    assert outcome.results == []
    assert [(result.rule, result.n) for result in outcome.budgets] == [("budget", 12)]
    assert draw.asked == [(8, False), (4, False)]


def test_a_broken_budget_ends_the_measurement_at_the_first_look():
    draw = Scripted(ttft_p95=([1.2],), itl_p95=(UNCLEAR,))
    outcome = run([metric(max_regression=None, max_value=1.0), metric("itl_p95")], draw)
    assert draw.asked == [(8, False)]
    assert [result.verdict for result in outcome.budgets] == [V.BROKEN]
    assert outcome.budgets[0].p_adjusted == 1 / 256
    assert "budgets by themselves: Holm, exact sign test" in outcome.family.method


def test_budgets_share_the_alpha_of_a_look():
    """Seven budgets at 2.5%: 7/256 is above it after 8 pairs, 7/4096 below it after 12."""
    ids = [f"b{i}" for i in range(7)]
    draw = Scripted(**dict.fromkeys(ids, ([1.2],)))
    outcome = run([metric(id, max_regression=None, max_value=1.0) for id in ids], draw)
    assert draw.asked == [(8, False), (4, False)]
    assert [result.verdict for result in outcome.budgets] == [V.BROKEN] * 7


def test_without_an_extension_all_of_alpha_is_spent_at_one_look():
    """Six pairs in one direction have p = 1/64: below 5%, and below 2.5% too; five have 1/32, only below 5%."""
    worse = Scripted(ttft_p95=([1.2],))
    assert run([metric()], worse, pairs=5, max_pairs=5, confirm=0).results[0].verdict is V.REGRESSED
    assert worse.asked == [(5, False)]
    draw = Scripted(ttft_p95=([1.2],))
    outcome = run([metric()], draw, pairs=5, max_pairs=6, confirm=0)
    assert draw.asked == [(5, False), (1, False)]
    assert (outcome.results[0].verdict, outcome.results[0].p) == (V.REGRESSED, 1 / 64)


def test_a_regression_is_confirmed_on_fresh_pairs():
    draw = Scripted(ttft_p95=([1.2], [1.1]), itl_p95=(QUIET,))
    outcome = run([metric(), metric("itl_p95")], draw)
    assert draw.asked == [(8, False), (5, True)]
    first, other = outcome.results
    assert (first.verdict, first.ratio, first.n) == (V.REGRESSED, pytest.approx(1.2), 8)
    assert first.confirmation.confirmed
    assert (first.confirmation.ratio, first.confirmation.p) == (pytest.approx(1.1), 1 / 32)
    assert other.confirmation is None
    assert (outcome.pairs, outcome.confirm_pairs) == (8, 5)


@pytest.mark.parametrize("fresh", [QUIET, [1.04], [1.2, 1.2, 1.2, 1.2, 0.99], [0.8]])
def test_a_regression_that_fresh_pairs_do_not_show_is_inconclusive(fresh):
    """Nothing there; below the limit; one of five pairs the other way; the other way."""
    (result,) = run([metric()], Scripted(ttft_p95=([1.2], fresh))).results
    assert (result.verdict, result.reason) == (V.INCONCLUSIVE, NOT_CONFIRMED)
    assert not result.confirmation.confirmed
    assert overall([result], [], STRICT)[:2] == (GateVerdict.INCONCLUSIVE, 3)


def test_the_floor_must_be_met_on_fresh_pairs_too():
    (result,) = run([metric(floor=0.15)], Scripted(ttft_p95=([1.2], [1.1]))).results
    assert (result.verdict, result.reason) == (V.INCONCLUSIVE, NOT_CONFIRMED)


def test_confirmation_is_uncorrected():
    """Five fresh pairs reach 1/32: enough for one metric, not for Holm over four."""
    ids = ["ttft_p95", "itl_p95", "tpot_p50", "e2e_p50"]
    outcome = run([metric(id) for id in ids], Scripted(**dict.fromkeys(ids, ([1.2],))))
    assert [result.verdict for result in outcome.results] == [V.REGRESSED] * 4
    assert holm([1 / 32] * 4)[0] > 0.05


class Losing(Scripted):
    """Leaves out, or leaves without a value, the first `lost` confirming pairs."""

    def __init__(self, lost: int, *, excluded: bool, **factors: tuple[Sequence[float], ...]) -> None:
        super().__init__(**factors)
        self.lost, self.excluded = lost, excluded

    def __call__(self, count: int, confirming: bool) -> Values:
        drawn = super().__call__(count, confirming)
        lost = min(count, self.lost) if confirming else 0
        self.lost -= lost
        for before, after in drawn.values():
            after[:lost] = [None] * lost
            if self.excluded:
                del before[:lost], after[:lost]
        return drawn


@pytest.mark.parametrize("excluded", [True, False])
@pytest.mark.parametrize("lost", [1, 2, 5])
def test_fresh_pairs_that_do_not_count_are_replaced(excluded, lost):
    draw = Losing(lost, excluded=excluded, ttft_p95=([1.2],))
    outcome = run([metric()], draw)
    assert draw.asked == [(8, False), (5, True), (lost, True)]
    (result,) = outcome.results
    assert result.verdict is V.REGRESSED
    assert (result.confirmation.pairs, result.confirmation.p, result.confirmation.confirmed) == (5, 1 / 32, True)


@pytest.mark.parametrize("excluded", [True, False])
def test_at_most_as_many_pairs_replace_and_then_there_are_too_few(excluded):
    draw = Losing(6, excluded=excluded, ttft_p95=([1.2],))
    (result,) = run([metric()], draw).results
    assert sum(count for count, confirming in draw.asked if confirming) == 10
    assert (result.verdict, result.reason) == (V.INCONCLUSIVE, TOO_FEW_FRESH)
    assert "too few fresh pairs" in TOO_FEW_FRESH
    assert (result.confirmation.pairs, result.confirmation.p) == (4, 1 / 16)
    never = run([metric()], Losing(99, excluded=excluded, ttft_p95=([1.2],))).results[0]
    assert (never.reason, never.confirmation.pairs) == (TOO_FEW_FRESH, 0)


def test_a_fall_to_zero_is_confirmed_and_named():
    draw = Scripted(goodput=([0.0],))
    outcome = run([metric("goodput", direction="higher")], draw)
    assert draw.asked == [(8, False), (5, True)]
    verdict, code, headline = overall(outcome.results, [], STRICT)
    assert (verdict, code) == (GateVerdict.REGRESSED, 1)
    assert headline == "Label of goodput fell to 0 in 8 of 8 pairs (limit 5.0%)"


def test_no_confirmation_when_none_is_asked_for():
    draw = Scripted(ttft_p95=([1.2],))
    (result,) = run([metric()], draw, confirm=0).results
    assert draw.asked == [(8, False)]
    assert (result.verdict, result.confirmation) == (V.REGRESSED, None)


def test_one_regression_decides_and_what_is_undecided_stays_so():
    draw = Scripted(ttft_p95=([1.2],), itl_p95=(UNCLEAR,))
    outcome = run([metric(), metric("itl_p95")], draw)
    assert draw.asked == [(8, False), (5, True)]
    assert [result.verdict for result in outcome.results] == [V.REGRESSED, V.INCONCLUSIVE]
    assert overall(outcome.results, [], STRICT)[2] == "Label of ttft_p95 +20.0% (limit 5.0%); 1 not decided"


def test_a_regression_seen_only_at_the_second_look_is_confirmed_too():
    """Eight failing metrics: 8/256 is above 2.5% at the first look, 8/4096 is not at the second."""
    ids = [f"m{i}" for i in range(8)]
    draw = Scripted(m0=([1.2],), **dict.fromkeys(ids[1:], (QUIET,)))
    outcome = run([metric(id) for id in ids], draw)
    assert draw.asked == [(8, False), (4, False), (5, True)]
    assert outcome.results[0].verdict is V.REGRESSED
    assert outcome.results[0].p_adjusted == 8 / 4096
    assert outcome.family.size == 8


def test_counts_that_differ_fail_without_confirmation():
    draw = Scripted(output_tokens_total=([2.0],), ttft_p95=(UNCLEAR,))
    outcome = run([metric("output_tokens_total", "exact", None), metric()], draw)
    assert draw.asked == [(8, False)]
    assert outcome.results[0].verdict is V.REGRESSED
    assert overall(outcome.results, [], STRICT)[1] == 1


def test_a_warning_needs_no_confirmation_and_never_fails():
    draw = Scripted(ttft_p95=([1.2],), itl_p95=(QUIET,))
    outcome = run([metric(role="warn"), metric("itl_p95")], draw)
    assert draw.asked == [(8, False)]
    assert outcome.results[0].verdict is V.REGRESSED
    assert outcome.family.size == 1
    verdict, code, headline = overall(outcome.results, [], STRICT)
    assert (verdict, code) == (GateVerdict.PASSED, 0)
    assert headline == "1 of 1 limits that may fail hold; 1 warned about"


def test_values_that_stay_away_are_inconclusive():
    def draw(count: int, confirming: bool) -> Values:
        return {"ttft_p95": ([1.0] * count, [None] * count)}

    outcome = run_procedure([metric()], DesignPolicy(), POLICY, draw)
    assert outcome.results[0].verdict is V.INCONCLUSIVE
    for exit_policy in (STRICT, ExitPolicy(inconclusive=0)):
        assert overall(outcome.results, [], exit_policy)[:2] == (GateVerdict.NOT_COMPARABLE, 4)


def test_a_metric_that_was_not_drawn_is_an_error():
    with pytest.raises(KeyError):
        run([metric("itl_p95")], Scripted(ttft_p95=(QUIET,)))


@pytest.mark.parametrize(("pairs", "family"), [(5, 1), (8, 12), (12, 8)])
def test_the_smallest_p_is_holms_of_one_metric_that_got_worse_in_every_pair(pairs, family):
    assert smallest_adjusted_p(pairs, family) == holm([0.5**pairs] + [1.0] * (family - 1))[0]


def problems(count: int, **design: Any) -> list[str]:
    return design_problems([metric(f"m{i}") for i in range(count)], DesignPolicy(**design), POLICY)


def test_a_family_too_large_for_the_pairs_is_a_problem_of_the_design():
    """The specification: 5 pairs gate one metric, 8 pairs up to 12, or up to 6 when alpha is split over two looks."""
    assert problems(1, pairs=5, max_pairs=5) == []
    assert problems(12, pairs=8, max_pairs=8) == []
    assert problems(6, pairs=7, max_pairs=8) == []
    for count, design in ((2, (5, 5)), (13, (8, 8)), (7, (7, 8))):
        (problem,) = problems(count, pairs=design[0], max_pairs=design[1])
        assert f"{count} metrics" in problem
    (problem,) = problems(13, pairs=8, max_pairs=8)
    assert problems(13, pairs=8, max_pairs=8 + 1) != [problem]
    assert "max_pairs to 9" in problem
    assert problems(13, pairs=9, max_pairs=9) == []
    assert problems(102, pairs=8, max_pairs=12) == []
    assert "max_pairs to 13" in problems(103, pairs=8, max_pairs=12)[0]


def test_only_changes_that_may_fail_count_in_the_family():
    others = [metric(f"w{i}", role="warn") for i in range(20)] + [metric("n", "exact", None)]
    others.append(metric("b", max_regression=None, max_value=1.0))
    others += [metric(f"b{i}", role="warn", max_regression=None, max_value=1.0) for i in range(20)]
    others += [metric(f"c{i}", "exact", None, max_value=1.0) for i in range(20)]
    assert design_problems([metric(), *others], DesignPolicy(pairs=5, max_pairs=5), POLICY) == []


def test_budgets_too_many_for_the_pairs_are_a_problem_of_the_design():
    def found(count: int, pairs: int, **limits: float) -> list[str]:
        limits = limits or {"max_value": 1.0}
        budgets = [metric(f"b{i}", max_regression=None, **limits) for i in range(count)]
        return design_problems(budgets, DesignPolicy(pairs=pairs, max_pairs=pairs), POLICY)

    assert found(12, 8) == found(1, 5) == found(6, 8, min_value=0.0, max_value=1.0) == []
    assert "13 budgets" in found(13, 8)[0]
    assert "max_pairs to 9" in found(13, 8)[0]
    assert "max_pairs to 6" in found(2, 5)[0]
    assert "max_pairs to 6" in found(1, 5, min_value=0.0, max_value=1.0)[0]


def test_designs_that_can_decide_nothing_are_problems():
    assert any("below pairs" in problem for problem in problems(1, pairs=8, max_pairs=6))
    assert any("nothing could pass" in problem for problem in problems(1, pairs=4, max_pairs=4))
    assert any("confirm is 4" in problem for problem in problems(1, confirm=4))
    assert problems(1, confirm=0) == problems(1) == []


def result(verdict: MetricVerdict, label: str = "TTFT, p95", **fields: Any) -> MetricResult:
    defaults = {"metric": "m", "unit": "s", "direction": "lower", "role": "fail", "kind": "timing", "limit": 0.05}
    defaults |= {"baseline": 1.0, "candidate": 1.0}
    return MetricResult(**{**defaults, "rule": "regression", "label": label, "verdict": verdict, **fields})


def change(outcome: str) -> DiagnosisChange:
    return DiagnosisChange(
        question=Question.PREFIX_REDUNDANCY,
        technique="prefix_caching",
        title="prefix caching stopped paying",
        kind="worse",
        before="recommended",
        after="does not pay",
        text="It did, and does not.",
        outcome=outcome,
    )


BLIND = {"baseline": None, "candidate": None}
FAILS = result(V.REGRESSED, ratio=1.102)
OPEN = result(V.INCONCLUSIVE, label="ITL, p95", ratio=1.03)
PASSES = result(V.PASS, label="tokens", ratio=1.01)


@pytest.mark.parametrize(
    ("results", "changes", "verdict", "code"),
    [
        ([PASSES], [], GateVerdict.PASSED, 0),
        ([PASSES, FAILS, OPEN], [], GateVerdict.REGRESSED, 1),
        ([PASSES, OPEN], [], GateVerdict.INCONCLUSIVE, 3),
        ([result(V.BROKEN, rule="budget", candidate=0.4, max_value=0.3)], [], GateVerdict.REGRESSED, 1),
        ([], [], GateVerdict.NOT_COMPARABLE, 4),
        ([PASSES], ["fail"], GateVerdict.REGRESSED, 1),
        ([PASSES], ["inconclusive"], GateVerdict.INCONCLUSIVE, 3),
        ([PASSES], ["warn", "info"], GateVerdict.PASSED, 0),
        ([], ["fail"], GateVerdict.REGRESSED, 1),
        ([], ["inconclusive"], GateVerdict.NOT_COMPARABLE, 4),
        ([result(V.REGRESSED, role="warn", ratio=2.0)], [], GateVerdict.PASSED, 0),
        ([result(V.INCONCLUSIVE, role="warn")], [], GateVerdict.PASSED, 0),
        ([result(V.REGRESSED, role="info", ratio=2.0)], [], GateVerdict.PASSED, 0),
        ([result(V.ADVISORY)], [], GateVerdict.PASSED, 0),
        ([result(V.ADVISORY, **BLIND)], [], GateVerdict.NOT_COMPARABLE, 4),
        ([result(V.PASS, candidate=None)], [], GateVerdict.NOT_COMPARABLE, 4),
        ([result(V.INCONCLUSIVE, baseline=None), result(V.INCONCLUSIVE, **BLIND)], [], GateVerdict.NOT_COMPARABLE, 4),
        ([result(V.INCONCLUSIVE, rule="budget", **BLIND)], [], GateVerdict.NOT_COMPARABLE, 4),
        ([result(V.PASS, rule="budget", baseline=None)], [], GateVerdict.PASSED, 0),
        ([PASSES, result(V.INCONCLUSIVE, **BLIND)], [], GateVerdict.INCONCLUSIVE, 3),
        ([result(V.INCONCLUSIVE, **BLIND)], ["fail"], GateVerdict.REGRESSED, 1),
    ],
)
def test_verdict_and_exit_code(results, changes, verdict, code):
    found = overall(results, [change(outcome) for outcome in changes], STRICT)
    assert found[:2] == (verdict, code)


def test_an_inconclusive_gate_exits_0_only_where_the_policy_says_so():
    assert overall([OPEN], [], ExitPolicy(inconclusive=0))[:2] == (GateVerdict.INCONCLUSIVE, 0)
    assert overall([OPEN, FAILS], [], ExitPolicy(inconclusive=0))[1] == 1
    assert overall([], [], ExitPolicy(inconclusive=0))[1] == 4
    assert overall([result(V.INCONCLUSIVE, **BLIND)], [], ExitPolicy(inconclusive=0))[1] == 4


def test_the_headline_names_what_decided():
    def headline(*results: MetricResult, changes: Sequence[DiagnosisChange] = ()) -> str:
        return overall(results, changes, STRICT)[2]

    assert headline(FAILS) == "TTFT, p95 +10.2% (limit 5.0%)"
    assert headline(PASSES, changes=[change("fail")]) == "Prefix caching stopped paying (worse)"
    assert headline(OPEN) == "ITL, p95 could not be decided"
    many = headline(*[result(V.REGRESSED, label=name, ratio=1.1) for name in "abcde"])
    assert many.endswith("c +10.0% (limit 5.0%) and 2 more")
    assert "0 of 1" in headline(result(V.ADVISORY))
    assert "1 only shown" in headline(result(V.ADVISORY))
    improved = result(V.IMPROVED, ratio=0.9)
    assert headline(PASSES, improved) == "2 of 2 limits that may fail hold; 1 improved"
    counts = result(V.REGRESSED, label="output tokens", rule="exact", kind="exact", limit=None)
    assert headline(counts) == "Output tokens differs"
    assert headline(result(V.REGRESSED, ratio=1e300)) == "TTFT, p95 1e+300 times (limit 5.0%)"


def test_the_headline_names_the_budget_that_is_broken():
    policy = MetricPolicy(id="hit_rate", min_value=0.5, max_value=0.9)

    def headline(value: float) -> str:
        broken = judge_budget(policy, "hit rate", "share", "higher", [value] * 8)
        return overall([broken], [], STRICT)[2]

    assert headline(0.3) == "Hit rate 0.3 share (limit 0.5)"
    assert headline(0.95) == "Hit rate 0.95 share (limit 0.9)"


def test_the_geometric_mean_is_of_harm():
    """Half the throughput is harm 2, half the latency is harm 1/2, so together no change; 8 more makes 8^(1/3)."""
    halved = [result(V.REGRESSED, ratio=0.5, direction="higher"), result(V.IMPROVED, ratio=0.5)]
    assert geometric_mean(halved) == pytest.approx(1.0)
    assert geometric_mean([*halved, result(V.REGRESSED, ratio=8.0)]) == pytest.approx(2.0)
    assert geometric_mean([result(V.BROKEN, rule="budget"), result(V.INCONCLUSIVE)]) is None
    assert geometric_mean([]) is None
    assert geometric_mean([*halved, result(V.REGRESSED, ratio=0.0, direction="higher")]) == pytest.approx(1.0)


def test_pooling_uses_the_values_of_both_looks():
    rng = np.random.default_rng(0)
    looks = [rng.uniform(0.9, 1.2, 8).tolist(), rng.uniform(0.9, 1.2, 4).tolist()]
    (pooled,) = run([metric()], Scripted(ttft_p95=(looks[0], looks[1]))).results
    logs = np.log([*looks[0], *looks[1]])
    walsh = [(a + b) / 2 for i, a in enumerate(logs) for b in logs[i:]]
    assert pooled.ratio == pytest.approx(math.exp(np.median(walsh)))

"""Three-valued conditions: truth tables by hand, and random trees against every value the intervals allow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferdoc.evidence import Basis, Interval, Objective, Quantity, Truth
from inferdoc.rules.conditions import View, compare, evaluate
from inferdoc.rules.schema import Condition

YES, NO, UNDECIDED = Truth.YES, Truth.NO, Truth.UNDECIDED
INTERVALS = {YES: (6.0, 7.0), NO: (1.0, 2.0), UNDECIDED: (4.0, 6.0)}


def quantity(id: str, value: float | None, interval: tuple[float, float] | None = None, **more: Any) -> Quantity:
    between = Interval(low=interval[0], high=interval[1], method="test") if interval else None
    return Quantity(id=id, label=id, value=value, unit="", basis=Basis.MEASURED, interval=between, **more)


def view(quantities: dict[str, Quantity], objective: Objective = Objective.LATENCY, slo: tuple[str, ...] = ()) -> View:
    return View(
        quantity=lambda id: quantities.get(id) or quantity(id, None, reason="not there"),
        threshold=lambda condition: (float(condition.threshold), condition.source or ""),
        objective=objective,
        slo_metrics=slo,
    )


def leaf(id: str, threshold: float = 5.0, kind: str = "at_least") -> dict[str, Any]:
    return {"measure": id, kind: threshold, "source": "inferdoc: judgement, because it is a test"}


def truth_of(condition: dict[str, Any], where: View) -> Truth:
    return evaluate(Condition.model_validate(condition), where).truth


@pytest.mark.parametrize(
    ("value", "interval", "at_least", "below"),
    [
        (5.0, (5.0, 9.0), YES, NO),
        (9.0, (5.0, 9.0), YES, NO),
        (4.0, (1.0, 4.9), NO, YES),
        (4.0, (1.0, 5.0), UNDECIDED, UNDECIDED),
        (7.0, (4.0, 9.0), UNDECIDED, UNDECIDED),
        (5.0, None, YES, NO),
        (4.9, None, NO, YES),
        (None, None, UNDECIDED, UNDECIDED),
    ],
)
def test_a_comparison_with_five_is_decided_only_when_the_whole_interval_agrees(
    value: float | None, interval: tuple[float, float] | None, at_least: Truth, below: Truth
) -> None:
    measured = quantity("a.b", value, interval)
    assert compare(measured, at_least=5.0) is at_least
    assert compare(measured, below=5.0) is below


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (quantity("a.b.gain", 9.0), UNDECIDED),
        (quantity("a.b.gain", 9.0, (6.0, 12.0)), YES),
        (quantity("a.b.gain", 9.0, (6.0, 12.0), reason="only 4 pairs"), UNDECIDED),
        (quantity("a.b.gain", 9.0, exact=True), YES),
        (quantity("a.b.again", 9.0), YES),
    ],
)
def test_a_paired_effect_without_an_interval_or_with_a_reason_is_undecided(gain: Quantity, expected: Truth) -> None:
    assert compare(gain, at_least=5.0) is expected


def test_an_exact_quantity_compares_as_a_point_even_beside_an_interval() -> None:
    assert compare(quantity("a.b", 6.0, (1.0, 9.0), exact=True), at_least=5.0) is YES


@pytest.mark.parametrize(
    ("first", "second", "conjunction", "disjunction"),
    [
        (YES, YES, YES, YES),
        (YES, UNDECIDED, UNDECIDED, YES),
        (YES, NO, NO, YES),
        (UNDECIDED, UNDECIDED, UNDECIDED, UNDECIDED),
        (UNDECIDED, NO, NO, UNDECIDED),
        (NO, NO, NO, NO),
    ],
)
def test_all_and_any_follow_kleene(first: Truth, second: Truth, conjunction: Truth, disjunction: Truth) -> None:
    where = view({id: quantity(id, 5.5, INTERVALS[truth]) for id, truth in (("x.a", first), ("x.b", second))})
    for ids in (("x.a", "x.b"), ("x.b", "x.a")):
        parts = [leaf(id) for id in ids]
        assert truth_of({"all": parts}, where) is conjunction
        assert truth_of({"any": parts}, where) is disjunction


@pytest.mark.parametrize(("inner", "negation", "shown"), [(YES, NO, YES), (NO, YES, NO), (UNDECIDED, UNDECIDED, NO)])
def test_unless_negates_and_shown_counts_the_undecided_as_no(inner: Truth, negation: Truth, shown: Truth) -> None:
    where = view({"x.a": quantity("x.a", 5.0, INTERVALS[inner])})
    assert truth_of({"unless": leaf("x.a")}, where) is negation
    assert truth_of({"shown": leaf("x.a")}, where) is shown


def test_known_objective_and_slo_are_never_undecided() -> None:
    where = view({"x.a": quantity("x.a", 0.0)}, Objective.COST, ("tpot_p95",))
    assert truth_of({"known": "x.a"}, where) is YES
    assert truth_of({"known": "x.b"}, where) is NO
    assert truth_of({"objective": ["cost", "latency"]}, where) is YES
    assert truth_of({"objective": ["latency"]}, where) is NO
    assert truth_of({"slo": "tpot"}, where) is YES
    assert truth_of({"slo": "ttft"}, where) is NO


def test_an_unknown_quantity_carries_its_reason() -> None:
    outcome = evaluate(Condition.model_validate({"unless": leaf("x.gone")}), view({}))
    assert outcome.truth is UNDECIDED
    assert [unknown.reason for unknown in outcome.undecided()] == ["not there"]


def test_a_failed_all_names_only_the_parts_that_fail_it() -> None:
    where = view({"x.a": quantity("x.a", 9.0), "x.b": quantity("x.b", 1.0)})
    outcome = evaluate(Condition.model_validate({"all": [leaf("x.a"), leaf("x.b")]}), where)
    assert [part.fact.quantity.id for part in outcome.leaves] == ["x.b"]


def test_a_number_behind_another_objective_speaks_neither_way() -> None:
    where = view({"x.a": quantity("x.a", 1.0)}, Objective.LATENCY)
    outcome = evaluate(Condition.model_validate({"all": [{"objective": ["cost"]}, leaf("x.a")]}), where)
    assert (outcome.truth, outcome.leaves) == (NO, ())
    asked = evaluate(Condition.model_validate({"all": [{"objective": ["latency"]}, leaf("x.a")]}), where)
    assert (asked.truth, [part.fact.quantity.id for part in asked.leaves]) == (NO, ["x.a"])


Formula = Callable[[dict[str, float]], bool]


@st.composite
def trees(
    draw: st.DrawFn, depth: int = 3, place: str = "n"
) -> tuple[dict[str, Any], dict[str, tuple[float, float]], Formula]:
    """A condition in which every quantity stands once, its intervals, and the same condition over plain numbers."""
    kind = draw(st.sampled_from(["leaf", "all", "any", "unless"] if depth else ["leaf"]))
    if kind == "leaf":
        id = f"q.{place}"
        low = draw(st.integers(0, 6))
        threshold = draw(st.integers(0, 8))
        high = low + draw(st.integers(0, 3))
        if draw(st.booleans()):
            return leaf(id, threshold), {id: (low, high)}, lambda at: at[id] >= threshold
        return leaf(id, threshold, "below"), {id: (low, high)}, lambda at: at[id] < threshold
    if kind == "unless":
        inner, intervals, formula = draw(trees(depth=depth - 1, place=f"{place}0"))
        return {"unless": inner}, intervals, lambda at: not formula(at)
    parts = [draw(trees(depth=depth - 1, place=f"{place}{n}")) for n in range(draw(st.integers(1, 2)))]
    merged = {id: interval for _, intervals, _ in parts for id, interval in intervals.items()}
    formulas = [formula for _, _, formula in parts]
    join = all if kind == "all" else any
    return {kind: [condition for condition, _, _ in parts]}, merged, lambda at: join(f(at) for f in formulas)


@given(trees())
def test_a_condition_is_decided_exactly_when_every_value_in_the_intervals_gives_the_same_answer(
    tree: tuple[dict[str, Any], dict[str, tuple[float, float]], Formula],
) -> None:
    condition, intervals, formula = tree
    # A comparison is monotone in its quantity, so the ends of the interval show everything in between.
    ends = [dict(zip(intervals, values, strict=True)) for values in itertools.product(*intervals.values())]
    answers = {formula(at) for at in ends}
    expected = UNDECIDED if len(answers) == 2 else YES if answers == {True} else NO
    where = view({id: quantity(id, interval[0], interval) for id, interval in intervals.items()})
    assert truth_of(condition, where) is expected

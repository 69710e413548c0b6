"""Conditions in three values over intervals: yes, no, undecided.

A comparison is *yes* when every value the interval allows satisfies it, *no* when none does, otherwise *undecided*.
Exact quantities, and those that are no paired effect and have no interval, compare as points. A paired effect without
an interval (too few pairs), and any quantity without a value, is undecided. Connectives follow Kleene's strong logic:
``all`` is the least of its parts and ``any`` the greatest, in the order no < undecided < yes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from inferdoc.evidence import Fact, Objective, Quantity, Truth
from inferdoc.rules import wording
from inferdoc.rules.schema import Condition

_ORDER = {Truth.NO: 0, Truth.UNDECIDED: 1, Truth.YES: 2}
_NEGATION = {Truth.NO: Truth.YES, Truth.UNDECIDED: Truth.UNDECIDED, Truth.YES: Truth.NO}


@dataclass(frozen=True)
class View:
    """What a condition may look at.

    `quantity` answers for every id: one that is not in the evidence has no value and a reason.
    """

    quantity: Callable[[str], Quantity]
    threshold: Callable[[Condition], tuple[float, str]]
    objective: Objective
    slo_metrics: Collection[str]


@dataclass(frozen=True)
class Leaf:
    """A comparison that was looked at. `supports` is its truth as seen from the whole condition (negations applied)."""

    fact: Fact
    supports: Truth


@dataclass(frozen=True)
class Outcome:
    truth: Truth
    leaves: tuple[Leaf, ...] = ()

    def undecided(self) -> list[Quantity]:
        """Quantities that keep the condition undecided, each once."""
        found = {leaf.fact.quantity.id: leaf.fact.quantity for leaf in self.leaves if leaf.supports is Truth.UNDECIDED}
        return list(found.values())


def evaluate(condition: Condition, view: View) -> Outcome:
    """The truth of `condition` and every comparison under it."""
    if condition.measure is not None:
        return _measure(condition, condition.measure, view)
    if condition.all_ is not None:
        return _join([evaluate(part, view) for part in condition.all_], least=True)
    if condition.any_ is not None:
        return _join([evaluate(part, view) for part in condition.any_], least=False)
    if condition.unless is not None:
        inner = evaluate(condition.unless, view)
        leaves = tuple(replace(leaf, supports=_NEGATION[leaf.supports]) for leaf in inner.leaves)
        return Outcome(_NEGATION[inner.truth], leaves)
    if condition.shown is not None:
        inner = evaluate(condition.shown, view)
        decided = tuple(leaf for leaf in inner.leaves if leaf.supports is not Truth.UNDECIDED)
        return Outcome(Truth.YES if inner.truth is Truth.YES else Truth.NO, decided)
    if condition.known is not None:
        quantity = view.quantity(condition.known)
        truth = Truth.NO if quantity.value is None else Truth.YES
        return Outcome(truth, (Leaf(Fact(quantity=quantity, relation="known", outcome=truth), truth),))
    if condition.objective is not None:
        return Outcome(Truth.YES if view.objective in condition.objective else Truth.NO)
    prefix = condition.slo or ""
    return Outcome(Truth.YES if any(metric.startswith(prefix) for metric in view.slo_metrics) else Truth.NO)


def compare(quantity: Quantity, *, at_least: float | None = None, below: float | None = None) -> Truth:
    """Whether the quantity is at least `at_least`, or below `below` (exactly one is given)."""
    if quantity.value is None:
        return Truth.UNDECIDED
    low = high = quantity.value
    if not quantity.exact:
        if quantity.interval is not None:
            low, high = quantity.interval.low, quantity.interval.high
        elif wording.needs_interval(quantity):
            return Truth.UNDECIDED
        if wording.is_effect(quantity) and quantity.reason:
            return Truth.UNDECIDED
    if at_least is not None:
        return Truth.YES if low >= at_least else Truth.NO if high < at_least else Truth.UNDECIDED
    if below is not None:
        return Truth.YES if high < below else Truth.NO if low >= below else Truth.UNDECIDED
    raise ValueError("compare() needs at_least or below")


def _measure(condition: Condition, id: str, view: View) -> Outcome:
    quantity = view.quantity(id)
    threshold, source = view.threshold(condition)
    upward = condition.at_least is not None
    truth = compare(quantity, at_least=threshold) if upward else compare(quantity, below=threshold)
    fact = Fact(
        quantity=quantity,
        relation="at least" if upward else "below",
        threshold=threshold,
        threshold_source=source,
        outcome=truth,
    )
    return Outcome(truth, (Leaf(fact, truth),))


def _join(parts: list[Outcome], *, least: bool) -> Outcome:
    choose = min if least else max
    truth = choose((part.truth for part in parts), key=_ORDER.__getitem__)
    deciding = parts
    if least and truth is Truth.NO:
        # What fails an `all` is the parts that fail; the others neither speak for nor against it. Where one of those
        # is about the user's wishes (objective, slo), no number speaks either way.
        deciding = [part for part in parts if part.truth is Truth.NO]
        if any(not part.leaves for part in deciding):
            return Outcome(truth)
    return Outcome(truth, tuple(leaf for part in deciding for leaf in part.leaves))

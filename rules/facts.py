"""Which facts speak for a conclusion and which against it.

`Finding.evidence` holds what speaks for the conclusion, the undecided facts, and what the rule shows as context;
`Finding.against` holds what speaks against it. Each quantity is listed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from inferdoc.evidence import Conclusion, Fact, Quantity, Truth
from inferdoc.rules import wording
from inferdoc.rules.conditions import Leaf
from inferdoc.rules.loading import LEAST_GAIN, LEAST_LOSS, LoadedRule
from inferdoc.rules.reading import Reader


def sort_facts(
    loaded: LoadedRule, leaves: Iterable[Leaf], conclusion: Conclusion, reader: Reader, *, held_back: bool
) -> tuple[list[Fact], list[Fact]]:
    """The facts for and against `conclusion`. `held_back`: the run does not support what the leaves say."""
    evidence: dict[str, Fact] = {}
    against = {fact.quantity.id: fact for fact in _contrary_effects(loaded, conclusion, reader)}
    takes_sides = not held_back and conclusion not in (Conclusion.NOT_MEASURED, Conclusion.INCONCLUSIVE)
    for leaf in leaves:
        id = leaf.fact.quantity.id
        if leaf.supports is Truth.NO and takes_sides:
            against.setdefault(id, leaf.fact)
        else:
            evidence.setdefault(id, leaf.fact)
    # A quantity passes one condition and fails another: the failure is what a reader must see.
    evidence = {id: fact for id, fact in evidence.items() if id not in against}
    for id in (*(effect.gain for effect in loaded.rule.effects), *loaded.rule.shows):
        if id not in evidence and id not in against and reader.evidence.lookup(id) is not None:
            evidence[id] = Fact(quantity=reader.quantity(id), relation="shown")
    return list(evidence.values()), list(against.values())


def sure_gain(quantity: Quantity) -> float:
    """The gain that can be counted on: the low end of the interval; 1 (no gain) where there is nothing to count on."""
    if quantity.value is None:
        return 1.0
    if quantity.interval is not None and not quantity.exact:
        return quantity.interval.low
    return 1.0 if wording.is_effect(quantity) and not quantity.exact else quantity.value


def _contrary_effects(loaded: LoadedRule, conclusion: Conclusion, reader: Reader) -> Iterator[Fact]:
    """Metrics of the same comparisons that clearly move the other way."""
    gain, loss = (reader.pack.constants[name] for name in (LEAST_GAIN, LEAST_LOSS))
    for comparison in reader.comparisons(loaded):
        for metric in comparison.metrics:
            quantity = reader.quantity(f"{comparison.id}.{metric}.gain")
            if quantity.value is None or quantity.interval is None:
                continue
            if conclusion is Conclusion.RECOMMENDED and quantity.interval.high < loss.value:
                yield _decided(quantity, "below", loss.value, loss.source)
            if conclusion is Conclusion.DOES_NOT_PAY and quantity.interval.low >= gain.value:
                yield _decided(quantity, "at least", gain.value, gain.source)


def _decided(quantity: Quantity, relation: Literal["at least", "below"], threshold: float, source: str) -> Fact:
    return Fact(quantity=quantity, relation=relation, threshold=threshold, threshold_source=source, outcome=Truth.YES)

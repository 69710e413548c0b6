"""The user's own limit of what a technique may lose, kept in the evidence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from inferdoc.evidence import Basis, Conclusion, Quantity
from inferdoc.rules import diagnose, load_pack, wording


def short_of_memory(make: Any) -> Any:
    make.fits(1.2).known("quality.quantization.top1", 0.97).known("fit.more_kv_quantization", 1.5, exact=True)
    make.known("quality.quantization.perplexity_ratio", 1.02, (1.015, 1.025), unit="x")
    return make.known("quality.quantization.kl", 0.004, (0.003, 0.005), unit="nats")


@pytest.mark.parametrize(
    ("limit", "conclusion"),
    [(None, Conclusion.DOES_NOT_PAY), (0.03, Conclusion.RECOMMENDED), (0.02, Conclusion.INCONCLUSIVE)],
)
def test_the_limit_of_the_run_stands_in_for_the_packs(make: Any, limit: float | None, conclusion: Conclusion) -> None:
    evidence = short_of_memory(make).build()
    evidence.run.max_quality_loss = limit
    finding = next(f for f in diagnose(evidence, load_pack()).findings if f.rule_id == "quantization")
    assert finding.conclusion is conclusion
    facts = {fact.quantity.id: fact for fact in [*finding.evidence, *finding.against]}
    fact = facts["quality.quantization.perplexity_ratio"]
    assert fact.threshold == pytest.approx(1 + (limit or 0.01))
    assert ("--max-quality-loss" in (fact.threshold_source or "")) is (limit is not None)


def test_a_divergence_alone_can_be_too_much(make: Any) -> None:
    """exp(0.005) is 1.005: beyond a limit of 0.4%, though the perplexity of this text did not rise."""
    evidence = short_of_memory(make).known("quality.quantization.perplexity_ratio", 0.99, (0.98, 1.0)).build()
    evidence.quantities["quality.quantization.kl"].interval.low = 0.0045  # type: ignore[union-attr]
    evidence.run.max_quality_loss = 0.004
    finding = next(f for f in diagnose(evidence, load_pack()).findings if f.rule_id == "quantization")
    assert finding.conclusion is Conclusion.DOES_NOT_PAY


def test_the_shipped_divergence_belongs_to_the_shipped_loss() -> None:
    constants = load_pack().constants
    loss, divergence = constants["most_quality_loss"].value, constants["most_quality_divergence"].value
    assert divergence == pytest.approx(math.log(loss), abs=5e-6)


def test_a_text_can_name_what_a_quantity_is_called(make: Any) -> None:
    evidence = make.known("fit.quantization_scheme", 8.0).build()
    evidence.quantities["fit.quantization_scheme"].label = "int8_dynamic"
    text = wording.fill("{fit.quantization_scheme|label} weights", lambda id: evidence.quantities[id], {})
    assert text == "int8_dynamic weights"
    assert "has no label" in (wording.problem("least|label", {"least": 1.0}) or "")
    assert "has no note" in (wording.problem("least|note", {"least": 1.0}) or "")
    quantity = Quantity(id="a.b", label="A", value=1.0, unit="x", basis=Basis.TRACE, note="because of it")
    assert wording.fill("{a.b|label}: {a.b|note}", lambda _: quantity, {}) == "A: because of it"

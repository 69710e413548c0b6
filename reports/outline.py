"""What a report tells, in which order: one outline, from which the terminal, the HTML and the Markdown are written.

Nothing is concluded here. Findings, comparisons and quantities are only put where a reader looks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferdoc.evidence import (
    Basis,
    Comparison,
    Conclusion,
    Diagnosis,
    Environment,
    Evidence,
    Finding,
    PlanStep,
    ProbeResult,
    Quantity,
    Question,
    QuestionAnswer,
    Recommendation,
    Series,
    Slo,
)
from inferdoc.gate.result import GateResult
from inferdoc.reports import formatting
from inferdoc.reports.gate_outline import GateOutline, gate_outline

OPEN_CARDS = 5
"""Recommendations shown as open cards; the rest are folded."""

Standing = Literal["met", "missed", "undecided", "not known"]

_KEY_NUMBERS = (
    "fit.weights_bytes",
    "fit.kv_capacity_tokens",
    "fit.kv_demand_p99_tokens",
    "fit.kv_headroom",
    "prefix.ideal_hit_rate",
    "prefix.measured_hit_rate",
    "variance.output_cv",
    "variance.static_waste",
    "fragmentation.internal_waste_full",
    "latency.tpot_b1",
    "latency.tpot_at_load",
    "latency.roofline_b1",
    "disagg.stall_ratio_chunked",
    "disagg.replicas_needed",
)
_DEVICE_FIELDS = ("gpu", "processor")
_WHY = (Conclusion.RECOMMENDED, Conclusion.DOES_NOT_PAY, Conclusion.INCONCLUSIVE)


@dataclass(frozen=True)
class Problem:
    """Something that limits what this run can say, told before anything else."""

    severity: Literal["serious", "caution"]
    text: str


@dataclass(frozen=True)
class KeyNumber:
    """A row of the key numbers. `limit` is a service-level objective of the user.

    Thresholds of rules are not limits: they stand with the finding that they decide.
    """

    label: str
    quantity: Quantity
    limit: str | None = None
    standing: Standing | None = None


@dataclass(frozen=True)
class Block:
    """A finding with the comparisons that belong to it; those printed under an earlier finding are only named."""

    finding: Finding
    comparisons: tuple[Comparison, ...]
    elsewhere: tuple[Comparison, ...]

    @property
    def short(self) -> Comparison | None:
        """Of the comparisons with too few pairs for an interval, the one with the fewest."""
        few = [c for c in (*self.comparisons, *self.elsewhere) if c.pairs < formatting.PAIRS_NEEDED]
        return min(few, key=lambda comparison: comparison.pairs, default=None)


@dataclass(frozen=True)
class Outline:
    """The parts of a report in the order in which they are read."""

    problems: tuple[Problem, ...]
    key_numbers: tuple[KeyNumber, ...]
    cards: tuple[Recommendation, ...]
    more_cards: tuple[Recommendation, ...]
    answers: tuple[QuestionAnswer, ...]
    why: tuple[Block, ...]
    other_comparisons: tuple[Comparison, ...]
    """Measured, but named by no finding."""
    series: tuple[Series, ...]
    not_needed: tuple[Block, ...]
    not_measured: tuple[Finding, ...]
    unfinished: tuple[ProbeResult, ...]
    dropped: tuple[PlanStep, ...]
    gate: GateOutline | None = None
    """The comparison with a baseline, where one is given."""

    @property
    def has_limits(self) -> bool:
        """Whether the user gave an objective: without one the key numbers have no limit and no status."""
        return any(row.limit for row in self.key_numbers)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """All comparisons, in the order in which the report shows them."""
        placed = [comparison for block in self.why + self.not_needed for comparison in block.comparisons]
        return (*placed, *self.other_comparisons)


def outline(evidence: Evidence, diagnosis: Diagnosis) -> Outline:
    """Put everything that was measured and concluded in its place."""
    ranks = {card.finding: card.rank for card in diagnosis.recommendations}
    told = sorted(
        (finding for finding in diagnosis.findings if finding.conclusion in _WHY),
        key=lambda finding: (_WHY.index(finding.conclusion), ranks.get(finding.rule_id, len(ranks) + 1)),
    )
    placed: set[str] = set()
    why = tuple(_block(finding, evidence, placed) for finding in told)
    not_needed = tuple(
        _block(finding, evidence, placed)
        for finding in diagnosis.findings
        if finding.conclusion is Conclusion.NOT_NEEDED
    )
    cards = sorted(diagnosis.recommendations, key=lambda card: card.rank)
    return Outline(
        problems=tuple(_problems(evidence, diagnosis)),
        key_numbers=(*_slo_numbers(evidence), *_key_numbers(evidence)),
        cards=tuple(cards[:OPEN_CARDS]),
        more_cards=tuple(cards[OPEN_CARDS:]),
        answers=tuple(_answer(question, diagnosis) for question in Question),
        why=why,
        other_comparisons=tuple(c for id, c in evidence.comparisons.items() if id not in placed),
        series=tuple(sorted(evidence.series, key=lambda series: series.question.number)),
        not_needed=not_needed,
        not_measured=tuple(f for f in diagnosis.findings if f.conclusion is Conclusion.NOT_MEASURED),
        unfinished=tuple(probe for probe in evidence.probes if probe.status != "measured"),
        dropped=tuple(step for step in evidence.plan if step.dropped),
        gate=gate_outline(GateResult.model_validate(diagnosis.comparison)) if diagnosis.comparison else None,
    )


def device_name(environment: Environment) -> str:
    """The name of the device that was measured, for the header strip."""
    for name in _DEVICE_FIELDS:
        field = environment.fields.get(name)
        if field is not None and field.state == "value":
            return formatting.environment_value(field)
    return formatting.UNKNOWN


def metric_name(metric: str) -> str:
    """``TTFT p95`` for ``ttft_p95``."""
    first, _, rest = metric.partition("_")
    shown = first.upper() if first in ("ttft", "tpot", "itl", "e2e") else first
    return f"{shown} {rest.replace('_', ' ')}".strip()


def lead_metric(comparison: Comparison, finding: Finding | None) -> str | None:
    """The metric whose runs are drawn: the one that the finding quotes, else the first that was measured."""
    measured = [name for name, paired in comparison.metrics.items() if {*paired.off, *paired.on} - {None}]
    facts = [*finding.evidence, *finding.against] if finding else []
    quoted = {fact.quantity.id for fact in facts}
    return next((name for name in measured if f"{comparison.id}.{name}.gain" in quoted), next(iter(measured), None))


def _block(finding: Finding, evidence: Evidence, placed: set[str]) -> Block:
    quoted = {fact.quantity.id for fact in (*finding.evidence, *finding.against)}
    belonging = [
        comparison
        for id, comparison in evidence.comparisons.items()
        if comparison.technique == finding.technique or any(name.startswith(f"{id}.") for name in quoted)
    ]
    fresh = tuple(comparison for comparison in belonging if comparison.id not in placed)
    elsewhere = tuple(comparison for comparison in belonging if comparison.id in placed)
    placed.update(comparison.id for comparison in fresh)
    return Block(finding, fresh, elsewhere)


def _problems(evidence: Evidence, diagnosis: Diagnosis) -> list[Problem]:
    run, validity = diagnosis.run, diagnosis.validity
    problems: list[Problem] = []
    if run.status == "failed":
        problems.append(Problem("serious", "The run failed: what follows is only what was measured before."))
    if run.status == "partial":
        problems.append(Problem("caution", "The run is partial: what is missing is listed as not measured."))
    problems += [Problem("serious", error) for error in run.errors]
    if validity.status != "valid":
        severity: Literal["serious", "caution"] = "serious" if validity.status == "invalid" else "caution"
        failed = [check for check in validity.checks if check.passed is False]
        problems += [Problem(severity, f"{check.name}: {check.text}") for check in failed]
        if not failed:
            problems.append(Problem(severity, f"This measurement is {validity.status}."))
    for comparison in evidence.comparisons.values():
        if comparison.failure:
            problems.append(Problem("caution", f"{comparison.label}: no result, {comparison.failure}"))
        elif comparison.overloaded:
            arms = " and ".join(comparison.overloaded)
            problems.append(Problem("caution", f"{comparison.label}: overloaded with the technique {arms}."))
    if evidence.workload.length_scale != 1.0:
        scale = formatting.scale_text(evidence.workload.length_scale)
        problems.append(
            Problem("caution", f"Scaled workload: lengths are {scale} of the trace's, and so is every time.")
        )
    return problems


def _answer(question: Question, diagnosis: Diagnosis) -> QuestionAnswer:
    for answer in diagnosis.answers:
        if answer.question is question:
            return answer
    return QuestionAnswer(question=question, conclusion=Conclusion.NOT_MEASURED, text="No rule answered this question.")


def _slo_numbers(evidence: Evidence) -> list[KeyNumber]:
    """Every arm that was measured in an open loop, against each objective of the user."""
    rows = []
    for slo in evidence.run.slo:
        arms = [
            (f"{paired.label}: {comparison.label}, {arm}", quantity)
            for comparison in evidence.comparisons.values()
            if comparison.load != "saturated" and (paired := comparison.metrics.get(slo.metric))
            for arm, quantity in (("off", paired.off_estimate), ("on", paired.on_estimate))
        ]
        limit = f"at most {formatting.number(slo.limit, slo.unit, exact=True)}"
        rows += [
            KeyNumber(label, quantity, limit, _standing(quantity, slo))
            for label, quantity in arms or [(metric_name(slo.metric), _unmeasured(slo))]
        ]
    return rows


def _unmeasured(slo: Slo) -> Quantity:
    reason = "no open-loop run measured it"
    return Quantity(id=slo.metric, label=slo.metric, value=None, unit=slo.unit, basis=Basis.MEASURED, reason=reason)


def _standing(quantity: Quantity, slo: Slo) -> Standing:
    if quantity.value is None:
        return "not known"
    low, high = (
        (quantity.interval.low, quantity.interval.high) if quantity.interval else (quantity.value, quantity.value)
    )
    return "met" if high <= slo.limit else "missed" if low > slo.limit else "undecided"


def _key_numbers(evidence: Evidence) -> list[KeyNumber]:
    """The numbers a reader asks for first; those that older evidence lacks are left out."""
    found = (evidence.lookup(id) for id in _KEY_NUMBERS)
    return [KeyNumber(quantity.label, quantity) for quantity in found if quantity is not None]

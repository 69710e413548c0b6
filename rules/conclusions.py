"""From evidence to one rule's finding.

A rule's cases are read in order. A conclusion is drawn only when every reading of the undecided conditions gives the
same one: the conclusions of all cases up to the first that surely holds, leaving out those that surely do not, must
agree. If they differ, the finding is *inconclusive* where something was measured, else *not measured*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from inferdoc.evidence import Basis, Comparison, Conclusion, Finding, Quantity, Truth
from inferdoc.rules import wording
from inferdoc.rules.conditions import Leaf, Outcome, evaluate
from inferdoc.rules.facts import sort_facts, sure_gain
from inferdoc.rules.loading import HIGH_SEVERITY_GAIN, MEDIUM_SEVERITY_GAIN, SMALL_SLICE, LoadedRule
from inferdoc.rules.reading import NOT_RUN, Reader
from inferdoc.rules.schema import Case, Technique

Severity = Literal["high", "medium", "low", "none"]
Status = Literal["failed", "warned", "passed", "not_applicable", "unknown", "error"]
Confidence = Literal["high", "medium", "low"]

_STATUS: dict[Conclusion, Status] = {
    Conclusion.RECOMMENDED: "failed",
    Conclusion.DOES_NOT_PAY: "passed",
    Conclusion.NOT_NEEDED: "not_applicable",
    Conclusion.INCONCLUSIVE: "unknown",
    Conclusion.NOT_MEASURED: "unknown",
}
_MEASURED = (Conclusion.RECOMMENDED, Conclusion.DOES_NOT_PAY)
_LIMITED, _SCALED, _CACHED = "engine-limited", "scaled workload", "cache-resident: no MBU"


@dataclass(frozen=True)
class Concluded:
    """A finding with the rule and the case it comes from; no case where the cases left it open."""

    finding: Finding
    loaded: LoadedRule
    case: Case | None
    bottleneck: str | None


@dataclass(frozen=True)
class _Draft:
    """A conclusion before the run's circumstances are taken into account."""

    conclusion: Conclusion
    text: str
    leaves: tuple[Leaf, ...] = ()
    case: Case | None = None


def conclude(loaded: LoadedRule, reader: Reader) -> Concluded:
    """What one rule says about the evidence."""
    rule = loaded.rule
    technique = reader.pack.techniques[rule.technique]
    draft = _unmet(loaded, reader) or _choose(loaded, reader)
    marks = _marks(loaded, draft, reader)
    conclusion, text = _circumstances(draft, technique, marks, reader)
    held_back = conclusion is not draft.conclusion
    evidence, against = sort_facts(loaded, draft.leaves, conclusion, reader, held_back=held_back)
    case = None if held_back else draft.case
    finding = Finding(
        rule_id=rule.id,
        rule_version=rule.version,
        question=loaded.question,
        technique=rule.technique,
        title=rule.title,
        conclusion=conclusion,
        status="warned" if case is not None and case.warn else _STATUS[conclusion],
        severity=_severity(loaded, case, conclusion, reader),
        confidence=_confidence(draft, conclusion, marks, reader),
        text=text,
        evidence=evidence,
        against=against,
        refuted_by=_refutation(loaded, case, conclusion),
        marks=marks,
        rule_source=loaded.source,
    )
    bottleneck = reader.fill(case.bottleneck) if case is not None and case.bottleneck else None
    return Concluded(finding, loaded, case, bottleneck)


def _refutation(loaded: LoadedRule, case: Case | None, conclusion: Conclusion) -> str | None:
    """What would refute the conclusion, where one was drawn: as the case says, else as the rule says."""
    if conclusion not in (*_MEASURED, Conclusion.NOT_NEEDED):
        return None
    return case.refuted_by if case is not None and case.refuted_by else loaded.rule.refuted_by


def _unmet(loaded: LoadedRule, reader: Reader) -> _Draft | None:
    """*Not measured*, by the first requirement that does not surely hold."""
    for requirement in loaded.requires:
        outcome = evaluate(requirement.when, reader.view)
        if outcome.truth is Truth.YES:
            continue
        if requirement.otherwise is not None:
            text = reader.fill(requirement.otherwise)
        else:
            text = _reasons(leaf.fact.quantity for leaf in outcome.leaves) or "what the rule requires does not hold"
        return _Draft(Conclusion.NOT_MEASURED, wording.sentence(text), outcome.leaves)
    return None


def _choose(loaded: LoadedRule, reader: Reader) -> _Draft:
    possible: list[tuple[Case, Outcome]] = []
    for case in loaded.rule.cases:
        outcome = evaluate(case.when, reader.view) if case.when is not None else _otherwise(loaded, reader)
        if outcome.truth is not Truth.NO:
            possible.append((case, outcome))
        if outcome.truth is Truth.YES:
            break
    if len({case.conclude for case, _ in possible}) == 1:
        case, outcome = possible[-1]
        return _Draft(case.conclude, wording.sentence(reader.fill(case.text)), outcome.leaves, case)
    leaves = tuple(leaf for _, outcome in possible for leaf in outcome.leaves)
    undecided = {q.id: q for _, outcome in possible for q in outcome.undecided()}.values()
    effects = [reader.quantity(effect.gain) for effect in loaded.rule.effects]
    tried = [*undecided, *(effect for effect in effects if wording.is_effect(effect))]
    if any(quantity.value is not None for quantity in tried):
        return _Draft(Conclusion.INCONCLUSIVE, _undecided_text(undecided, leaves), leaves)
    return _Draft(Conclusion.NOT_MEASURED, wording.sentence(_reasons(undecided)), leaves)


def _otherwise(loaded: LoadedRule, reader: Reader) -> Outcome:
    """The last case holds when no other does: what speaks against the others speaks for it."""
    turned = {Truth.NO: Truth.YES, Truth.YES: Truth.NO, Truth.UNDECIDED: Truth.UNDECIDED}
    leaves = [
        Leaf(leaf.fact, turned[leaf.supports])
        for case in loaded.rule.cases
        if case.when is not None
        for leaf in evaluate(case.when, reader.view).leaves
    ]
    return Outcome(Truth.YES, tuple(leaves))


def _circumstances(draft: _Draft, technique: Technique, marks: list[str], reader: Reader) -> tuple[Conclusion, str]:
    """Hold back what this run cannot support: outputs that are not real, an engine off the limit, an invalid run."""
    evidence = reader.evidence
    rests_on_outputs = draft.conclusion in (*_MEASURED, Conclusion.INCONCLUSIVE) and technique.needs_real_outputs
    if rests_on_outputs and not evidence.subject.real_outputs:
        return Conclusion.NOT_MEASURED, (
            "Outputs are not real (that takes trained weights and real text), so acceptance and quality do not count."
        )
    if draft.conclusion in _MEASURED:
        if technique.engine_limited == "inconclusive" and _LIMITED in marks:
            return Conclusion.INCONCLUSIVE, (
                f"{draft.text} The engine runs below half of its roofline here, which misleads about this technique."
            )
        if evidence.validity.status == "invalid" and _effects(draft, reader):
            failed = "; ".join(check.text.rstrip(".") for check in evidence.validity.checks if check.passed is False)
            return Conclusion.INCONCLUSIVE, f"{draft.text} But the run is not valid: {failed or 'see its checks'}."
    return draft.conclusion, draft.text


def _effects(draft: _Draft, reader: Reader) -> list[Comparison]:
    """The comparisons whose measured effects the conclusion looked at, each once."""
    effects = [leaf.fact.quantity for leaf in draft.leaves if wording.is_effect(leaf.fact.quantity)]
    found = [reader.comparison_of(quantity.id) for quantity in effects if quantity.value is not None]
    return list({comparison.id: comparison for comparison in found if comparison is not None}.values())


def _marks(loaded: LoadedRule, draft: _Draft, reader: Reader) -> list[str]:
    """What must be read beside the conclusion."""
    workload = reader.evidence.workload
    counts = sorted({comparison.requests for comparison in _effects(draft, reader)})
    marks = [f"measured on {n:,} of {workload.requests:,} requests" for n in counts if n < workload.requests]
    comparisons = reader.comparisons(loaded)
    quantities = [leaf.fact.quantity for leaf in draft.leaves] + [reader.quantity(id) for id in loaded.rule.shows]
    timed_alone = [quantity.roofline for quantity in quantities if quantity.roofline is not None]
    limited = [c.engine_limited for c in comparisons] + [roofline.engine_limited for roofline in timed_alone]
    if any(limited):
        marks.append(_LIMITED)
    timed = comparisons or any(q.value is not None and q.basis is Basis.MEASURED for q in quantities)
    if workload.length_scale != 1 and timed:
        marks.append(_SCALED)
    told = [c.roofline_fraction for c in comparisons if c.roofline_fraction is not None] + quantities
    texts = [f"{q.reason} {q.note}" for q in told] + [f"{r.reason} {r.note}" for r in timed_alone]
    if any("cache-resident" in text for text in texts):
        marks.append(_CACHED)
    for comparison in comparisons:
        marks += [f"{arm} arm overloaded ({comparison.id})" for arm in comparison.overloaded]
        outputs = comparison.outputs
        if outputs is not None and outputs.identical < outputs.requests:
            differing = outputs.requests - outputs.identical
            marks.append(f"outputs differ in {differing} of {outputs.requests} requests ({comparison.id})")
    return marks


def _severity(loaded: LoadedRule, case: Case | None, conclusion: Conclusion, reader: Reader) -> Severity:
    """As the case says; else by the surest gain in the objective for a recommendation, and none for the rest."""
    if case is not None and case.severity is not None:
        return case.severity
    if conclusion is not Conclusion.RECOMMENDED:
        return "medium" if case is not None and case.warn else "none"
    constants = reader.pack.constants
    effects = loaded.rule.effects
    asked = [effect for effect in effects if reader.evidence.run.objective in effect.serves] or effects
    surest = max((sure_gain(reader.quantity(effect.gain)) for effect in asked), default=1.0)
    if surest >= constants[HIGH_SEVERITY_GAIN].value:
        return "high"
    return "medium" if surest >= constants[MEDIUM_SEVERITY_GAIN].value else "low"


def _confidence(draft: _Draft, conclusion: Conclusion, marks: list[str], reader: Reader) -> Confidence:
    """Low where nothing is concluded; one step down each for what weakens the numbers.

    That is: modelled ones, a marked run, a run that is not valid, and effects measured on a small part of the trace.
    """
    if conclusion in (Conclusion.INCONCLUSIVE, Conclusion.NOT_MEASURED):
        return "low"
    bases = {leaf.fact.quantity.basis for leaf in draft.leaves if leaf.supports is Truth.YES}
    steps = [
        bool(bases & {Basis.MODELLED, Basis.SPEC}),
        _LIMITED in marks or _SCALED in marks,
        reader.evidence.validity.status != "valid",
        bool(_effects(draft, reader)) and _small_slice(reader),
    ]
    levels: tuple[Confidence, ...] = ("high", "medium", "low")
    return levels[min(sum(steps), 2)]


def _small_slice(reader: Reader) -> bool:
    workload = reader.evidence.workload
    share = reader.pack.constants[SMALL_SLICE].value
    return workload.slice_requests is not None and workload.slice_requests < share * workload.requests


def _undecided_text(undecided: Iterable[Quantity], leaves: tuple[Leaf, ...]) -> str:
    """The numbers that leave it open, and how much longer to measure where that is known."""
    facts = {leaf.fact.quantity.id: leaf.fact for leaf in reversed(leaves)}
    parts = []
    for quantity in (q for q in undecided if q.value is not None):
        threshold = facts[quantity.id].threshold
        text = f"{quantity.label} {wording.quantity_text(quantity)}"
        if quantity.interval is not None and threshold is not None:
            text += f" straddles {wording.value_text(threshold, quantity.unit, wording.style_of(quantity))}"
        elif wording.needs_interval(quantity):
            text += " has no interval yet"
        more = [part.rstrip(".") for part in (quantity.reason, quantity.note) if part]
        parts.append(f"{text} ({'; '.join(more)})" if more else text)
    missing = _reasons(undecided)
    if not parts:
        return wording.sentence(missing)
    return wording.sentence("; ".join(parts)) + (f" Also unknown: {missing}." if missing else "")


def _reasons(quantities: Iterable[Quantity]) -> str:
    """Why these are unknown, each reason once; *not run* only where no other reason is known."""
    reasons = [(q.reason or f"{q.label} is not known").rstrip(".") for q in quantities if q.value is None]
    telling = [reason for reason in reasons if reason != "not run" and not reason.startswith(NOT_RUN)]
    return "; ".join(dict.fromkeys(telling or reasons))

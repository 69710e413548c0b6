"""The diagnosis: every rule's finding, the ranked advice, the answers to the six questions, the verdict, the claims."""

from __future__ import annotations

from inferdoc.evidence import Claim, Diagnosis, Evidence, RulePack, Schema
from inferdoc.rules.conclusions import Concluded, conclude
from inferdoc.rules.loading import Pack
from inferdoc.rules.ranking import recommend
from inferdoc.rules.reading import Reader
from inferdoc.rules.schema import ClaimEntry
from inferdoc.rules.verdict import answer_questions, give_verdict


def diagnose(evidence: Evidence, pack: Pack) -> Diagnosis:
    """Everything the rules of `pack` conclude from `evidence`; a pure function of the two."""
    if evidence.run.max_quality_loss is not None:
        pack = pack.with_quality_limit(evidence.run.max_quality_loss)
    reader = Reader(evidence, pack)
    in_order = sorted(pack.rules, key=lambda loaded: loaded.question.number)
    concluded = [conclude(loaded, reader) for loaded in in_order]
    for window in evidence.workload.windows:
        _judge_apart(concluded, Reader(evidence, pack, window), window.name)
    recommendations = recommend(concluded, reader)
    return Diagnosis(
        schema_=Schema(name="inferdoc.diagnosis"),
        tool=evidence.tool,
        rule_pack=RulePack(version=pack.version, sha256=pack.sha256, files=list(pack.files)),
        run=evidence.run,
        subject=evidence.subject,
        environment=evidence.environment,
        workload=evidence.workload,
        validity=evidence.validity,
        verdict=give_verdict(concluded, recommendations, reader),
        answers=answer_questions(concluded, recommendations, pack),
        findings=[item.finding for item in concluded],
        recommendations=recommendations,
        claims=[_claim(entry, reader) for entry in pack.claims],
        extensions={"rules_replaced": list(pack.replaced)} if pack.replaced else {},
    )


def _judge_apart(concluded: list[Concluded], reader: Reader, window: str) -> None:
    """Note where a rule concludes otherwise of a window than of the whole trace."""
    for item in concluded:
        of_window = conclude(item.loaded, reader).finding.conclusion
        if of_window is not item.finding.conclusion:
            item.finding.by_window[window] = of_window
            item.finding.text += f" In the {window}, by its own lengths, reuse and demand: {of_window.value}."


def _claim(entry: ClaimEntry, reader: Reader) -> Claim:
    if entry.measure is None:
        return Claim(claim=entry.claim, source=entry.source, measured=None, reason=entry.reason)
    quantity = reader.quantity(entry.measure)
    known = quantity.value is not None
    return Claim(
        claim=entry.claim,
        source=entry.source,
        measured=quantity if known else None,
        reason=None if known else quantity.reason or f"{quantity.label} is not known",
    )

"""The few sentences at the top: what holds this system back, what to do next, and what could not be told."""

from __future__ import annotations

import re
from collections.abc import Sequence

from inferdoc.evidence import (
    Comparison,
    Conclusion,
    Quantity,
    Question,
    QuestionAnswer,
    Recommendation,
    Slo,
    Verdict,
)
from inferdoc.rules import wording
from inferdoc.rules.conclusions import Concluded, Confidence
from inferdoc.rules.loading import Pack
from inferdoc.rules.ranking import expected_text, range_text
from inferdoc.rules.reading import Reader

_FALL_BACK = {"tpot_p50": "latency.tpot_at_load"}
"""Where a latency stands when no open-loop comparison has it: the plain quantity of the same metric."""


def give_verdict(concluded: Sequence[Concluded], recommendations: Sequence[Recommendation], reader: Reader) -> Verdict:
    """The verdict, with at most five lines under the headline."""
    by_rule = {item.finding.rule_id: item for item in concluded}
    best = by_rule[recommendations[0].finding] if recommendations else None
    confidence: Confidence = best.finding.confidence if best else _overall(concluded)
    lines = [
        *_next_steps(recommendations),
        *_slo_lines(recommendations, reader),
        *_health(reader),
        *_open_questions(concluded),
    ]
    return Verdict(
        headline=_headline(best, recommendations, concluded),
        bottleneck=best.bottleneck if best else None,
        confidence=confidence,
        lines=lines[:5],
    )


def answer_questions(
    concluded: Sequence[Concluded], recommendations: Sequence[Recommendation], pack: Pack
) -> list[QuestionAnswer]:
    """One answer a question, from its leading rule; what else is recommended under it is named, best first."""
    findings = {item.finding.rule_id: item.finding for item in concluded}
    answers = []
    for question in Question:
        under = [finding for finding in findings.values() if finding.question is question]
        if not under:
            continue
        lead = next((finding for finding in under if finding.rule_id == pack.leads.get(question)), under[0])
        others = [findings[advice.finding] for advice in recommendations if advice.finding != lead.rule_id]
        titles = ", ".join(finding.title for finding in others if finding.question is question)
        text = f"{lead.text} Recommended beside this: {titles}." if titles else lead.text
        answers.append(QuestionAnswer(question=question, conclusion=lead.conclusion, text=text))
    return answers


def _headline(
    best: Concluded | None,
    recommendations: Sequence[Recommendation],
    concluded: Sequence[Concluded],
) -> str:
    """One sentence: what holds the system back, else the strongest result."""
    if best is not None:
        if best.bottleneck:
            return wording.sentence(best.bottleneck)
        first = recommendations[0]
        advice = f"pays: {expected_text(first.expected[0])}" if first.expected else "is needed"
        return f"{first.title} {advice}."
    open_ones = sum(item.finding.conclusion is Conclusion.INCONCLUSIVE for item in concluded)
    if open_ones:
        return f"Nothing is shown to pay yet: {open_ones} technique{'s' if open_ones > 1 else ''} still inconclusive."
    if _refusals(concluded):
        return "Nothing that was measured pays here: leave these settings as they are."
    return "Nothing was measured that a conclusion could rest on."


def _overall(concluded: Sequence[Concluded]) -> Confidence:
    """Without advice the verdict is as sure as the least sure conclusion that was drawn."""
    drawn = [item.finding.confidence for item in _refusals(concluded)]
    undecided = any(item.finding.conclusion is Conclusion.INCONCLUSIVE for item in concluded)
    if undecided or not drawn or "low" in drawn:
        return "low"
    return "medium" if "medium" in drawn else "high"


def _refusals(concluded: Sequence[Concluded]) -> list[Concluded]:
    """Findings that say no and have a number to rest on (an objective that nobody gave is none)."""
    return [
        item
        for item in concluded
        if item.finding.conclusion in (Conclusion.DOES_NOT_PAY, Conclusion.NOT_NEEDED)
        and any(fact.quantity.value is not None for fact in item.finding.evidence)
    ]


def _next_steps(recommendations: Sequence[Recommendation]) -> list[str]:
    lines = []
    if recommendations:
        lines.append(f"Next: {_step(recommendations[0])}")
    if len(recommendations) > 1:
        second = recommendations[1]
        overlap = "" if second.adds is not None else " Gains overlap; do not multiply them."
        lines.append(f"Then: {_step(second)}{overlap}")
    return lines


def _step(recommendation: Recommendation) -> str:
    change = recommendation.change
    text = f"{change.knob}: {change.from_} -> {change.to}"
    if recommendation.expected:
        text += f"; {expected_text(recommendation.expected[0])}"
    if recommendation.adds is not None and recommendation.rank > 1:
        text += f", on top of the steps before it {range_text(recommendation.adds)}"
    return f"{text}."


def _slo_lines(recommendations: Sequence[Recommendation], reader: Reader) -> list[str]:
    slos = reader.evidence.run.slo
    if not slos:
        return []
    return ["Objectives: " + "; ".join(slo_status(slo, recommendations, reader) for slo in slos) + "."]


def slo_status(slo: Slo, recommendations: Sequence[Recommendation], reader: Reader) -> str:
    """Whether one objective is met, before and after the best change that was measured under an open-loop load."""
    limit = wording.value_text(slo.limit, slo.unit, "seconds" if slo.unit == "s" else None)
    head = f"{slo.metric} <= {limit}"
    comparison = _open_comparison(slo.metric, [r.technique for r in recommendations], reader)
    if comparison is None:
        fall_back = _FALL_BACK.get(slo.metric)
        quantity = reader.quantity(fall_back) if fall_back else None
        if quantity is None:
            return f"{head}: not measured"
        if quantity.value is None:
            return _untold(head, quantity)
        return f"{head}: {_met(quantity, slo)} at {wording.quantity_text(quantity)} ({quantity.label})"
    off, on = (reader.quantity(f"{comparison.id}.{slo.metric}.{arm}") for arm in ("off", "on"))
    if off.value is None and on.value is None:
        return _untold(head, off)
    title = reader.pack.techniques[comparison.technique].title.lower()
    without, with_ = _met(off, slo), _met(on, slo)
    before, after = wording.quantity_text(off), wording.quantity_text(on)
    if with_ == without:
        return f"{head}: {with_} with and without {title} ({before} -> {after})"
    return f"{head}: {without} without {title} ({before}), {with_} with it ({after})"


def _untold(head: str, quantity: Quantity) -> str:
    """One short reason: the first clause of the quantity's own."""
    reason = re.split(r"; (?![^()]*\))", quantity.reason or "not measured")[0].rstrip(".")
    return f"{head}: cannot be told, {reason}"


def _open_comparison(metric: str, techniques: list[str], reader: Reader) -> Comparison | None:
    """The open-loop comparison that has the metric, of the technique ranked best.

    The longest gap is measured beside a long prompt instead, where it is longest.
    """
    load = ".interference" if metric == "itl_max" else ".open"
    found = [
        comparison
        for comparison in reader.evidence.comparisons.values()
        if comparison.id.endswith(load)
        and metric in comparison.metrics
        and comparison.technique in reader.pack.techniques
    ]
    found.sort(key=lambda c: techniques.index(c.technique) if c.technique in techniques else len(techniques))
    return found[0] if found else None


def _met(quantity: Quantity, slo: Slo) -> str:
    """*Met* when the whole interval is within the limit, *missed* when none of it is."""
    if quantity.value is None:
        return "unknown"
    interval = quantity.interval
    low, high = (interval.low, interval.high) if interval else (quantity.value, quantity.value)
    return "met" if high <= slo.limit else "missed" if low > slo.limit else "undecided"


def _health(reader: Reader) -> list[str]:
    validity = reader.evidence.validity
    if validity.status == "valid":
        return []
    failed = [check.text.rstrip(".") for check in validity.checks if check.passed is False]
    return [f"This run is {validity.status}: {'; '.join(failed[:2]) or 'see the checks'}."]


def _open_questions(concluded: Sequence[Concluded]) -> list[str]:
    """What could not be told, by name; the reasons stand with the findings."""
    parts = []
    for conclusion in (Conclusion.INCONCLUSIVE, Conclusion.NOT_MEASURED):
        titles = list(dict.fromkeys(item.finding.title for item in concluded if item.finding.conclusion is conclusion))
        if titles:
            named = ", ".join(titles[:3]) + (f" and {len(titles) - 3} more" if len(titles) > 3 else "")
            parts.append(f"{conclusion.value}: {named}")
    return [f"Could not tell: {'; '.join(parts)}."] if parts else []

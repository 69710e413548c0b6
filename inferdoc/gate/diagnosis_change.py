"""Which answers of a diagnosis changed, and whether the measurements behind them changed beyond their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from inferdoc.evidence import Conclusion, Diagnosis, Fact, Finding, Quantity, Question, Truth
from inferdoc.gate.policy import DiagnosisPolicy
from inferdoc.gate.result import ChangeKind, DiagnosisChange
from inferdoc.gate.sessions import Conclusions
from inferdoc.rules import wording
from inferdoc.rules.conditions import compare

Outcome = Literal["fail", "inconclusive", "warn", "info"]
Concluded = Conclusions | Diagnosis

_UNDECIDED = (Conclusion.INCONCLUSIVE, Conclusion.NOT_MEASURED)
_FLIPS: dict[tuple[Conclusion, Conclusion], ChangeKind] = {
    (Conclusion.RECOMMENDED, Conclusion.DOES_NOT_PAY): "worse",
    (Conclusion.RECOMMENDED, Conclusion.NOT_NEEDED): "disappeared",
    (Conclusion.NOT_NEEDED, Conclusion.RECOMMENDED): "appeared",
    (Conclusion.DOES_NOT_PAY, Conclusion.RECOMMENDED): "appeared",
}
"""Between decided states; the other flips, between two ways of saying no, are worth a line and no more."""
_SEVERITY: tuple[Outcome, ...] = ("fail", "inconclusive", "warn", "info")


def diagnosis_changes(before: Concluded, after: Concluded, policy: DiagnosisPolicy) -> list[DiagnosisChange]:
    """One entry for each technique of which another conclusion was drawn, the gravest first.

    A flip fails only where a condition that was true is now false on intervals that lie apart (or on exact values);
    else it is inconclusive: the rules drew another conclusion from numbers that agree, or the baseline had drawn none.
    """
    if policy.on_diagnosis_change == "ignore":
        return []
    asked = [question for question in Question if not policy.questions or question.number in policy.questions]
    changes = [change for change in _of_findings(before, after, policy) if change.question in asked]
    told = {change.question for change in changes}
    changes += [c for c in _of_answers(before, after, policy) if c.question in asked and c.question not in told]
    changes.sort(key=lambda change: (_SEVERITY.index(change.outcome), change.question.number))
    gravest: dict[str, DiagnosisChange] = {}
    for change in changes:
        gravest.setdefault(change.technique, change)
    return list(gravest.values())


def _of_findings(before: Concluded, after: Concluded, policy: DiagnosisPolicy) -> Iterator[DiagnosisChange]:
    sides = [{finding.rule_id: finding for finding in side.findings} for side in (before, after)]
    for rule in dict.fromkeys([*sides[0], *sides[1]]):
        old, new = sides[0].get(rule), sides[1].get(rule)
        known = old or new
        assert known is not None
        kind = _kind(_conclusion(old), _conclusion(new))
        if kind is None:
            continue
        doubt = (_unknown_before(_conclusion(old)) or _doubt(old, new)) if kind in _FLIPS.values() else None
        quoted = _turned(old, new)
        yield DiagnosisChange(
            question=known.question,
            technique=known.technique,
            title=known.title,
            kind=kind,
            before=_conclusion(old).value,
            after=_conclusion(new).value,
            before_evidence=_facts(old),
            after_evidence=_facts(new),
            text=f"{known.title}: {_side(old, quoted)} -> {_side(new, quoted, again=bool(quoted))}"
            + (f"; {doubt}" if doubt else ""),
            outcome=_outcome(kind, doubt, policy),
            policy_line=policy.line,
        )


def _of_answers(before: Concluded, after: Concluded, policy: DiagnosisPolicy) -> Iterator[DiagnosisChange]:
    """Answers that changed where no finding under the question did: another rule leads it now."""
    sides = [{answer.question: answer for answer in side.answers} for side in (before, after)]
    for question in [question for question in sides[0] if question in sides[1]]:
        old, new = sides[0][question], sides[1][question]
        kind = _kind(old.conclusion, new.conclusion)
        if kind is None:
            continue
        doubt = None
        if kind in _FLIPS.values():
            doubt = _unknown_before(old.conclusion) or "no measurement behind it changed"
        yield DiagnosisChange(
            question=question,
            technique=question.value,
            title=question.text,
            kind=kind,
            before=old.conclusion.value,
            after=new.conclusion.value,
            text=f"{question.text} {old.conclusion.value} ({old.text.rstrip('.')}) -> {new.conclusion.value} "
            f"({new.text.rstrip('.')})" + (f"; {doubt}" if doubt else ""),
            outcome=_outcome(kind, doubt, policy),
            policy_line=policy.line,
        )


def _conclusion(finding: Finding | None) -> Conclusion:
    return finding.conclusion if finding is not None else Conclusion.NOT_MEASURED


def _kind(before: Conclusion, after: Conclusion) -> ChangeKind | None:
    """``None``: nothing changed that anybody knew."""
    if before is after or (before in _UNDECIDED and after in _UNDECIDED):
        return None
    if after in _UNDECIDED:
        return "no longer known"
    if before in _UNDECIDED and after is Conclusion.RECOMMENDED:
        return "appeared"
    return _FLIPS.get((before, after), "changed")


def _unknown_before(before: Conclusion) -> str | None:
    return f"it was {before.value} before, so nothing shows that it changed" if before in _UNDECIDED else None


def _outcome(kind: ChangeKind, doubt: str | None, policy: DiagnosisPolicy) -> Outcome:
    if kind == "changed":
        return "info"
    if policy.on_diagnosis_change != "fail":
        return "warn"
    return "inconclusive" if kind == "no longer known" or doubt else "fail"


@dataclass(frozen=True)
class _Condition:
    """A threshold that one of the sides looked at."""

    relation: Literal["at least", "below"]
    threshold: float

    def of(self, quantity: Quantity) -> Truth:
        if self.relation == "at least":
            return compare(quantity, at_least=self.threshold)
        return compare(quantity, below=self.threshold)


@dataclass(frozen=True)
class _Shared:
    """A quantity that both sides looked at, with every condition that either of them put to it."""

    before: Quantity
    after: Quantity
    conditions: tuple[_Condition, ...]

    @property
    def sure(self) -> bool:
        """Whether both have an interval, or are exact: a point alone says nothing about noise."""
        return all(quantity.exact or quantity.interval is not None for quantity in (self.before, self.after))

    @property
    def turned(self) -> bool:
        """Whether a condition is surely true on one side and surely false on the other: the intervals lie apart."""
        truths = ({condition.of(self.before), condition.of(self.after)} for condition in self.conditions)
        return any(pair == {Truth.YES, Truth.NO} for pair in truths)


def _facts(finding: Finding | None) -> list[Fact]:
    return [*finding.evidence, *finding.against] if finding is not None else []


def _shared(old: Finding | None, new: Finding | None) -> list[_Shared]:
    sides = [{fact.quantity.id: fact for fact in _facts(finding)} for finding in (old, new)]
    shared = []
    for id in [id for id in sides[0] if id in sides[1]]:
        facts = sides[0][id], sides[1][id]
        conditions = tuple(dict.fromkeys(_conditions(facts)))
        if conditions and all(fact.quantity.value is not None for fact in facts):
            shared.append(_Shared(facts[0].quantity, facts[1].quantity, conditions))
    return shared


def _conditions(facts: Iterable[Fact]) -> Iterator[_Condition]:
    for fact in facts:
        if fact.relation in ("at least", "below") and fact.threshold is not None:
            yield _Condition("at least" if fact.relation == "at least" else "below", fact.threshold)


def _doubt(old: Finding | None, new: Finding | None) -> str | None:
    """Why a flip is not shown by the measurements; ``None`` where it is."""
    if old is not None and new is not None and old.rule_version != new.rule_version:
        return f"the rule itself changed (version {old.rule_version} -> {new.rule_version})"
    shared = _shared(old, new)
    if not shared:
        return "the two conclusions rest on different measurements"
    turned = [item for item in shared if item.turned]
    if any(item.sure for item in turned):
        return None
    return "these numbers have no interval" if turned else "the intervals overlap, so noise explains it"


def _turned(old: Finding | None, new: Finding | None) -> str | None:
    """Id of the quantity that explains the change best, of those that both sides know."""
    shared = _shared(old, new)
    best = sorted(shared, key=lambda item: (not item.turned, not item.sure))
    return best[0].before.id if best else None


def _side(finding: Finding | None, quoted: str | None, *, again: bool = False) -> str:
    """``recommended (gain in throughput 1.42x [1.30..1.52], 8 pairs)``. `again`: its name stands there already."""
    if finding is None:
        return f"{Conclusion.NOT_MEASURED.value} (there is no such rule)"
    facts = _facts(finding)
    chosen = [fact for fact in facts if fact.quantity.id == quoted] or _telling(facts)
    if not chosen:
        return f"{finding.conclusion.value} ({finding.text.rstrip('.')})"
    quantity = chosen[0].quantity
    number = wording.quantity_text(quantity)
    return f"{finding.conclusion.value} ({number if again else f'{_short(quantity)} {number}'})"


def _telling(facts: Iterable[Fact]) -> list[Fact]:
    return [fact for fact in facts if fact.outcome is not None and fact.quantity.value is not None]


def _short(quantity: Quantity) -> str:
    """The label without the comparison that it begins with: the technique is named already."""
    return quantity.label.rpartition(": ")[2]


def switched_change(
    finding: Finding, *, on: Literal["baseline", "candidate"], policy: DiagnosisPolicy
) -> DiagnosisChange:
    """A technique that one arm has on and the other off, judged by the arms' own off/on comparison.

    Args:
        finding: what the rules drew from that comparison.
        on: the arm that has it on.
    """
    fails, turned_off = policy.on_diagnosis_change == "fail", on == "baseline"
    outcome: Outcome = "info"
    if policy.on_diagnosis_change == "ignore":
        pass
    elif finding.conclusion in _UNDECIDED:
        outcome = "inconclusive" if fails else "warn"
    elif turned_off and finding.conclusion is Conclusion.RECOMMENDED:
        outcome = "fail" if fails else "warn"
    elif not turned_off and finding.conclusion is Conclusion.DOES_NOT_PAY:
        outcome = "warn"
    told = f"the arms themselves show it {_side(finding, None)}"
    place = (finding.question, finding.technique, finding.title)
    return _switched(*place, told, turned_off=turned_off, facts=_facts(finding), outcome=outcome, policy=policy)


def undecided_switch(
    question: Question,
    technique: str,
    title: str,
    *,
    on: Literal["baseline", "candidate"],
    policy: DiagnosisPolicy,
) -> DiagnosisChange:
    """A technique that the arms switch among other things: what it alone does the pairs can't say."""
    turned_off = on == "baseline"
    outcome: Outcome = "info"
    if turned_off and policy.on_diagnosis_change != "ignore":
        outcome = "inconclusive" if policy.on_diagnosis_change == "fail" else "warn"
    told = "other settings differ too, so the pairs can't show its part"
    return _switched(question, technique, title, told, turned_off=turned_off, facts=[], outcome=outcome, policy=policy)


def _switched(
    question: Question,
    technique: str,
    title: str,
    told: str,
    *,
    turned_off: bool,
    facts: list[Fact],
    outcome: Outcome,
    policy: DiagnosisPolicy,
) -> DiagnosisChange:
    kind: ChangeKind = "turned off" if turned_off else "turned on"
    return DiagnosisChange(
        question=question,
        technique=technique,
        title=title,
        kind=kind,
        before="on" if turned_off else "off",
        after="off" if turned_off else "on",
        before_evidence=facts,
        after_evidence=facts,
        text=f"{title} is {kind} in the candidate; {told}",
        outcome=outcome,
        policy_line=policy.line,
    )

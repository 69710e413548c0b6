"""Changed answers: what counts as worse, when the measurements support it, and both pieces of evidence in the text."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest

from inferdoc.evidence import (
    Basis,
    Conclusion,
    Diagnosis,
    Fact,
    Finding,
    Interval,
    Quantity,
    Question,
    QuestionAnswer,
    Truth,
)
from inferdoc.gate.diagnosis_change import diagnosis_changes, switched_change
from inferdoc.gate.policy import DiagnosisPolicy
from inferdoc.gate.result import ChangeKind, DiagnosisChange
from inferdoc.gate.sessions import Conclusions
from inferdoc.rules import diagnose, load_pack

FAIL = DiagnosisPolicy(on_diagnosis_change="fail")
WARN = DiagnosisPolicy(on_diagnosis_change="warn")
IGNORE = DiagnosisPolicy(on_diagnosis_change="ignore")
C = Conclusion
PAYS, DOES_NOT = (1.42, 1.30, 1.52), (0.99, 0.97, 1.02)


def gain(value: float, low: float, high: float) -> Fact:
    """What the gain is, put to the condition "at least 1.05"."""
    outcome = Truth.YES if low >= 1.05 else Truth.NO if high < 1.05 else Truth.UNDECIDED
    return Fact(
        quantity=Quantity(
            id="prefix_caching.saturated.throughput.gain",
            label="Prefix caching, saturated: gain in throughput",
            value=value,
            unit="x",
            basis=Basis.MEASURED,
            interval=Interval(low=low, high=high, method="exact"),
            n=8,
        ),
        relation="at least",
        threshold=1.05,
        outcome=outcome,
    )


def count(id: str, value: float, relation: str = "below", threshold: float | None = 0.05, **more: Any) -> Fact:
    quantity = Quantity(
        id=id, label="ideal hit rate", value=value, unit="share", basis=Basis.TRACE, **{"exact": True, **more}
    )
    return Fact.model_validate({"quantity": quantity, "relation": relation, "threshold": threshold})


def finding(conclusion: Conclusion, *facts: Fact, **more: Any) -> Finding:
    return Finding(
        **{
            "rule_id": "prefix-caching",
            "rule_version": 1,
            "question": Question.PREFIX_REDUNDANCY,
            "technique": "prefix_caching",
            "title": "Prefix caching",
            "conclusion": conclusion,
            "status": "passed",
            "severity": "none",
            "confidence": "high",
            "text": "Nothing was run.",
            "evidence": list(facts),
            "rule_source": "prefix_redundancy.yaml:10",
            **more,
        }
    )


def side(*findings: Finding) -> Conclusions:
    """Each question is answered by its first finding."""
    answers = {f.question: QuestionAnswer(question=f.question, conclusion=f.conclusion, text=f.text) for f in findings}
    return Conclusions(answers=list(answers.values()), findings=list(findings), recommendations=[])


def only(before: Conclusions, after: Conclusions, policy: DiagnosisPolicy = FAIL) -> DiagnosisChange:
    (change,) = diagnosis_changes(before, after, policy)
    return change


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (C.RECOMMENDED, C.DOES_NOT_PAY, "worse"),
        (C.RECOMMENDED, C.NOT_NEEDED, "disappeared"),
        (C.NOT_NEEDED, C.RECOMMENDED, "appeared"),
        (C.DOES_NOT_PAY, C.RECOMMENDED, "appeared"),
    ],
)
def test_a_flip_that_the_measurements_show_fails_warns_or_is_ignored(
    before: Conclusion, after: Conclusion, kind: str
) -> None:
    gains = {C.RECOMMENDED: PAYS, C.DOES_NOT_PAY: DOES_NOT, C.NOT_NEEDED: DOES_NOT}
    old, new = (side(finding(conclusion, gain(*gains[conclusion]))) for conclusion in (before, after))
    change = only(old, new)
    assert (change.kind, change.outcome, change.before, change.after) == (kind, "fail", before.value, after.value)
    assert only(old, new, WARN).outcome == "warn"
    assert diagnosis_changes(old, new, IGNORE) == []


def test_the_text_quotes_both_pieces_of_evidence() -> None:
    change = only(side(finding(C.RECOMMENDED, gain(*PAYS))), side(finding(C.DOES_NOT_PAY, gain(*DOES_NOT))))
    assert change.text == (
        "Prefix caching: recommended (gain in throughput 1.42x [1.30..1.52], 8 pairs) -> "
        "does not pay (0.99x [0.97..1.02], 8 pairs)"
    )
    assert [fact.quantity.value for fact in (*change.before_evidence, *change.after_evidence)] == [1.42, 0.99]


def test_a_flip_between_overlapping_intervals_is_inconclusive() -> None:
    change = only(
        side(finding(C.RECOMMENDED, gain(1.10, 1.06, 1.20))), side(finding(C.DOES_NOT_PAY, gain(1.03, 0.98, 1.08)))
    )
    assert (change.kind, change.outcome) == ("worse", "inconclusive")
    assert change.text.endswith("; the intervals overlap, so noise explains it")
    assert "1.10x [1.06..1.20]" in change.text
    assert "1.03x [0.98..1.08]" in change.text


def test_an_exact_number_that_crossed_a_threshold_is_enough() -> None:
    """On the baseline it was only shown, without a condition; the candidate's rule put one to it."""
    old = side(finding(C.RECOMMENDED, gain(*PAYS), count("prefix.ideal_hit_rate", 0.66, "shown", None)))
    crossed = only(old, side(finding(C.NOT_NEEDED, count("prefix.ideal_hit_rate", 0.02))))
    assert (crossed.kind, crossed.outcome) == ("disappeared", "fail")
    assert "ideal hit rate 66%" in crossed.text
    assert "(2.0%)" in crossed.text


def test_an_exact_number_that_moved_without_crossing_is_not() -> None:
    """A KV capacity differs by a little from run to run: that does not make a flip of something else real."""
    old = side(finding(C.RECOMMENDED, gain(1.10, 1.06, 1.20), count("fit.kv_headroom", 0.66)))
    new = side(finding(C.DOES_NOT_PAY, gain(1.03, 0.98, 1.08), count("fit.kv_headroom", 0.65)))
    assert only(old, new).outcome == "inconclusive"


def test_a_point_without_an_interval_shows_no_flip() -> None:
    old = side(finding(C.NOT_NEEDED, count("fit.kv_headroom", 0.66, exact=False)))
    new = side(finding(C.RECOMMENDED, count("fit.kv_headroom", 0.02, exact=False)))
    change = only(old, new)
    assert change.outcome == "inconclusive"
    assert change.text.endswith("these numbers have no interval")


def test_conclusions_that_rest_on_different_measurements_show_no_flip() -> None:
    change = only(
        side(finding(C.NOT_NEEDED, count("prefix.ideal_hit_rate", 0.02))), side(finding(C.RECOMMENDED, gain(*PAYS)))
    )
    assert change.outcome == "inconclusive"
    assert "different measurements" in change.text


def test_another_version_of_the_rule_shows_no_flip() -> None:
    change = only(
        side(finding(C.RECOMMENDED, gain(*PAYS))), side(finding(C.DOES_NOT_PAY, gain(*DOES_NOT), rule_version=2))
    )
    assert change.outcome == "inconclusive"
    assert change.text.endswith("; the rule itself changed (version 1 -> 2)")


@pytest.mark.parametrize("after", [C.INCONCLUSIVE, C.NOT_MEASURED])
@pytest.mark.parametrize("before", [C.RECOMMENDED, C.DOES_NOT_PAY, C.NOT_NEEDED])
def test_an_answer_that_is_no_longer_known_never_passes_a_failing_policy(before: Conclusion, after: Conclusion) -> None:
    old, new = side(finding(before, gain(*PAYS))), side(finding(after))
    change = only(old, new)
    assert (change.kind, change.outcome) == ("no longer known", "inconclusive")
    assert "Nothing was run" in change.text
    assert only(old, new, WARN).outcome == "warn"


def test_a_rule_that_is_gone_is_no_longer_known() -> None:
    change = only(side(finding(C.RECOMMENDED, gain(*PAYS))), side())
    assert (change.kind, change.outcome, change.after) == ("no longer known", "inconclusive", "not measured")


@pytest.mark.parametrize("before", [finding(C.INCONCLUSIVE), finding(C.NOT_MEASURED, gain(1.04, 0.99, 1.09)), None])
def test_a_recommendation_that_appeared_where_nothing_was_known_warns(before: Finding | None) -> None:
    old = side(before) if before is not None else side()
    new = side(finding(C.RECOMMENDED, gain(*PAYS)))
    change = only(old, new)
    assert (change.kind, change.outcome, change.after) == ("appeared", "inconclusive", "recommended")
    assert change.text.endswith(f"; it was {change.before} before, so nothing shows that it changed")
    assert (only(old, new, WARN).kind, only(old, new, WARN).outcome) == ("appeared", "warn")
    assert diagnosis_changes(old, new, IGNORE) == []


def test_an_answer_that_appeared_where_nothing_was_known_warns() -> None:
    old, new = (
        Conclusions(
            answers=[QuestionAnswer(question=Question.TOKEN_LATENCY, conclusion=conclusion, text="So it is.")],
            findings=[],
            recommendations=[],
        )
        for conclusion in (C.NOT_MEASURED, C.RECOMMENDED)
    )
    assert (only(old, new, WARN).kind, only(old, new, WARN).outcome) == ("appeared", "warn")
    assert only(old, new).outcome == "inconclusive"


def test_every_change_has_the_line_of_the_policy() -> None:
    policy = DiagnosisPolicy(on_diagnosis_change="fail", line=30)
    change = only(side(finding(C.RECOMMENDED, gain(*PAYS))), side(finding(C.DOES_NOT_PAY, gain(*DOES_NOT))), policy)
    assert change.policy_line == 30
    assert switched_change(finding(C.RECOMMENDED, gain(*PAYS)), on="baseline", policy=policy).policy_line == 30


def test_every_kind_of_change_is_one_that_is_made() -> None:
    """The contract names no kind that nothing can produce."""
    made = {"turned off", "turned on"}
    for before, after in itertools.product(C, C):
        made |= {c.kind for c in diagnosis_changes(side(finding(before)), side(finding(after)), FAIL)}
    assert made == set(get_args(ChangeKind))


def test_what_became_known_and_what_was_and_stays_unneeded_is_for_information() -> None:
    for conclusion in (C.NOT_NEEDED, C.DOES_NOT_PAY):
        learnt = only(side(finding(C.INCONCLUSIVE)), side(finding(conclusion, gain(*DOES_NOT))))
        assert (learnt.kind, learnt.outcome) == ("changed", "info")
    other_no = only(side(finding(C.NOT_NEEDED)), side(finding(C.DOES_NOT_PAY, gain(*DOES_NOT))))
    assert (other_no.kind, other_no.outcome) == ("changed", "info")
    assert diagnosis_changes(side(finding(C.INCONCLUSIVE)), side(finding(C.NOT_MEASURED)), FAIL) == []
    same = side(finding(C.RECOMMENDED, gain(*PAYS)))
    assert diagnosis_changes(same, same, FAIL) == []


def test_one_entry_a_technique_the_gravest_first() -> None:
    """Two rules are about one technique, and the answer to the question repeats the first: one entry."""

    def both(first: Conclusion, second: Conclusion, gains: tuple[float, float, float]) -> Conclusions:
        later = {"rule_id": "caching-memory", "title": "Caching (memory)"}
        other = {"technique": "max_num_seqs", "rule_id": "batch", "question": Question.OUTPUT_VARIANCE}
        return side(
            finding(second, gain(*gains), **later), finding(first, gain(*gains)), finding(second, gain(*gains), **other)
        )

    changes = diagnosis_changes(
        both(C.RECOMMENDED, C.INCONCLUSIVE, PAYS), both(C.DOES_NOT_PAY, C.NOT_NEEDED, DOES_NOT), FAIL
    )
    assert [(change.technique, change.outcome) for change in changes] == [
        ("prefix_caching", "fail"),
        ("max_num_seqs", "info"),
    ]
    assert changes[0].title == "Prefix caching"


def test_the_gravest_stands_first_where_its_technique_has_lesser_changes_too() -> None:
    """A technique that fails and, by another rule, is for information: a warning of another one comes after it."""
    facts = {C.RECOMMENDED: PAYS, C.DOES_NOT_PAY: DOES_NOT, C.NOT_NEEDED: DOES_NOT}

    def of(first: Conclusion, second: Conclusion, other: Conclusion) -> Conclusions:
        return side(
            finding(first, *([gain(*facts[first])] if first in facts else [])),
            finding(second, rule_id="caching-memory"),
            finding(other, rule_id="batch", technique="max_num_seqs", question=Question.OUTPUT_VARIANCE),
        )

    changes = diagnosis_changes(
        of(C.RECOMMENDED, C.NOT_NEEDED, C.RECOMMENDED), of(C.DOES_NOT_PAY, C.DOES_NOT_PAY, C.INCONCLUSIVE), FAIL
    )
    assert [(change.technique, change.outcome) for change in changes] == [
        ("prefix_caching", "fail"),
        ("max_num_seqs", "inconclusive"),
    ]


def test_an_answer_that_changed_without_a_finding_is_told() -> None:
    old, new = (
        Conclusions(
            answers=[QuestionAnswer(question=Question.TOKEN_LATENCY, conclusion=conclusion, text=text)],
            findings=[],
            recommendations=[],
        )
        for conclusion, text in ((C.NOT_NEEDED, "Fast enough."), (C.RECOMMENDED, "Too slow."))
    )
    change = only(old, new)
    assert (change.kind, change.outcome, change.technique) == ("appeared", "inconclusive", "token_latency")
    assert "not needed (Fast enough) -> recommended (Too slow)" in change.text


def test_only_the_questions_that_were_asked_for_count() -> None:
    old, new = side(finding(C.RECOMMENDED, gain(*PAYS))), side(finding(C.DOES_NOT_PAY, gain(*DOES_NOT)))
    for questions, expected in (((2,), 1), ((3, 5), 0)):
        policy = DiagnosisPolicy(on_diagnosis_change="fail", questions=questions)
        assert len(diagnosis_changes(old, new, policy)) == expected


def test_real_diagnoses_of_a_cache_that_stopped_paying(runs: Any) -> None:
    def concluded(of: tuple[float, float, float]) -> Diagnosis:
        return diagnose(runs.evidence(gain=of), load_pack())

    change = next(c for c in diagnosis_changes(concluded(PAYS), concluded(DOES_NOT), FAIL) if c.outcome != "info")
    assert (change.technique, change.kind, change.outcome) == ("prefix_caching", "worse", "fail")
    assert "1.42x [1.30..1.52], 8 pairs) -> does not pay (0.99x [0.97..1.02], 8 pairs)" in change.text
    assert diagnosis_changes(concluded(PAYS), concluded(PAYS), FAIL) == []


@pytest.mark.parametrize(
    ("on", "conclusion", "outcome"),
    [
        ("baseline", C.RECOMMENDED, "fail"),
        ("baseline", C.DOES_NOT_PAY, "info"),
        ("baseline", C.NOT_NEEDED, "info"),
        ("baseline", C.INCONCLUSIVE, "inconclusive"),
        ("candidate", C.RECOMMENDED, "info"),
        ("candidate", C.DOES_NOT_PAY, "warn"),
        ("candidate", C.NOT_MEASURED, "inconclusive"),
    ],
)
def test_a_technique_that_the_arms_switch(on: Any, conclusion: Conclusion, outcome: str) -> None:
    found = finding(conclusion, gain(*PAYS))
    change = switched_change(found, on=on, policy=FAIL)
    turned_off = on == "baseline"
    assert change.outcome == outcome
    assert change.kind == ("turned off" if turned_off else "turned on")
    assert (change.before, change.after) == (("on", "off") if turned_off else ("off", "on"))
    assert f"it {conclusion.value} (gain in throughput 1.42x [1.30..1.52], 8 pairs)" in change.text
    assert switched_change(found, on=on, policy=WARN).outcome in ("warn", "info")
    assert switched_change(found, on=on, policy=IGNORE).outcome == "info"

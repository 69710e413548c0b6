"""What a finding says beside its conclusion: facts for and against, status, severity, confidence, marks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferdoc.evidence import Basis, Conclusion, Finding, Outputs, Quantity, Question, Roofline, Truth
from inferdoc.rules import diagnose, load_pack

RECOMMENDED = Conclusion.RECOMMENDED
NOT_NEEDED = Conclusion.NOT_NEEDED
INCONCLUSIVE = Conclusion.INCONCLUSIVE
NOT_MEASURED = Conclusion.NOT_MEASURED

UP = (1.8, 1.6, 2.0)
FLAT = (1.0, 0.98, 1.02)
DOWN = (0.8, 0.75, 0.85)
OPEN = (1.06, 0.97, 1.15)

Setup = Callable[[Any], Any]


def prefix(make: Any, throughput: Any, ttft: Any) -> Any:
    make.fits().known("prefix.ideal_hit_rate", 0.6).compare("prefix_caching.saturated", throughput=throughput)
    return make.compare("prefix_caching.open", ttft_p50=ttft)


def ids(finding: Finding) -> tuple[set[str], set[str]]:
    return {fact.quantity.id for fact in finding.evidence}, {fact.quantity.id for fact in finding.against}


def test_a_recommendation_lists_what_the_technique_costs_against_it(make: Any, judge: Any) -> None:
    prefix(make, UP, FLAT).compare("prefix_caching.open", ttft_p50=FLAT, e2e_p50=DOWN, tpot_p50=OPEN)
    supporting, against = ids(judge.finding(make, "prefix-caching"))
    assert "prefix_caching.saturated.throughput.gain" in supporting
    assert against == {"prefix_caching.open.e2e_p50.gain"}
    # The other objective's metric is context: it neither carries the conclusion nor stands against it.
    assert "prefix_caching.open.ttft_p50.gain" in supporting


@pytest.mark.parametrize(
    ("rule", "comparison", "metric", "gains"),
    [
        ("chunked-prefill", "chunked_prefill.interference", "ttft_p50", {"itl_max": UP, "ttft_p50": DOWN}),
        ("continuous-batching", "continuous_batching.open", "tpot_p50", {"ttft_p50": UP, "tpot_p50": DOWN}),
    ],
)
def test_a_shown_loss_stands_against_the_recommendation_and_among_what_to_expect(
    make: Any, judge: Any, rule: str, comparison: str, metric: str, gains: dict[str, Any]
) -> None:
    make.objectives(itl_max=0.05)
    make.fits().compare("continuous_batching.saturated", throughput=UP).compare(comparison, **gains)
    assert ids(judge.finding(make, rule))[1] == {f"{comparison}.{metric}.gain"}
    (advice,) = [advice for advice in judge(make).recommendations if advice.finding == rule]
    cost = advice.expected[-1]
    assert (cost.metric, cost.estimate, cost.low, cost.high) == (metric, *DOWN)
    assert sum(item.high is not None and item.high < 1 for item in advice.expected) == 1


def test_too_few_pairs_are_inconclusive_with_the_estimate_and_the_count(make: Any, judge: Any) -> None:
    note = "4 of the 6 pairs that an interval takes were run"
    make.fits().known("prefix.ideal_hit_rate", 0.6).compare("prefix_caching.saturated", throughput=1.8, note=note)
    finding = judge.finding(make, "prefix-caching")
    assert finding.conclusion is INCONCLUSIVE
    assert finding.text == f"Throughput gain 1.80x, 3 pairs has no interval yet ({note})."
    (fact,) = [fact for fact in finding.evidence if fact.quantity.id == "prefix_caching.saturated.throughput.gain"]
    assert (fact.quantity.value, fact.quantity.interval, fact.outcome) == (1.8, None, Truth.UNDECIDED)
    assert judge(make).recommendations == []


@pytest.mark.parametrize(
    ("measured", "confidence", "marks"),
    [
        (300, "high", []),
        (30, "high", ["measured on 30 of 300 requests"]),
        (29, "medium", ["measured on 29 of 300 requests"]),
    ],
)
def test_a_slice_below_a_tenth_of_the_trace_lowers_the_confidence(
    make: Any, judge: Any, measured: int, confidence: str, marks: list[str]
) -> None:
    make.slice_requests = measured
    finding = judge.finding(prefix(make, UP, UP), "prefix-caching")
    assert (finding.confidence, finding.marks) == (confidence, marks)
    whole = judge.finding(make.known("prefix.ideal_hit_rate", 0.001), "prefix-caching")
    assert (whole.conclusion, whole.confidence, whole.marks) == (NOT_NEEDED, "high", [])


def test_many_weaknesses_leave_the_confidence_low(make: Any, judge: Any) -> None:
    make.slice_requests, make.length_scale = 16, 0.5
    make.unhealthy("degraded", "the clock fell")
    assert judge.finding(prefix(make, UP, UP), "prefix-caching").confidence == "low"


def test_a_conclusion_names_what_would_refute_it_and_not_its_opposite(make: Any, judge: Any) -> None:
    yes = judge.finding(prefix(make, UP, UP), "prefix-caching").refuted_by
    no = judge.finding(prefix(make, FLAT, FLAT), "prefix-caching").refuted_by
    assert yes.startswith("traffic whose prompts share fewer whole blocks")
    assert no.startswith("traffic whose prompts share more, or longer, whole blocks")
    assert judge.finding(prefix(make, OPEN, FLAT), "prefix-caching").refuted_by is None


def test_a_technique_that_does_not_pay_shows_the_gains_it_lacks(make: Any, judge: Any) -> None:
    finding = judge.finding(prefix(make, FLAT, FLAT), "prefix-caching")
    supporting, against = ids(finding)
    assert {"prefix_caching.saturated.throughput.gain", "prefix_caching.open.ttft_p50.gain"} <= supporting
    assert against == set()
    facts = {fact.quantity.id: fact for fact in finding.evidence}
    fact = facts["prefix_caching.saturated.throughput.gain"]
    assert (fact.relation, fact.threshold, fact.outcome) == ("at least", 1.05, Truth.NO)
    assert fact.threshold_source is not None
    assert fact.threshold_source.startswith("inferdoc: judgement, because")


def test_a_trade_that_does_not_pay_shows_the_gain_against_the_conclusion(make: Any, judge: Any) -> None:
    supporting, against = ids(judge.finding(prefix(make, DOWN, UP), "prefix-caching"))
    assert "prefix_caching.saturated.throughput.gain" in supporting
    assert "prefix_caching.open.ttft_p50.gain" in against


@pytest.mark.parametrize(
    ("rule", "setup", "status"),
    [
        ("prefix-caching", lambda m: prefix(m, UP, UP), "failed"),
        ("prefix-caching", lambda m: prefix(m, FLAT, FLAT), "passed"),
        ("prefix-caching", lambda m: prefix(m, OPEN, FLAT), "unknown"),
        ("paged-attention", lambda m: m.fits().known("fragmentation.budget_binds", 0), "not_applicable"),
        ("continuous-batching", lambda m: m.fits(), "unknown"),
        ("quantization", lambda m: m.fits(2.0, 0.93), "warned"),
        ("kv-quantization", lambda m: m.fits(1.2), "unknown"),
    ],
)
def test_the_status_follows_the_conclusion(make: Any, judge: Any, rule: str, setup: Setup, status: str) -> None:
    assert judge.finding(setup(make), rule).status == status


@pytest.mark.parametrize(
    ("gain", "severity"), [((1.7, 1.5, 1.9), "high"), ((1.7, 1.2, 1.9), "medium"), ((1.1, 1.06, 1.2), "low")]
)
def test_severity_follows_the_sure_end_of_the_gain(make: Any, judge: Any, gain: Any, severity: str) -> None:
    assert judge.finding(prefix(make, gain, (5, 4, 6)), "prefix-caching").severity == severity


def test_an_inconclusive_finding_says_how_much_longer_to_measure(make: Any, judge: Any) -> None:
    make.objectives(itl_max=0.05)
    make.fits().compare("chunked_prefill.interference", itl_max=OPEN, note="needs 4 more pairs, 31 s")
    finding = judge.finding(make, "chunked-prefill")
    assert finding.text == ("Itl_max gain 1.06x [0.97..1.15], 6 pairs straddles 1.05x (needs 4 more pairs, 31 s).")
    assert (finding.severity, finding.confidence) == ("none", "low")


def test_an_engine_off_the_limit_is_a_mark_beside_the_conclusion(make: Any, judge: Any) -> None:
    prefix(make, UP, UP).compare("prefix_caching.saturated", throughput=UP, engine_limited=True)
    finding = judge.finding(make, "prefix-caching")
    assert (finding.conclusion, finding.marks, finding.confidence) == (RECOMMENDED, ["engine-limited"], "medium")


def test_a_step_time_off_the_limit_marks_the_finding_that_rests_on_it(make: Any, judge: Any) -> None:
    make.fits().known("latency.tpot_b1", 0.01)
    tpot = make.quantities["latency.tpot_b1"]
    for memory, marks in ((0.8, []), (0.3, ["engine-limited"])):
        tpot.roofline = Roofline(fraction=memory, memory=memory, compute=0.1)
        assert judge.finding(make, "quantization-for-latency").marks == marks
    tpot.roofline = Roofline(fraction=0.1, compute=0.1, note="cache-resident: no MBU; a lower bound")
    assert judge.finding(make, "quantization-for-latency").marks == ["cache-resident: no MBU"]


def test_a_scaled_workload_and_an_overloaded_arm_are_marked(make: Any, judge: Any) -> None:
    make.length_scale = 0.125
    prefix(make, UP, UP).compare("prefix_caching.open", ttft_p50=UP, overloaded=("off",))
    finding = judge.finding(make, "prefix-caching")
    assert finding.marks == ["scaled workload", "off arm overloaded (prefix_caching.open)"]
    assert finding.confidence == "medium"


def test_a_technique_that_changes_the_outputs_says_so(make: Any, judge: Any) -> None:
    prefix(make, UP, UP)
    make.comparisons["prefix_caching.saturated"].outputs = Outputs(requests=40, identical=37)
    assert judge.finding(make, "prefix-caching").marks == [
        "outputs differ in 3 of 40 requests (prefix_caching.saturated)"
    ]


def test_a_cache_resident_working_set_has_no_roofline(make: Any, judge: Any) -> None:
    make.fits().known("latency.tpot_b1", 0.01).unknown("latency.roofline_b1", "cache-resident: no MBU")
    assert judge.finding(make, "quantization-for-latency").marks == ["cache-resident: no MBU"]


def test_outputs_that_are_not_real_say_nothing_about_acceptance(make: Any, judge: Any) -> None:
    make.real_outputs = False
    finding = judge.finding(make.fits().known("latency.ngram_tokens_per_step", 1.0), "speculative-ngram")
    assert finding.conclusion is NOT_MEASURED
    assert finding.text.startswith("Outputs are not real")


def test_outputs_that_are_not_real_leave_other_techniques_alone(make: Any, judge: Any) -> None:
    make.real_outputs = False
    assert judge.finding(prefix(make, UP, UP), "prefix-caching").conclusion is RECOMMENDED
    assert judge.finding(make, "quantization").conclusion is NOT_NEEDED


def test_a_run_that_is_not_valid_supports_no_paired_conclusion(make: Any, judge: Any) -> None:
    make.unhealthy("invalid", "3 requests failed")
    finding = judge.finding(prefix(make, UP, UP), "prefix-caching")
    assert finding.conclusion is INCONCLUSIVE
    assert finding.text.endswith("But the run is not valid: 3 requests failed.")
    assert judge.finding(make, "tensor-parallelism").conclusion is NOT_NEEDED


@pytest.mark.parametrize(("status", "confidence"), [("valid", "high"), ("degraded", "medium")])
def test_a_degraded_run_lowers_the_confidence(make: Any, judge: Any, status: str, confidence: str) -> None:
    make.unhealthy(status, "the clock fell")
    assert judge.finding(prefix(make, UP, UP), "prefix-caching").confidence == confidence


def test_modelled_numbers_lower_the_confidence(make: Any, judge: Any) -> None:
    make.fits().known("disagg.replicas_needed", 0.3, basis=Basis.MODELLED)
    assert judge.finding(make, "disaggregation").confidence == "medium"


def test_where_the_model_does_not_fit_no_later_question_is_answered(make: Any, judge: Any) -> None:
    diagnosis = judge(prefix(make, UP, UP).does_not_fit())
    later = [finding for finding in diagnosis.findings if finding.question is not Question.HARDWARE_FIT]
    assert {finding.conclusion for finding in later} == {NOT_MEASURED}
    assert {finding.text for finding in later} == {"Does not fit."}
    assert len(later) == 16


def test_a_probe_that_did_not_run_gives_its_reason(make: Any, judge: Any) -> None:
    make.fits().probe(Question.OUTPUT_VARIANCE, "the budget is used up")
    finding = judge.finding(make, "continuous-batching")
    assert (finding.conclusion, finding.text) == (NOT_MEASURED, "The budget is used up.")


def test_an_interrupted_run_says_so(make: Any, judge: Any) -> None:
    make.run_status = "partial"
    assert judge.finding(make, "tensor-parallelism").text == "The run ended before this was measured."


def test_a_missing_quantity_is_a_fact_without_a_value_never_zero(make: Any, judge: Any) -> None:
    finding = judge.finding(make.fits(), "continuous-batching")
    quantities: list[Quantity] = [fact.quantity for fact in finding.evidence]
    assert quantities
    assert all(quantity.value is None and quantity.reason for quantity in quantities)


def test_a_gain_that_no_condition_asks_for_still_speaks_against_not_paying(make: Any, judge: Any) -> None:
    prefix(make, FLAT, FLAT).compare("prefix_caching.open", ttft_p50=FLAT, e2e_p50=UP, tpot_p50=OPEN)
    finding = judge.finding(make, "prefix-caching")
    assert finding.conclusion is Conclusion.DOES_NOT_PAY
    assert ids(finding)[1] == {"prefix_caching.open.e2e_p50.gain"}


GRAPHS = """\
question: token_latency
rules:
  - id: graphs
    version: 1
    technique: {technique}
    title: Graphs
    asks: Does it pay?
    why: Because.
    change: {{knob: graphs, from: "off", to: "on"}}
    cases:
      - conclude: recommended
        when: {{measure: cuda_graphs.saturated.throughput.gain, at_least: least_worthwhile_gain}}
        text: It pays
      - conclude: does not pay
        text: It does not pay
"""


@pytest.mark.parametrize(
    ("technique", "limited", "conclusion"),
    [
        ("cuda_graphs", True, INCONCLUSIVE),
        ("cuda_graphs", False, RECOMMENDED),
        ("cuda_graphs", None, RECOMMENDED),
        ("speculative_ngram", True, INCONCLUSIVE),
        ("chunked_prefill", True, RECOMMENDED),
    ],
)
def test_an_engine_off_the_limit_leaves_only_what_it_misleads_about_open(
    make: Any, tmp_path: Path, technique: str, limited: bool | None, conclusion: Conclusion
) -> None:
    (tmp_path / "graphs.yaml").write_text(GRAPHS.format(technique=technique), encoding="utf-8")
    make.fits().compare("cuda_graphs.saturated", throughput=UP, engine_limited=limited)
    diagnosis = diagnose(make.build(), load_pack(tmp_path))
    (finding,) = [finding for finding in diagnosis.findings if finding.rule_id == "graphs"]
    assert finding.conclusion is conclusion
    assert ("engine-limited" in finding.marks) is bool(limited)
    assert bool(diagnosis.recommendations) is (conclusion is RECOMMENDED)

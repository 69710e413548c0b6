from __future__ import annotations

from inferdoc.evidence import Conclusion, Diagnosis, EnvironmentField, Evidence, Question, Slo
from inferdoc.reports.outline import device_name, lead_metric, metric_name, outline

Case = tuple[Evidence, Diagnosis]


def test_why_tells_what_pays_in_the_order_of_the_advice(complete: Case) -> None:
    told = [block.finding.rule_id for block in outline(*complete).why]
    assert told == ["prefix_caching", "continuous_batching", "chunked_prefill", "max_num_seqs"]


def test_not_measured_is_never_among_the_not_needed(complete: Case) -> None:
    made = outline(*complete)
    assert [block.finding.rule_id for block in made.not_needed] == ["paged_attention"]
    assert [finding.rule_id for finding in made.not_measured] == ["quantization", "speculative_draft"]


def test_every_comparison_is_printed_exactly_once(complete: Case) -> None:
    evidence, diagnosis = complete
    printed = [comparison.id for comparison in outline(evidence, diagnosis).comparisons]
    assert sorted(printed) == sorted(evidence.comparisons)
    without = diagnosis.model_copy(update={"findings": []})
    assert [c.id for c in outline(evidence, without).other_comparisons] == list(evidence.comparisons)


def test_a_second_finding_on_a_comparison_points_to_the_first(complete: Case) -> None:
    block = outline(*complete).why[3]
    assert block.comparisons == ()
    assert [comparison.id for comparison in block.elsewhere] == ["continuous_batching.saturated"]


def test_there_are_six_answers_even_when_no_rule_answered(bare: Case) -> None:
    answers = outline(*bare).answers
    assert [answer.question for answer in answers] == list(Question)
    assert {answer.conclusion for answer in answers} == {Conclusion.NOT_MEASURED}


def test_objective_is_held_against_both_arms_of_an_open_loop(complete: Case) -> None:
    rows = [row for row in outline(*complete).key_numbers if row.standing]
    assert [(row.quantity.id, row.limit, row.standing) for row in rows] == [
        ("prefix_caching.open.ttft_p95.off", "at most 500 ms", "missed"),
        ("prefix_caching.open.ttft_p95.on", "at most 500 ms", "missed"),
        ("tpot_p95", "at most 50 ms", "not known"),
    ]


def test_objective_within_the_interval_is_undecided(complete: Case) -> None:
    evidence, diagnosis = complete
    comparison = evidence.comparisons["prefix_caching.open"]
    paired = comparison.metrics["ttft_p95"]
    interval = paired.gain.interval
    assert interval is not None
    straddling = interval.model_copy(update={"low": 0.48, "high": 0.56})
    paired.on_estimate.interval = straddling
    evidence.run.slo = [Slo(metric="ttft_p95", limit=0.5, unit="s")]
    assert [row.standing for row in outline(evidence, diagnosis).key_numbers[:2]] == ["missed", "undecided"]


def test_threshold_of_a_rule_is_no_limit_of_a_key_number(complete: Case) -> None:
    evidence, diagnosis = complete
    rows = {row.quantity.id: row for row in outline(evidence, diagnosis).key_numbers}
    facts = [fact for finding in diagnosis.findings for fact in finding.evidence]
    assert any(fact.quantity.id == "prefix.ideal_hit_rate" and fact.threshold == 0.2 for fact in facts)
    assert rows["prefix.ideal_hit_rate"].limit is None
    assert outline(evidence, diagnosis).has_limits
    evidence.run.slo = []
    assert not outline(evidence, diagnosis).has_limits


def test_finding_names_its_comparison_with_too_few_pairs(complete: Case) -> None:
    evidence, diagnosis = complete
    assert [block.short for block in outline(evidence, diagnosis).why] == [None] * 4
    evidence.comparisons["prefix_caching.saturated"].pairs = 5
    evidence.comparisons["prefix_caching.open"].pairs = 2
    evidence.comparisons["continuous_batching.saturated"].pairs = 4
    short = [block.short for block in outline(evidence, diagnosis).why]
    assert [comparison.id if comparison else None for comparison in short] == [
        "prefix_caching.open",
        "continuous_batching.saturated",
        None,
        "continuous_batching.saturated",
    ]


def test_problems_are_told_and_a_clean_run_has_none(complete: Case, bare: Case) -> None:
    assert [problem.text for problem in outline(*complete).problems] == [
        "other processes: load average 1.9 before the run, on 2 cores"
    ]
    assert [problem.severity for problem in outline(*bare).problems] == ["caution", "serious", "caution"]
    evidence, diagnosis = complete
    diagnosis.validity.status = "valid"
    assert outline(evidence, diagnosis).problems == ()


def test_overloaded_and_failed_comparisons_are_problems(complete: Case) -> None:
    evidence, diagnosis = complete
    evidence.comparisons["prefix_caching.open"].overloaded = ["off"]
    evidence.comparisons["paged_attention.p25"].failure = "out of memory"
    texts = " ".join(problem.text for problem in outline(evidence, diagnosis).problems)
    assert "Prefix caching, open loop: overloaded with the technique off." in texts
    assert "Paged KV at 25% of the p99 demand: no result, out of memory" in texts


def test_the_drawn_metric_is_the_one_that_the_finding_quotes(complete: Case) -> None:
    evidence, diagnosis = complete
    comparison = evidence.comparisons["prefix_caching.open"]
    assert lead_metric(comparison, diagnosis.findings[0]) == "ttft_p50"
    assert lead_metric(comparison.model_copy(update={"metrics": {}}), None) is None


def test_device_is_named_or_not_known(complete: Case, bare: Case) -> None:
    assert device_name(complete[0].environment) == "2-core CPU, host RAM"
    assert device_name(bare[0].environment) == "not known"
    complete[0].environment.fields["gpu"] = EnvironmentField(state="value", value="NVIDIA H200", source="nvml")
    assert device_name(complete[0].environment) == "NVIDIA H200"


def test_metric_names() -> None:
    assert metric_name("ttft_p95") == "TTFT p95"
    assert metric_name("goodput") == "goodput"

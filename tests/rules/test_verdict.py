"""The sentences at the top, the answers to the six questions, and claims beside measurements."""

from __future__ import annotations

from typing import Any

import pytest

from inferdoc.evidence import Conclusion, Diagnosis, Question

UP, FLAT, OPEN = (1.8, 1.6, 2.0), (1.0, 0.98, 1.02), (1.06, 0.97, 1.15)


def prefix(make: Any, throughput: Any = UP, **open_loop: Any) -> Any:
    make.fits().known("prefix.ideal_hit_rate", 0.6).compare("prefix_caching.saturated", throughput=throughput)
    arms = open_loop.pop("arms", None)
    return make.compare("prefix_caching.open", arms=arms, **(open_loop or {"ttft_p50": FLAT}))


def test_the_headline_names_the_bottleneck_and_the_first_line_the_best_step_with_its_range(
    make: Any, judge: Any
) -> None:
    verdict = judge(prefix(make)).verdict
    assert verdict.bottleneck == "prompts are computed again although 60% of their tokens repeat an earlier prompt"
    assert verdict.headline == "Prompts are computed again although 60% of their tokens repeat an earlier prompt."
    assert verdict.confidence == "high"
    assert not any("confidence" in line for line in [verdict.headline, *verdict.lines])
    assert verdict.lines[0] == "Next: prefix caching: off -> on; throughput 1.60x to 2.00x better (measured here)."


def test_a_second_step_warns_that_gains_overlap(make: Any, judge: Any) -> None:
    prefix(make).compare("continuous_batching.saturated", throughput=(1.3, 1.2, 1.4))
    lines = judge(make).verdict.lines
    assert lines[1].startswith("Then: batching: static -> continuous;")
    assert lines[1].endswith("Gains overlap; do not multiply them.")


def test_a_second_step_that_was_measured_as_a_stack_says_what_it_adds(make: Any, judge: Any) -> None:
    prefix(make).compare("continuous_batching.saturated", throughput=(1.3, 1.2, 1.4))
    make.known("stack.prefix_caching.adds", 1.8, (1.7, 1.9)).known("stack.continuous_batching.adds", 1.1, (1.05, 1.2))
    lines = judge(make).verdict.lines
    assert "on top" not in lines[0]
    assert lines[1].endswith("(measured here), on top of the steps before it 1.05x to 1.20x.")


def test_without_advice_the_headline_says_so(make: Any, judge: Any) -> None:
    assert judge(prefix(make, FLAT)).verdict.headline.startswith("Nothing that was measured pays here")


def test_an_open_result_is_not_called_a_refusal(make: Any, judge: Any) -> None:
    verdict = judge(prefix(make, OPEN)).verdict
    assert verdict.headline == "Nothing is shown to pay yet: 1 technique still inconclusive."
    assert (verdict.bottleneck, verdict.confidence) == (None, "low")


def test_a_model_that_does_not_fit_is_the_bottleneck(make: Any, judge: Any) -> None:
    verdict = judge(make.does_not_fit(4)).verdict
    assert verdict.headline == "The model does not fit into 16.0 GiB."
    assert verdict.lines[0] == "Next: tensor parallel size: 1 -> 4."


def test_an_empty_run_supports_nothing(make: Any, judge: Any) -> None:
    verdict = judge(make).verdict
    assert (verdict.headline, verdict.confidence) == ("Nothing was measured that a conclusion could rest on.", "low")
    assert verdict.lines[-1].startswith("Could not tell: not measured: ")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0.7, "met with and without prefix caching (620 ms -> 310 ms)"),
        (0.62, "met with and without prefix caching (620 ms -> 310 ms)"),
        (0.5, "missed without prefix caching (620 ms), met with it (310 ms)"),
        (0.2, "missed with and without prefix caching (620 ms -> 310 ms)"),
    ],
)
def test_an_objective_is_judged_without_and_with_the_technique(
    make: Any, judge: Any, limit: float, expected: str
) -> None:
    prefix(make, ttft_p50=UP, ttft_p95=UP, arms={"ttft_p95": (0.62, 0.31)}).objectives(ttft_p95=limit)
    lines = judge(make).verdict.lines
    (line,) = [line for line in lines if line.startswith("Objectives: ")]
    assert line.endswith(f": {expected}.")


def test_an_objective_inside_the_interval_is_undecided(make: Any, judge: Any) -> None:
    prefix(make, ttft_p50=UP, ttft_p95=UP, arms={"ttft_p95": (0.62, 0.31)}).objectives(ttft_p95=0.3)
    on = make.comparisons["prefix_caching.open"].metrics["ttft_p95"].on_estimate
    interval = make.comparisons["prefix_caching.open"].metrics["ttft_p95"].gain.interval
    on.interval = interval.model_copy(update={"low": 0.25, "high": 0.4})
    (line,) = [line for line in judge(make).verdict.lines if line.startswith("Objectives: ")]
    assert "missed without prefix caching (620 ms), undecided with it (310 ms [250 ms..400 ms])" in line


def test_an_objective_that_cannot_be_told_gives_one_short_reason(make: Any, judge: Any) -> None:
    prefix(make, ttft_p50=UP, ttft_p95=None).objectives(ttft_p95=0.3)
    reason = "too few requests in a run (16; p95 needs 72)"
    metric = make.comparisons["prefix_caching.open"].metrics["ttft_p95"]
    for arm in ("off_estimate", "on_estimate"):
        unknown = getattr(metric, arm).model_copy(update={"value": None, "reason": f"{reason}; run more"})
        setattr(metric, arm, unknown)
    (line,) = [line for line in judge(make).verdict.lines if line.startswith("Objectives: ")]
    assert line == f"Objectives: ttft_p95 <= 300 ms: cannot be told, {reason}."


def test_the_longest_gap_is_judged_beside_a_long_prompt_and_its_ttft_is_not(make: Any, judge: Any) -> None:
    make.fits().objectives(itl_max=0.02, ttft_p50=0.02)
    make.compare("chunked_prefill.interference", arms={"itl_max": (0.034, 0.015)}, itl_max=UP, ttft_p50=UP)
    (line,) = [line for line in judge(make).verdict.lines if line.startswith("Objectives: ")]
    gap = "itl_max <= 20.0 ms: missed without chunked prefill (34.0 ms), met with it (15.0 ms)"
    assert line == f"Objectives: {gap}; ttft_p50 <= 20.0 ms: not measured."


def test_a_median_does_not_stand_in_for_a_percentile(make: Any, judge: Any) -> None:
    make.fits().objectives(tpot_p95=0.05).known("latency.tpot_at_load", 0.02, unit="s")
    (line,) = [line for line in judge(make).verdict.lines if line.startswith("Objectives: ")]
    assert line == "Objectives: tpot_p95 <= 50.0 ms: not measured."


def test_an_objective_that_was_not_measured_says_so_and_tpot_falls_back_to_the_load(make: Any, judge: Any) -> None:
    make.fits().objectives(ttft_p95=0.5, tpot_p50=0.05).known("latency.tpot_at_load", 0.02, unit="s")
    (line,) = [line for line in judge(make).verdict.lines if line.startswith("Objectives: ")]
    assert "ttft_p95 <= 500 ms: not measured" in line
    assert "tpot_p50 <= 50.0 ms: met at 20.0 ms" in line


def test_the_verdict_has_at_most_five_lines(make: Any, judge: Any) -> None:
    prefix(make, ttft_p50=UP).compare("continuous_batching.saturated", throughput=UP).objectives(ttft_p50=0.5)
    make.unhealthy("degraded", "the clock fell")
    lines = judge(make).verdict.lines
    assert len(lines) == 5
    assert lines[3] == "This run is degraded: the clock fell."
    assert lines[4].startswith("Could not tell: ")


def answers(diagnosis: Diagnosis) -> dict[Question, tuple[Conclusion, str]]:
    return {answer.question: (answer.conclusion, answer.text) for answer in diagnosis.answers}


def test_every_question_is_answered_in_order(make: Any, judge: Any) -> None:
    assert [answer.question for answer in judge(make).answers] == list(Question)


def test_the_leading_rule_answers_its_question(make: Any, judge: Any) -> None:
    found = answers(judge(prefix(make).known("fragmentation.budget_binds", 0, exact=True)))
    assert found[Question.PREFIX_REDUNDANCY][0] is Conclusion.RECOMMENDED
    assert found[Question.HARDWARE_FIT][0] is Conclusion.NOT_NEEDED
    assert found[Question.HARDWARE_FIT][1].startswith("The model fits on one device")
    assert found[Question.KV_FRAGMENTATION][0] is Conclusion.NOT_NEEDED


def test_a_trace_without_prefixes_leaves_question_two_not_measured(make: Any, judge: Any) -> None:
    make.fits().unknown("prefix.ideal_hit_rate", "the trace has no prefixes")
    assert answers(judge(make))[Question.PREFIX_REDUNDANCY] == (Conclusion.NOT_MEASURED, "The trace has no prefixes.")


def test_a_limit_that_was_not_run_is_not_recommended_beside_what_was(make: Any, judge: Any) -> None:
    make.fits().objectives(tpot_p50=0.05).known("latency.slo_share", 1.4).known("latency.batch_in_slo", 16)
    diagnosis = judge(make.compare("continuous_batching.saturated", throughput=(3, 2.9, 3.1)))
    assert [advice.technique for advice in diagnosis.recommendations] == ["continuous_batching"]
    assert "Recommended beside this" not in answers(diagnosis)[Question.OUTPUT_VARIANCE][1]


def test_a_recommended_chunk_size_does_not_answer_whether_to_part_prefill_and_decode(make: Any, judge: Any) -> None:
    make.objectives(itl_max=0.05)
    make.fits().known("disagg.replicas_needed", 0.3)
    make.compare("chunked_prefill.interference", question=Question.DISAGGREGATION, itl_max=(2.0, 1.9, 2.1))
    conclusion, text = answers(judge(make))[Question.DISAGGREGATION]
    assert conclusion is Conclusion.NOT_NEEDED
    assert text.startswith("Not needed at this scale")
    assert text.endswith("Recommended beside this: Chunked prefill.")


def test_claims_stand_beside_what_was_measured_or_why_it_was_not(make: Any, judge: Any) -> None:
    claims = {claim.claim: claim for claim in judge(make.fits(fraction=0.42)).claims}
    line = claims["Weights above 90% of the memory leave too little room for the KV cache"]
    assert line.measured is not None
    assert (line.measured.id, line.measured.value) == ("fit.weights_fraction", 0.42)
    assert line.reason is None
    ttft = claims["Prefix caching cuts the time to first token by 60% (a gain of 2.5x)"]
    assert (ttft.measured, ttft.reason) == (None, "this run did not measure prefix_caching.open.ttft_p50.gain")
    assert all((claim.measured is None) != (claim.reason is None) for claim in claims.values())


def test_claims_about_savings_print_the_share_saved_and_speculation_its_gain(make: Any, judge: Any) -> None:
    make.fits().known("fit.int8_weight_saving", 0.4).known("fit.kv_fp8_saving", 0.5)
    make.compare("speculative_draft.alone", tpot_mean=(1.2, 1.1, 1.3))
    claims = {claim.claim: claim for claim in judge(make).claims}
    for text, value in (
        ("INT8 weights save about 50% of the memory of 16-bit weights", 0.4),
        ("An FP8 KV cache saves 50% of the bytes a token", 0.5),
    ):
        measured = claims[text].measured
        assert measured is not None
        assert measured.value == value
    (speculation,) = [claim for claim in claims.values() if claim.claim.startswith("Speculative")]
    assert speculation.measured is not None
    assert speculation.measured.value == 1.2


def test_a_diagnosis_survives_its_file(make: Any, judge: Any) -> None:
    diagnosis = judge(prefix(make))
    assert Diagnosis.model_validate_json(diagnosis.model_dump_json(by_alias=True)) == diagnosis
    assert diagnosis.schema_.name == "inferdoc.diagnosis"
    assert diagnosis.rule_pack.files[0].startswith("inferdoc/rules/")

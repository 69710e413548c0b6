"""Advice in order, with what to change, what to expect and how to check it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from inferdoc.evidence import Basis, Expected, Question
from inferdoc.rules import diagnose, load_pack
from inferdoc.rules.ranking import expected_text


def two_gains(make: Any, first: tuple[float, float, float], second: tuple[float, float, float]) -> Any:
    make.fits().known("prefix.ideal_hit_rate", 0.6)
    make.compare("prefix_caching.saturated", throughput=first)
    return make.compare("continuous_batching.saturated", throughput=second)


def order(diagnosis: Any) -> list[str]:
    assert [advice.rank for advice in diagnosis.recommendations] == list(range(1, len(diagnosis.recommendations) + 1))
    return [advice.technique for advice in diagnosis.recommendations]


def test_the_larger_sure_gain_comes_first(make: Any, judge: Any) -> None:
    assert order(judge(two_gains(make, (1.5, 1.4, 1.6), (2.0, 1.9, 2.1)))) == ["continuous_batching", "prefix_caching"]


def test_a_wide_interval_ranks_below_a_narrow_one_with_a_smaller_centre(make: Any, judge: Any) -> None:
    assert order(judge(two_gains(make, (1.5, 1.4, 1.6), (2.0, 1.1, 4.0)))) == ["prefix_caching", "continuous_batching"]


@pytest.mark.parametrize(
    ("objective", "first"),
    [("latency", "chunked_prefill"), ("throughput", "prefix_caching"), ("cost", "prefix_caching")],
)
def test_the_objective_decides_which_gain_counts(make: Any, judge: Any, objective: str, first: str) -> None:
    make.objective = objective
    make.fits().known("prefix.ideal_hit_rate", 0.6).compare("prefix_caching.saturated", throughput=(1.5, 1.4, 1.6))
    make.compare("chunked_prefill.interference", question=Question.DISAGGREGATION, itl_max=(2.0, 1.9, 2.1))
    assert order(judge(make))[0] == first


def test_complexity_divides_the_gain(make: Any, judge: Any, pack: Any, tmp_path: Path) -> None:
    evidence = two_gains(make, (2.0, 1.9, 2.1), (1.5, 1.4, 1.6)).build()
    assert order(diagnose(evidence, pack)) == ["prefix_caching", "continuous_batching"]
    points = math.log(1.9) / math.log(1.4) + 0.01
    (tmp_path / "dear.yaml").write_text(
        "techniques:\n  - {id: prefix_caching, title: P, improves: [a], costs: b, risk: c, quality_risk: d,"
        f" complexity: {{level: high, points: {points}}}, refs: ['https://example.org']}}\n",
        encoding="utf-8",
    )
    assert order(diagnose(evidence, load_pack(tmp_path))) == ["continuous_batching", "prefix_caching"]


def test_a_recommendation_can_be_followed_and_checked(make: Any, judge: Any) -> None:
    make.fits().compare("continuous_batching.saturated", throughput=(1.5, 1.4, 1.6))
    (advice,) = judge(make).recommendations
    expected = ("continuous-batching", "continuous-batching", "continuous_batching")
    assert (advice.id, advice.finding, advice.technique) == expected
    assert (advice.change.knob, advice.change.from_, advice.change.to) == ("batching", "static", "continuous")
    assert advice.verify_command == (
        "inferdoc diagnose --trace t.jsonl --budget 3m --question 3 -o verify-continuous_batching"
    )
    assert (advice.effort, advice.quality_risk) == ("low", "none")
    assert all(reference.startswith("https://") for reference in advice.refs)


@pytest.mark.parametrize(
    "written",
    ["-o out", "-oout", "--output out", "--output=out", "--question 2 -o out", "--question=2 --question 5", "-o 'a b'"],
)
def test_the_check_writes_into_its_own_folder_and_asks_its_own_question(make: Any, judge: Any, written: str) -> None:
    make.command = f"inferdoc diagnose {written} --trace 'my trace.jsonl' --slo ttft_p50=1s"
    make.objectives(itl_max=0.05)
    make.fits().compare("chunked_prefill.interference", itl_max=(2, 1.9, 2.1))
    (advice,) = judge(make).recommendations
    assert advice.verify_command == (
        "inferdoc diagnose --trace 'my trace.jsonl' --slo ttft_p50=1s --question 6 -o verify-chunked_prefill"
    )


def test_a_loss_in_a_metric_of_two_loads_says_under_which(make: Any, judge: Any) -> None:
    make.fits().known("prefix.ideal_hit_rate", 0.6)
    make.compare("prefix_caching.saturated", throughput=(1.5, 1.4, 1.6), ttft_p50=(0.8, 0.7, 0.9))
    make.compare("prefix_caching.open", ttft_p50=(1.0, 0.9, 1.1))
    expected = judge(make).recommendations[0].expected
    assert [item.label for item in expected] == ["throughput", "ttft_p50", "ttft_p50 (saturated)"]
    assert [item.estimate for item in expected] == [1.5, 1.0, 0.8]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.6, 2.0, "tokens a second 1.60x to 2.00x better (measured here)"),
        (0.97, 1.03, "tokens a second: no difference shown (0.97x..1.03x, measured here)"),
        (1.0, 1.03, "tokens a second: no difference shown (1.00x..1.03x, measured here)"),
        (0.59, 0.86, "tokens a second 0.59x to 0.86x as good (measured here)"),
        (None, None, "tokens a second 1.20x, no interval (measured here)"),
    ],
)
def test_better_is_said_only_of_an_interval_above_one(low: float | None, high: float | None, text: str) -> None:
    change = Expected(
        metric="throughput", label="tokens a second", estimate=1.2, low=low, high=high, basis=Basis.MEASURED
    )
    assert expected_text(change) == text


def test_flags_that_are_always_on_are_a_comment(make: Any, judge: Any) -> None:
    (advice,) = judge(make.fits().compare("continuous_batching.saturated", throughput=(2, 1.9, 2.1))).recommendations
    assert advice.engine_flags == {"vllm": "# always on", "sglang": "# always on"}


def test_the_expected_change_is_a_range_with_the_objectives_metric_first(make: Any, judge: Any) -> None:
    make.objective = "latency"
    two_gains(make, (1.5, 1.4, 1.6), (1, 0.99, 1.01)).compare("prefix_caching.open", ttft_p50=(3, 2.5, 3.5))
    first, second = judge(make).recommendations[0].expected
    assert (first.metric, first.estimate, first.low, first.high) == ("ttft_p50", 3, 2.5, 3.5)
    assert (second.metric, second.basis) == ("throughput", Basis.MEASURED)


def test_what_a_step_adds_is_given_only_where_the_stack_was_measured(make: Any, judge: Any) -> None:
    two_gains(make, (2.0, 1.9, 2.1), (1.5, 1.4, 1.6)).known("stack.continuous_batching.adds", 1.2, (1.1, 1.3))
    first, second = judge(make).recommendations
    assert first.adds is None
    assert second.adds is not None
    assert (second.adds.estimate, second.adds.low, second.adds.high) == (1.2, 1.1, 1.3)


def test_a_model_that_does_not_fit_gets_one_recommendation(make: Any, judge: Any) -> None:
    (advice,) = judge(make.does_not_fit(4)).recommendations
    assert (advice.technique, advice.change.from_, advice.change.to) == ("tensor_parallelism", "1", "4")
    assert advice.engine_flags["vllm"].startswith("--tensor-parallel-size 4  # ")
    assert "fraction of each device's TOTAL memory" in advice.engine_flags["vllm"]
    assert advice.expected == []


def test_nothing_is_recommended_from_an_empty_run(make: Any, judge: Any) -> None:
    assert judge(make).recommendations == []

"""Off and on: order, pairing, intervals, failures, and the end of the budget."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import RunResult
from inferdoc.engine.request import Request
from inferdoc.errors import MeasurementError
from inferdoc.evidence import Question
from inferdoc.probes.context import Collector, Settings
from inferdoc.probes.paired import Pair, Trial, compare

OFF = EngineConfig(max_model_len=64, num_kv_blocks=16)
ON = EngineConfig(max_model_len=64, num_kv_blocks=16, enable_prefix_caching=True)


def make_context(left_s: float = 1e9) -> Any:
    return SimpleNamespace(
        found=Collector(),
        between_runs=lambda: None,
        settings=Settings(),
        progress=lambda text: None,
        left_s=left_s,
        saturation={},
        runs={},
        predicted=False,
    )


def make_run(config: EngineConfig, output: list[int]) -> RunResult:
    request = Request(0, [1, 2, 3], len(output))
    request.tokens.extend(output)
    return RunResult(config, [request], [], 1.0)


def make_pair(
    values: dict[str, list[float | None]], metric: str = "throughput", calls: list[str] | None = None
) -> Pair:
    """A pair whose n-th counted run of each arm gives the n-th value; the warm-up before them gives -1."""
    left = {arm: iter([-1.0, *numbers]) for arm, numbers in values.items()}

    def trial(context: Any, pair: Pair, config: EngineConfig) -> Trial:
        arm = "on" if config.enable_prefix_caching else "off"
        if calls is not None:
            calls.append(arm)
        return Trial(values={metric: next(left[arm])}, run=make_run(config, [7, 8] if arm == "off" else [7, 9]))

    return Pair(
        id="prefix_caching.saturated",
        question=Question.PREFIX_REDUNDANCY,
        technique="prefix_caching",
        label="prefix caching",
        off=OFF,
        on=ON,
        metrics=(metric,),
        trial=trial,
    )


def test_runs_go_in_abba_order_after_one_of_each_arm_that_does_not_count() -> None:
    calls: list[str] = []
    comparison = compare(make_context(), make_pair({"off": [1.0] * 4, "on": [2.0] * 4}, calls=calls), 4)
    assert calls == ["off", "on"] + ["off", "on", "on", "off"] * 2
    assert comparison.order == calls[2:]
    assert comparison.metrics["throughput"].off == [1.0] * 4


def test_gain_of_a_throughput_pairs_runs_by_position() -> None:
    off: list[float | None] = [100.0, 110.0, 90.0, 105.0, 95.0, 100.0]
    ratios = [1.10, 1.20, 1.30, 1.15, 1.25, 1.18]
    on: list[float | None] = [a * r for a, r in zip(off, ratios, strict=True) if a is not None]
    gain = compare(make_context(), make_pair({"off": off, "on": on}), 6).metrics["throughput"].gain
    assert gain.interval is not None
    assert gain.interval.low == pytest.approx(1.10)  # with six pairs the exact 95% interval spans all differences
    assert gain.interval.high == pytest.approx(1.30)
    logs = [math.log(r) for r in ratios]
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(6) for j in range(i, 6))
    assert gain.value == pytest.approx(math.exp(walsh[10]))


def test_gain_of_a_latency_is_above_one_when_it_falls() -> None:
    pair = make_pair({"off": [0.2] * 6, "on": [0.1] * 6}, metric="ttft_p50")
    gain = compare(make_context(), pair, 6).metrics["ttft_p50"].gain
    assert gain.value == pytest.approx(2.0)


def test_five_pairs_have_no_interval_and_say_what_is_missing() -> None:
    gain = compare(make_context(), make_pair({"off": [1.0] * 5, "on": [2.0] * 5}), 5).metrics["throughput"].gain
    assert gain.value == pytest.approx(2.0)
    assert gain.interval is None
    assert gain.note is not None
    assert gain.note.startswith("5 of the 6 pairs")


def test_a_metric_without_values_says_why_and_is_not_zero() -> None:
    pair = make_pair({"off": [None] * 6, "on": [None] * 6}, metric="ttft_p95")
    metric = compare(make_context(), pair, 6).metrics["ttft_p95"]
    for quantity in (metric.off_estimate, metric.on_estimate, metric.gain):
        assert quantity.value is None
        assert quantity.reason == "too few requests in a run (1; p95 needs 72)"


def test_outputs_that_differ_are_counted_and_placed() -> None:
    outputs = compare(make_context(), make_pair({"off": [1.0] * 6, "on": [1.0] * 6}), 6).outputs
    assert outputs is not None
    assert (outputs.requests, outputs.identical) == (1, 0)
    assert outputs.first_difference == "request 0, output token 2"


def test_a_failing_arm_becomes_the_result() -> None:
    def trial(context: Any, pair: Pair, config: EngineConfig) -> Trial:
        raise MeasurementError("the pool is too small")

    pair = make_pair({"off": [], "on": []})
    pair = Pair(**{**pair.__dict__, "trial": trial})
    comparison = compare(make_context(), pair, 6)
    assert comparison.failure == "the pool is too small"
    assert comparison.pairs == 0
    assert comparison.metrics["throughput"].gain.value is None


def test_an_interruption_keeps_the_pairs_that_were_run() -> None:
    calls: list[str] = []
    pair = make_pair({"off": [1.0] * 6, "on": [2.0] * 6}, calls=calls)
    inner = pair.trial
    assert inner is not None

    def trial(context: Any, pair: Pair, config: EngineConfig) -> Trial:
        if len(calls) == 7:
            raise KeyboardInterrupt
        return inner(context, pair, config)

    context = make_context()
    with pytest.raises(KeyboardInterrupt):
        compare(context, Pair(**{**pair.__dict__, "trial": trial}), 6)
    kept = context.found.comparisons["prefix_caching.saturated"]
    assert kept.pairs == 2
    assert kept.metrics["throughput"].off == [1.0, 1.0]


def test_no_pair_starts_after_the_budget() -> None:
    context = make_context(left_s=0.05)
    pair = make_pair({"off": [1.0] * 6, "on": [2.0] * 6})
    inner = pair.trial
    assert inner is not None

    def slow(context: Any, pair: Pair, config: EngineConfig) -> Trial:
        time.sleep(0.01)
        context.left_s -= 0.01
        return inner(context, pair, config)

    assert compare(context, Pair(**{**pair.__dict__, "trial": slow}), 6).pairs == 1


def test_arms_must_differ_in_one_field_at_equal_kv() -> None:
    common = make_pair({"off": [], "on": []}).__dict__
    with pytest.raises(AssertionError, match="one field"):
        Pair(**{**common, "on": OFF})
    with pytest.raises(AssertionError, match="equal KV"):
        Pair(**{**common, "on": EngineConfig(max_model_len=64, num_kv_blocks=17)})


def test_requests_cut_short_have_no_outputs_to_compare() -> None:
    def trial(context: Any, pair: Pair, config: EngineConfig) -> Trial:
        run = make_run(config, [7, 8])
        cut = Request(1, [1], 10)
        cut.tokens.extend([5] * (3 if config.enable_prefix_caching else 4))
        run.requests.append(cut)
        return Trial(values={"throughput": 1.0}, run=run)

    pair = Pair(**{**make_pair({"off": [], "on": []}).__dict__, "trial": trial})
    outputs = compare(make_context(), pair, 6).outputs
    assert outputs is not None
    assert (outputs.requests, outputs.identical) == (1, 1)


def test_an_arm_at_zero_has_no_ratio_and_says_so() -> None:
    pair = make_pair({"off": [0.0] * 6, "on": [5.0] * 6}, metric="goodput")
    metric = compare(make_context(), pair, 6).metrics["goodput"]
    assert metric.gain.value is None
    assert metric.gain.reason == "the off arm is 0 in 6 of 6 runs, so there is no ratio"
    assert metric.off_estimate.value == 0.0

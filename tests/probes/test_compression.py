"""What is set up in fewer bits, which pairs follow, what is freed, and how the time for quality is shared."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from inferdoc.diagnosis import _validity
from inferdoc.errors import UnsupportedHereError
from inferdoc.evidence import Basis, Comparison, Objective, Outputs, Question, Slo
from inferdoc.probes import compression, compression_quality, fit_against_plan
from inferdoc.probes.compression import BITS, chosen_scheme, comparisons, run_alone, survey
from inferdoc.probes.context import Collector, ProbeContext, Settings, SliceRequest


@pytest.fixture(scope="module")
def surveyed(prepared: ProbeContext) -> ProbeContext:
    context = replace(prepared, found=Collector(), slice=[SliceRequest(list(range(40)), 5, None)] * 9)
    survey(context)
    fit_against_plan.observe(context)
    return context


def test_bytes_and_kernels_of_each_scheme_are_those_of_the_model(surveyed: ProbeContext) -> None:
    """int8: a byte for each weight of a linear layer and four for each of its rows; the rest stays in float32."""
    model, found = surveyed.loaded.model, surveyed.found.quantities
    layers = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    linear = sum(layer.weight.numel() for layer in layers)
    rows = sum(layer.weight.shape[0] for layer in layers)
    native = surveyed.loaded.weight_bytes_measured
    assert found["fit.weights_int8_dynamic_bytes"].value == native - 4 * linear + linear + 4 * rows
    assert found["fit.fused_int8_dynamic"].value == 1
    assert found["fit.fused_int8_weight_only"].value == 0
    assert "no fused kernel here, so its speed is not measured" in (found["fit.fused_int8_weight_only"].note or "")
    assert "one-shot magnitude, untrained" in (found["fit.weights_sparse_24_bytes"].note or "")
    assert (found["fit.quantization_scheme"].label, found["fit.quantization_scheme"].value) == ("int8_dynamic", 8)
    assert surveyed.runner.weight_kernels == ()  # the base configuration is left


def test_only_what_runs_fused_is_paired_and_the_rest_says_why_not(surveyed: ProbeContext) -> None:
    pairs = {pair.id: pair for pair in comparisons(surveyed)}
    assert list(pairs)[:2] == ["quantization.saturated", "quantization.alone"]
    assert ("kv_quantization.saturated" in pairs) is (surveyed.base.attention_backend == "cpu")
    assert all(pair.late and pair.compresses for pair in pairs.values())
    assert pairs["quantization.alone"].question is Question.TOKEN_LATENCY
    assert {pairs["quantization.alone"].off.max_num_seqs, pairs["quantization.alone"].on.max_num_seqs} == {1}
    for id in ("sparsity.saturated.throughput.gain", "sparsity.alone.tpot_p50.gain"):
        assert surveyed.found.quantities[id].reason == "no fused kernel here"


def test_a_device_that_lacks_a_format_is_told_and_nothing_is_paired(prepared: ProbeContext, monkeypatch: Any) -> None:
    context = replace(prepared, found=Collector(), base=replace(prepared.base, attention_backend="torch"))
    native = context.runner.configure

    def configure(config: Any) -> None:
        if config.weights != "native":
            raise UnsupportedHereError("needs compute capability 8.9")
        native(config)

    monkeypatch.setattr(context.runner, "configure", configure)
    survey(context)
    assert comparisons(context) == []
    found = context.found.quantities
    assert {found[f"fit.fused_{scheme}"].reason for scheme in BITS} == {"needs compute capability 8.9"}
    every = ", ".join(BITS)
    assert found["quantization.alone.tpot_p50.gain"].reason == f"needs compute capability 8.9 ({every})"
    assert found["sparsity.saturated.throughput.gain"].reason == "needs compute capability 8.9"
    assert "converts e4m3 pages" in (found["kv_quantization.saturated.throughput.gain"].reason or "")


def test_requests_alone_run_one_at_a_time_and_give_a_median(surveyed: ProbeContext) -> None:
    context = replace(surveyed, deadline=time.perf_counter() + 600)
    pair = next(pair for pair in comparisons(context) if pair.id == "quantization.alone")
    trial = run_alone(context, pair, pair.on)
    assert len(trial.run.requests) == 6
    assert {step.running for step in trial.run.steps} == {1}
    gaps = [r.tpot_s for r in trial.run.requests]
    assert trial.values["tpot_p50"] == pytest.approx(np.median(gaps))  # type: ignore[arg-type]


def test_the_plans_estimate_stands_beside_what_was_measured(surveyed: ProbeContext) -> None:
    found = surveyed.found.quantities
    assert found["fit.plan_weights_bytes"].value == surveyed.loaded.weight_bytes_measured
    assert (found["fit.plan_weights_bytes"].note or "").endswith("bytes: the same")
    kv = found["fit.plan_kv_tokens"]
    terms = sum(found[f"fit.plan_{name}_bytes"].value or 0 for name in ("weights", "activation", "outside"))
    assert kv.value == (surveyed.budget_bytes - terms) // 768  # 3 layers x 2 x 2 heads x 32 x 2 B
    assert "the plan sizes 768 bytes a token, this engine stores 1,536 (float32)" in (kv.note or "")
    assert f"measured {surveyed.kv_capacity_tokens:,} tokens" in (kv.note or "")


def test_what_is_freed_buys_whole_requests_of_the_usual_length(surveyed: ProbeContext) -> None:
    found, rows = surveyed.found.quantities, surveyed.trace.rows
    typical = int(np.median((rows["input_tokens"] + rows["output_tokens"]).to_numpy()))
    request = -(-typical // 16) * 16 * 1536
    freed = surveyed.loaded.weight_bytes_measured - (found["fit.weights_int8_dynamic_bytes"].value or 0)
    assert found["fit.frees_quantization_bytes"].value == freed
    assert found["fit.buys_quantization_requests"].value == freed // request
    held = surveyed.kv_capacity_tokens * 1536
    assert found["fit.more_kv_quantization"].value == pytest.approx((held + freed) / held)
    assert found["fit.more_kv_kv_quantization"].value == 4
    # e4m3 is a quarter of float32: three quarters of the pool are freed, and hold requests of a quarter of the size.
    pool = surveyed.kv_capacity_tokens * 1536
    assert found["fit.frees_kv_quantization_bytes"].value == pool * 3 / 4
    assert found["fit.buys_kv_quantization_requests"].value == int(3 * pool / request)
    # half of the values, and two bits to say which of four each one is
    linear = surveyed.spec.linear_parameters
    assert found["fit.frees_sparsity_bytes"].value == linear * (4 - 2 - 0.125)


def test_quality_has_a_share_of_the_budget_and_rules_come_first(surveyed: ProbeContext, monkeypatch: Any) -> None:
    asked: list[tuple[str, int, float]] = []

    def measured(context: Any, base: Any, variant: Any, technique: str, documents: Any, **_: Any) -> Any:
        asked.append((technique, len(documents), context.left_s))
        return SimpleNamespace(notes=[], reason=None, perplexity_ratio=SimpleNamespace(value=0.99))

    monkeypatch.setattr(compression_quality, "measure_quality", measured)
    compression_quality.measure_losses(replace(surveyed, deadline=time.perf_counter() + 600))
    names = [name for name, _, _ in asked]
    assert names[:3] == ["quantization", "kv_quantization", "sparsity"]
    assert set(names[3:]) == set(BITS) - {"int8_dynamic"}
    assert all(seconds <= compression_quality.SHARE * surveyed.settings.budget_s / 2 for _, _, seconds in asked)
    fast = replace(surveyed.sweep, times=replace(surveyed.sweep.times, token=1e-9))
    asked.clear()
    compression_quality.measure_losses(replace(surveyed, deadline=time.perf_counter() + 600, sweep=fast))
    counts = [count for _, count, _ in asked]
    assert counts[:3] == [63] * 3  # one of 64 sets the scales
    assert set(counts[3:]) == {24}


def test_no_more_text_is_read_than_fits_the_time_and_the_reason_says_so(surveyed: ProbeContext) -> None:
    slow = replace(surveyed.sweep, times=replace(surveyed.sweep.times, token=1.0))
    context = replace(surveyed, found=Collector(), sweep=slow, deadline=time.perf_counter() + 600)
    survey(context)
    began = time.perf_counter()
    compression_quality.measure_losses(context)
    assert time.perf_counter() - began < 10
    reason = context.found.quantities["quality.quantization.kl"].reason or ""
    assert "0 of 63 texts go into the 14 s left for it, a longer --budget reads more" in reason


def test_outputs_that_fewer_bits_change_do_not_degrade_the_run(surveyed: ProbeContext) -> None:
    found = Collector()
    for id, changed in (("quantization.saturated", "weights: native -> int8_dynamic"), ("a.b", "batching: a -> b")):
        found.comparisons[id] = Comparison.model_construct(
            label=id, changed=changed, outputs=Outputs(requests=9, identical=4), failure=None
        )
    text = {check.name: check.text for check in _validity([], found).checks}["outputs"]
    assert text == "outputs of off and on differ: a.b"


@pytest.mark.parametrize(
    ("objective", "slo", "chosen"),
    [
        (Objective.THROUGHPUT, (), "int8_dynamic"),
        (Objective.COST, (), "int8_dynamic"),
        (Objective.LATENCY, (), "int8_weight_only"),
        (Objective.THROUGHPUT, (Slo(metric="tpot_p50", limit=0.01, unit="s"),), "int8_weight_only"),
        (Objective.THROUGHPUT, (Slo(metric="ttft_p50", limit=0.01, unit="s"),), "int8_dynamic"),
    ],
)
def test_the_scheme_is_chosen_for_what_the_user_asks(objective: Any, slo: Any, chosen: str) -> None:
    found = Collector()
    for scheme in ("int8_weight_only", "int8_dynamic", "int4_weight_only"):
        found.add(f"fit.fused_{scheme}", scheme, 1.0, "share", Basis.MEASURED, exact=True)
    context: Any = SimpleNamespace(found=found, settings=Settings(objective=objective, slo=slo))
    assert chosen_scheme(context) == chosen


def test_a_scheme_beyond_its_time_is_left_out_and_says_so(prepared: ProbeContext) -> None:
    context = replace(prepared, found=Collector(), settings=replace(prepared.settings, budget_s=0.0))
    survey(context)
    reasons = {context.found.quantities[f"fit.fused_{scheme}"].reason for scheme in (*BITS, compression.SPARSE)}
    assert reasons == {"not within the time that the budget leaves for it"}

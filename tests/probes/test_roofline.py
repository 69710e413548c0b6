"""The roofline: what steps must read and compute, against rates that were measured."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from inferdoc.engine.attention.layer import LayerSpec
from inferdoc.engine.kv_manager import KVUse
from inferdoc.engine.steplog import Step
from inferdoc.evidence import Roofline
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.roofline import Work, roofline

BANDWIDTH, RATE = 1e9, 1e12
FULL = LayerSpec(kv_heads=2, key_dim=64, value_dim=32, scale=1.0)
WINDOWED = replace(FULL, window=100)


def make_context(**changes: Any) -> Any:
    """Two layers, one with a window; 5,000 parameters beside a head of 1,000; 16-bit; 8 query heads."""
    fixed = {
        "predicted": False,
        "bandwidth": SimpleNamespace(cache_resident=False, bytes_per_s=BANDWIDTH),
        "matmul": SimpleNamespace(flops_per_s=RATE),
        "runner": SimpleNamespace(specs=[FULL, WINDOWED], dtype=torch.bfloat16),
        "matrix_parameters": (5000, 1000),
        "weight_bytes_read": 12_000,
        "query_heads": 8,
    }
    return SimpleNamespace(**{**fixed, **changes})


def test_a_decode_step_reads_weights_and_what_the_windows_leave_of_the_context() -> None:
    limit = roofline(make_context(), [Work(seconds=0.01, tokens=4, sampled=4, rows=4, context_tokens=2000)])
    # 4 rows of 500 tokens: all of them in one layer, 100 in the other; 2 heads of 64 + 32 elements of 2 bytes
    read = 12_000 + 4 * (500 + 100) * 2 * (64 + 32) * 2
    operations = 2 * 4 * 5000 + 2 * 4 * 1000 + 2 * 8 * (64 + 32) * 4 * (500 + 100)
    assert limit.memory == pytest.approx(read / BANDWIDTH / 0.01)
    assert limit.compute == pytest.approx(operations / RATE / 0.01)
    assert limit.fraction == limit.memory


def test_the_slower_of_the_two_counts_in_each_step() -> None:
    decode = Work(seconds=1e-3, tokens=1, sampled=1, rows=1, context_tokens=10)
    prompt = Work(seconds=2e-3, tokens=100_000, sampled=0, rows=1, context_tokens=10)
    context = make_context()
    apart = [roofline(context, [work]) for work in (decode, prompt)]
    assert apart[0].fraction == apart[0].memory
    assert apart[1].fraction == apart[1].compute
    together = roofline(context, [decode, prompt])
    fractions = [limit.fraction or 0.0 for limit in apart]
    assert together.fraction == pytest.approx((fractions[0] * 1e-3 + fractions[1] * 2e-3) / 3e-3)
    assert together.fraction > max(together.memory or 0, together.compute or 0)


def test_a_cache_resident_model_has_a_compute_part_alone_and_says_so() -> None:
    work = Work(seconds=1e-6, tokens=1, sampled=1, rows=1, context_tokens=10)
    limit = roofline(make_context(bandwidth=SimpleNamespace(cache_resident=True, bytes_per_s=BANDWIDTH)), [work])
    assert limit.memory is None
    assert limit.fraction == limit.compute
    assert limit.note == "cache-resident: no MBU; a lower bound"


def test_without_any_rate_there_is_a_reason_instead_of_a_fraction() -> None:
    unknown = make_context(bandwidth=SimpleNamespace(cache_resident=True, bytes_per_s=BANDWIDTH), matmul=None)
    limit = roofline(unknown, [Work(1.0, 1, 1, 1, 1)])
    assert limit.fraction is None
    assert limit.reason == "cache-resident: no MBU; the matrix rate could not be measured"
    assert roofline(make_context(), []).reason == "no step was timed"
    assert roofline(make_context(predicted=True), [Work(1.0, 1, 1, 1, 1)]).reason == "modelled steps"


@pytest.mark.parametrize(
    ("fraction", "memory", "compute", "limited"),
    [
        (0.4, 0.4, 0.1, True),
        (0.6, 0.6, 0.1, False),
        (0.5, 0.1, 0.5, False),
        (0.4, None, 0.4, None),  # a lower bound: memory may be the limit
        (0.6, None, 0.6, False),
        (None, None, None, None),
    ],
)
def test_below_half_is_engine_limited_where_both_parts_are_known(
    fraction: float | None, memory: float | None, compute: float | None, limited: bool | None
) -> None:
    assert Roofline(fraction=fraction, memory=memory, compute=compute).engine_limited is limited


def step(prefill: int, decodes: int, padded: int, running: int) -> Step:
    return Step(
        start_s=1.0,
        end_s=1.5,
        schedule_s=0.0,
        prefill_tokens=prefill,
        decode_rows=decodes,
        padded_rows=padded,
        running=running,
        waiting=0,
        context_tokens=900,
        kv=KVUse(0, 0, 0, 0),
    )


def test_padding_is_work_and_a_prompts_logits_are_not_counted_on() -> None:
    assert Work.of(step(0, 3, 1, 4)) == Work(seconds=0.5, tokens=4, sampled=4, rows=4, context_tokens=900)
    assert Work.of(step(60, 3, 0, 5)) == Work(seconds=0.5, tokens=63, sampled=3, rows=5, context_tokens=900)
    assert Work.of(step(60, 0, 0, 0)).rows == 1


def test_matrix_parameters_are_those_of_the_models_linear_layers(prepared: ProbeContext) -> None:
    body, head = prepared.matrix_parameters
    linear = {name: m for name, m in prepared.loaded.model.named_modules() if isinstance(m, nn.Linear)}
    counted = sum(module.weight.numel() for name, module in linear.items() if "lm_head" not in name)
    assert head == linear["lm_head"].weight.numel()
    assert body == pytest.approx(counted, rel=0.005)  # norms are in it
    assert prepared.query_heads == prepared.loaded.model.config.num_attention_heads


def test_the_terms_of_a_real_preparation_add_up_to_its_budget(prepared: ProbeContext) -> None:
    memory = prepared.memory
    parts = (
        memory.weights,
        memory.profile.activation_peak,
        memory.graphs,
        memory.profile.outside_framework,
        memory.kv_pool,
        memory.left,
    )
    assert sum(part or 0 for part in parts) == memory.budget == prepared.budget_bytes
    assert memory.kv_pool == prepared.base.kv_tokens * prepared.runner.kv_bytes_per_token
    assert prepared.base.kv_tokens <= prepared.kv_capacity_tokens
    assert memory.left >= 0

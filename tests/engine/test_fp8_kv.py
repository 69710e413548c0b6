"""K/V in e4m3: what is stored, what attention makes of it, and that caching and preemption carry it along."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine.attention.cpu import CpuLayout, why_unavailable
from inferdoc.engine.attention.layer import KvScales, LayerPages, LayerSpec, StepState
from inferdoc.engine.attention.reference import TorchLayout
from inferdoc.engine.batch import StepInput
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.e4m3 import LARGEST, from_e4m3, scale_for, to_e4m3
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.errors import MeasurementError

CPU = torch.device("cpu")
BACKENDS = ["torch"] + (["cpu"] if why_unavailable(torch.float32, CPU) is None else [])
OFF = EngineConfig(max_model_len=64, num_kv_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=16)
ON = replace(OFF, kv_cache_dtype="fp8")
ROWS = ((0, 12), (6, 5), (11, 1), (3, 1), (0, 1), (15, 1), (4, 2), (2, 9))
"""(K/V tokens already there, query tokens) of each row: chunks of both paths, verify steps, decodes."""
SCALES = KvScales(2.0**-6, 2.0**-5)


def grid() -> np.ndarray:
    """e4m3's 256 numbers by their definition: bits s eeee mmm, exponent counted from 7, no infinity."""
    numbers = np.empty(256)
    for bits in range(256):
        sign, exponent, mantissa = -1 if bits & 128 else 1, bits >> 3 & 15, bits & 7
        if bits & 127 == 127:
            numbers[bits] = np.nan
        elif exponent:
            numbers[bits] = sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        else:
            numbers[bits] = sign * mantissa * 2.0**-9
    return numbers


def build(dtype: torch.dtype = torch.float32, name: str = "llama", **changes: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = AutoConfig.for_model(name, **(sizes | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
    return model


def run(runner: ModelRunner, config: EngineConfig) -> list[Request]:
    """Prompts that share their beginnings."""
    shared = [(5 * j) % 97 for j in range(12)]
    prompts = [[*shared[: 4 * (i % 4)], *((5 * i + 3 * j) % 97 for j in range(6 + i))] for i in range(6)]
    requests = [Request(i, prompt, 12) for i, prompt in enumerate(prompts)]
    Engine(runner, config).run(requests)
    return requests


def served(runner: ModelRunner, config: EngineConfig) -> list[list[int]]:
    return [request.output for request in run(runner, config)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_number_is_read_exactly(dtype):
    read = from_e4m3(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn), dtype)
    np.testing.assert_array_equal(read.double().numpy(), grid())
    assert read.dtype == dtype


def test_a_round_trip_is_off_by_at_most_a_sixteenth_or_half_the_smallest_step():
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 3, 4000)
    got = from_e4m3(to_e4m3(values), torch.float64).numpy()
    x = values.double().numpy()
    inside = np.abs(x) <= LARGEST
    assert 100 < np.count_nonzero(~inside) < 3900
    assert (np.abs(got - x)[inside] <= np.maximum(np.abs(x) / 16, 2.0**-10)[inside]).all()
    np.testing.assert_array_equal(got[~inside], np.sign(x[~inside]) * LARGEST)
    nearest = np.abs(x[inside, None] - grid()[None, ~np.isnan(grid())]).min(axis=1)
    np.testing.assert_allclose(np.abs(got - x)[inside], nearest, rtol=0, atol=0)
    assert torch.isnan(from_e4m3(to_e4m3(torch.tensor([math.nan])), torch.float32)).all()


@pytest.mark.parametrize("largest", [1e-6, 0.3, 1.0, 7.0, 224.0, 225.0, 5e4])
def test_a_scale_is_the_smallest_power_of_two_that_leaves_half_the_range(largest):
    scale = scale_for(largest)
    assert math.log2(scale) == int(math.log2(scale))
    assert largest / scale <= LARGEST / 2 < 2 * largest / scale
    assert scale_for(0.0) > 0


@pytest.mark.parametrize("largest", [float("inf"), float("nan")])
def test_what_overflowed_before_has_no_scale(largest: float) -> None:
    with pytest.raises(MeasurementError, match="not finite"):
        scale_for(largest)


def attention(query: np.ndarray, keys: np.ndarray, values: np.ndarray, spec: LayerSpec) -> np.ndarray:
    """One sequence in float64: query [H, Q, Dk] its last Q positions, keys and values [L, Hkv, D]. [Q, H, Dv]."""
    heads, queries, _ = query.shape
    length, groups = len(keys), heads // spec.kv_heads
    out = np.zeros((queries, heads, spec.value_dim))
    for head in range(heads):
        for index in range(queries):
            end = length - queries + index + 1
            first = max(0, end - spec.window) if spec.window else 0
            scores = keys[first:end, head // groups] @ query[head, index] * spec.scale
            if spec.softcap:
                scores = spec.softcap * np.tanh(scores / spec.softcap)
            weights = np.exp(scores - scores.max())
            out[index, head] = weights / weights.sum() @ values[first:end, head // groups]
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("options", [{}, {"window": 5}, {"softcap": 2.0}, {"key_dim": 24, "value_dim": 40}], ids=str)
def test_attention_is_that_of_the_stored_numbers(backend, block_size, options):
    """Written step by step through `store`, read through the block table; every slot that holds nothing is NaN."""
    spec = LayerSpec(**({"kv_heads": 2, "key_dim": 16, "value_dim": 16, "scale": 0.25} | options))
    rng = np.random.default_rng(block_size)
    blocks = [-(-(start + count) // block_size) for start, count in ROWS]
    order = iter(rng.permutation(sum(blocks) + 2).tolist())
    slots = (sum(blocks) + 2) * block_size
    layer = LayerPages(
        *(torch.full((slots, 2, dim), 127, dtype=torch.uint8).view(torch.float8_e4m3fn) for dim in
          (spec.key_dim, spec.value_dim)),
        spec, StepState(), SCALES,
    )  # fmt: skip
    make = (lambda step: TorchLayout(step, CPU)) if backend == "torch" else CpuLayout
    before, now, expected, new_keys, new_values, queries = [], [], [], [], [], []
    old_keys, old_values = [], []
    for number, ((start, count), needed) in enumerate(zip(ROWS, blocks, strict=True)):
        block_ids = [next(order) for _ in range(needed)]
        keys, values = (rng.normal(size=(start + count, 2, dim)) for dim in (spec.key_dim, spec.value_dim))
        query = rng.normal(size=(6, count, spec.key_dim)) * 2
        for rows, computed, tokens in ((before, 0, start), (now, start, count)):
            if tokens:
                request = Request(number, [0] * (start + count), 1)
                request.num_computed, request.block_ids = computed, block_ids
                rows.append(Row(request, tokens, samples=True))
        old_keys.append(keys[:start])
        old_values.append(values[:start])
        new_keys.append(keys[start:])
        new_values.append(values[start:])
        queries.append(query)
        stored = [
            from_e4m3(to_e4m3(torch.from_numpy(x).float() / scale), torch.float64).numpy() * scale
            for x, scale in ((keys, SCALES.key), (values, SCALES.value))
        ]
        assert np.abs(stored[0] - keys).max() > 0.01
        expected.append(attention(query, *stored, spec))

    def packed(parts: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts)).float().transpose(0, 1)

    make(StepInput.from_batch(Batch(before, block_size))).store(packed(old_keys), packed(old_values), layer)
    layout = make(StepInput.from_batch(Batch(now, block_size)))
    layout.store(packed(new_keys), packed(new_values), layer)
    got = layout.attend(torch.from_numpy(np.concatenate(queries, axis=1)).float(), layer, None)
    np.testing.assert_allclose(got.double().numpy(), np.concatenate(expected), rtol=0, atol=3e-6)


@pytest.mark.skipif("cpu" not in BACKENDS, reason="no C function on this machine")
def test_the_c_function_reads_every_number():
    """One K/V token a row: its value comes out as it is stored, scaled."""
    spec = LayerSpec(1, 8, 32, 1.0)
    values = torch.arange(256, dtype=torch.uint8).view(8, 1, 32).view(torch.float8_e4m3fn)
    layer = LayerPages(torch.zeros(8, 1, 8).to(torch.float8_e4m3fn), values, spec, StepState(), SCALES)
    rows = []
    for block in range(8):
        request = Request(block, [0], 1)
        request.block_ids = [block]
        rows.append(Row(request, 1, samples=True))
    got = CpuLayout(StepInput.from_batch(Batch(rows, 1))).attend(torch.ones(1, 8, 8), layer, None)
    np.testing.assert_array_equal(got.flatten().double().numpy(), grid() * SCALES.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_switching_back_gives_the_native_model_bit_for_bit(dtype):
    runner = ModelRunner(build(dtype), OFF.kv_tokens)
    runner.configure(OFF)
    native = runner._probe(tokens=16, sampled=16)
    per_token = runner.kv_bytes_per_token
    assert per_token == 2 * 2 * (8 + 8) * dtype.itemsize
    runner.configure(ON)
    eight = runner._probe(tokens=16, sampled=16)
    assert runner.kv_bytes_per_token == 2 * 2 * (8 + 8)
    held = [pages.keys.nbytes + pages.values.nbytes for pages in runner._pages]
    assert sum(held) == OFF.kv_tokens * runner.kv_bytes_per_token
    difference = (eight - native).float().norm() / native.float().norm()
    assert 0.003 < difference < 0.1
    runner.configure(OFF)
    assert torch.equal(runner._probe(tokens=16, sampled=16), native)
    assert runner.kv_bytes_per_token == per_token
    assert runner.notes == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_caching_preemption_and_chunks_leave_the_tokens_as_they_are(backend):
    runner = ModelRunner(build(), OFF.kv_tokens)
    config = replace(ON, attention_backend=backend)
    expected = served(runner, config)
    assert len({tuple(output) for output in expected}) == 6
    assert expected != served(runner, OFF), "else nothing would tell that the pages are narrower"
    assert served(runner, replace(config, enable_prefix_caching=True)) == expected
    assert served(runner, replace(config, max_num_batched_tokens=5)) == expected
    tight = replace(config, num_kv_blocks=16, enable_prefix_caching=True)
    assert sum(request.preemptions for request in run(runner, tight)) > 0
    assert served(runner, tight) == expected


def test_both_backends_give_the_same_tokens():
    if "cpu" not in BACKENDS:
        pytest.skip("no C function on this machine")
    runner = ModelRunner(build(), OFF.kv_tokens)
    assert served(runner, replace(ON, attention_backend="cpu")) == served(runner, ON)


def test_scales_come_from_random_tokens_until_a_text_is_given():
    runner = ModelRunner(build(), OFF.kv_tokens)
    runner.configure(ON)
    (note,) = runner.notes
    assert "from 64 random tokens" in note
    first = [pages.scales for pages in runner._pages]
    largest = {}
    attends = LayerPages.attend

    def watch(self, query, key, value, sinks):
        largest[id(self)] = float(key.abs().max()), float(value.abs().max())
        return attends(self, query, key, value, sinks)

    text = [3, 1, 4, 1, 5, 9, 2, 6]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerPages, "attend", watch)
        runner._calibrate(text, "here")
    expected = [KvScales(*map(scale_for, largest[id(pages)])) for pages in runner._pages]
    runner.calibrate_kv(text)
    assert [pages.scales for pages in runner._pages] == expected
    assert "from 8 tokens of the text" in runner.notes[0]
    runner.configure(OFF)
    assert all(pages.scales is None for pages in runner._pages)
    runner.configure(ON)
    assert [pages.scales for pages in runner._pages] == expected, "calibrated once"
    assert all(isinstance(scales, KvScales) for scales in first)


def test_weights_and_cache_of_eight_bits_go_together():
    runner = ModelRunner(build(), OFF.kv_tokens)
    runner.configure(ON)
    scales = [pages.scales for pages in runner._pages]
    both = replace(ON, weights="int8_dynamic", enable_fusion=True)
    assert served(runner, both) == served(runner, both)
    assert [pages.scales for pages in runner._pages] == scales
    assert runner.weight_kernels[0].fused


def test_a_model_with_windows_and_sinks_runs_on_narrow_pages():
    model = build(name="gpt_oss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=6)
    runner = ModelRunner(model, OFF.kv_tokens)
    runner.configure(OFF)
    native = runner._probe(tokens=16, sampled=16)
    runner.configure(ON)
    assert 0.001 < (runner._probe(tokens=16, sampled=16) - native).norm() / native.norm() < 0.15

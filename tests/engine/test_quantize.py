"""Quantized linear layers: products are those of the documented formulas, and native weights come back as they were."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine import quantize as quantize_module
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.kernel_used import KernelUsed
from inferdoc.engine.quantize import QuantizedLayers
from inferdoc.engine.quantized_linear import QuantizedLinear
from inferdoc.engine.quantized_weights import prune_24, quantize, refuse_device
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.errors import InputError, UnsupportedHereError
from inferdoc.models.loading import measure_weights
from inferdoc.models.quantization import RECIPE_BITS

CPU = torch.device("cpu")
SCHEMES = ("int8_weight_only", "int8_dynamic", "fp8_weight_only", "fp8_dynamic", "int4_weight_only", "sparse_24")
OFF = EngineConfig(max_model_len=64, num_kv_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=32)
LAYERS = 2


def build(name: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 101,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    config = AutoConfig.for_model(name, **(sizes | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.normal_(0, 0.2)
    return model


def logits(runner: ModelRunner) -> torch.Tensor:
    return runner._probe(tokens=9, sampled=9)


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """The nearest of e4m3's numbers, which are listed from their definition; the even one where two are as near."""
    numbers = [m * 2.0**-9 for m in range(8)]
    numbers += [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)]
    grid = np.array(numbers)
    magnitude = np.minimum(np.abs(values), 448.0)
    above = np.searchsorted(grid, magnitude).clip(1, len(grid) - 1)
    low, high = grid[above - 1], grid[above]
    middle = (low + high) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    return np.sign(values) * np.where(up, high, low)


def by_formula(weight: np.ndarray, scheme: str, group: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """The weights that a scheme stands for, in float64, and how far each may be from the native one."""
    largest = np.abs(weight).max(axis=1, keepdims=True)
    if scheme.startswith("int8"):
        step = largest / 127.5
        return np.clip(np.rint(weight / step), -128, 127) * step, np.broadcast_to(step / 2, weight.shape)
    if scheme.startswith("fp8"):
        step = largest / 448
        return to_e4m3(weight / step) * step, np.abs(weight) / 16 + step * 2.0**-10
    if scheme == "int4_weight_only":
        groups = weight.reshape(len(weight), -1, group)
        low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
        step = (high - low) / 15
        steps = np.rint((groups - low) / step)
        return (low + steps * step).reshape(weight.shape), np.broadcast_to(step / 2, groups.shape).reshape(weight.shape)
    kept = np.zeros_like(weight)
    for row, start in itertools.product(range(len(weight)), range(0, weight.shape[1], 4)):
        for column in sorted(range(start, start + 4), key=lambda c: -abs(weight[row, c]))[:2]:
            kept[row, column] = weight[row, column]
    return kept, np.abs(weight)


def activations(hidden: np.ndarray, scheme: str) -> np.ndarray:
    largest = np.abs(hidden).max(axis=1, keepdims=True)
    if scheme == "int8_dynamic":
        return np.rint(hidden / (largest / 127)) * (largest / 127)
    if scheme == "fp8_dynamic":
        return to_e4m3(hidden / (largest / 448)) * (largest / 448)
    return hidden


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_float32_products_are_those_of_the_formula(scheme, rows):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(48, 96, generator=generator)
    weight[:, 7] = 4.0  # the largest is positive: the negative one would lie between two steps of int8
    weight *= torch.logspace(-2, 1, 48)[:, None]
    hidden = torch.randn(rows, 96, generator=generator)
    got = quantize(weight, scheme).multiply(hidden).double().numpy()
    stands_for, off = by_formula(weight.double().numpy(), scheme)
    assert (np.abs(stands_for - weight.double().numpy()) <= off * 1.001).all()
    x, scale = hidden.double().numpy(), np.abs(stands_for).max(axis=1)
    expected = activations(x, scheme) @ stands_for.T
    # A number that lies between two steps may be rounded otherwise in float32: of the few, one step of one product.
    step = 2e-2 if scheme != "sparse_24" else 1e-5
    difference = np.abs(got - expected) / scale
    assert difference.max() < step
    assert np.median(difference) < 1e-5
    native = x @ weight.double().numpy().T
    if not scheme.endswith("dynamic"):
        assert (np.abs(got - native) <= np.abs(x) @ off.T * 1.001 + 1e-5 * scale).all(), "the scheme's own bound"
    assert np.abs(got - native).max() > 1e-3, "it is not the native product"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bfloat16_products_are_within_the_bound_and_a_few_roundings(scheme):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(64, 128, generator=generator).bfloat16()
    hidden = torch.randn(7, 128, generator=generator).bfloat16()
    got = quantize(weight, scheme).multiply(hidden).double().numpy()
    w, x = weight.double().numpy(), hidden.double().numpy()
    stands_for, off = by_formula(w, scheme, group=128)
    moved = np.abs(activations(x, scheme) - x)
    bound = np.abs(x) @ off.T + moved @ np.abs(stands_for).T
    # The scales are in bfloat16, as is the result; sums are longer than that.
    rounding = 2.0**-7 * (np.abs(x) @ np.abs(stands_for).T)
    assert (np.abs(got - x @ w.T) <= bound + rounding).all()
    # In 16 bits many weights lie between two steps or have equals, so single weights differ from the formula's.
    expected = activations(x, scheme) @ stands_for.T
    assert np.std(got - x @ w.T) < 1.1 * np.std(expected - x @ w.T) + 2.0**-8 * np.std(expected)


def test_of_four_weights_side_by_side_the_two_largest_are_kept():
    pruned = prune_24(torch.tensor([[1.0, -3.0, 2.0, 0.5, 0.0, 0.0, -1.0, 0.0], [4.0, 4.0, 4.0, 4.0, 1, 2, 3, 4]]))
    assert pruned[0].tolist() == [0, -3, 2, 0, 0, 0, -1, 0]
    assert pruned[1, 4:].tolist() == [0, 0, 3, 4]
    assert int((pruned[1, :4] != 0).sum()) == 2, "equal ones too are two"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fusion", [False, True])
def test_the_native_arm_is_bit_for_bit_what_it_was(fusion, dtype):
    model = build(dtype=dtype)
    runner = ModelRunner(model, OFF.kv_tokens)
    native = replace(OFF, enable_fusion=fusion)
    runner.configure(native)
    expected, modules = logits(runner), dict(model.named_modules())
    assert expected.float().std() > 0.1
    bytes_before = runner.weight_bytes
    assert bytes_before == measure_weights(model)
    outputs = []
    for scheme in SCHEMES:
        runner.configure(replace(native, weights=scheme))
        quantized = logits(runner)
        outputs.append(quantized)
        assert not torch.equal(quantized, expected)
        assert runner.weight_bytes < bytes_before or scheme == "sparse_24"
        difference = (quantized - expected).float().norm() / expected.float().norm()
        worst = {"int8": 0.1, "fp8_": 0.5, "int4": 0.9, "spar": 1.4}[scheme[:4]]
        assert 0.001 < difference < worst, scheme
        runner.configure(native)
        assert torch.equal(logits(runner), expected)
        assert dict(model.named_modules()) == modules
        assert runner.weight_kernels == ()
        assert runner.weight_bytes == bytes_before
    assert len({tuple(output.flatten().tolist()) for output in outputs}) == len(SCHEMES)


def test_embeddings_and_a_tied_head_are_left_alone():
    model = build()
    layers = QuantizedLayers(model, "int8_dynamic", CPU)
    table = model.get_input_embeddings().weight
    before = table.clone()
    layers.enable(True)
    assert type(model.lm_head) is nn.Linear
    assert model.lm_head.weight is model.get_input_embeddings().weight is table
    assert torch.equal(table, before)
    quantized = [name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)]
    assert len(quantized) == 7 * LAYERS
    assert not layers.notes


def test_an_untied_head_is_left_alone_too():
    model = build(tie_word_embeddings=False)
    QuantizedLayers(model, "fp8_weight_only", CPU).enable(True)
    assert type(model.lm_head) is nn.Linear


@pytest.mark.parametrize("scheme", SCHEMES)
def test_merged_layers_are_quantized_as_merged(scheme):
    """Scales belong to output rows, so merging does not change them: the logits are those of the layers one by one."""
    runner = ModelRunner(build(attention_bias=True), OFF.kv_tokens)
    runner.configure(replace(OFF, weights=scheme))
    expected = logits(runner)
    assert sum(kernel.layers for kernel in runner.weight_kernels) == 7 * LAYERS
    runner.configure(replace(OFF, weights=scheme, enable_fusion=True))
    assert sum(kernel.layers for kernel in runner.weight_kernels) == 4 * LAYERS, "qkv, o, gate-up, down"
    got = logits(runner)
    # A float32 sum in another order may round an activation to the next step.
    tolerance = 0.05 if scheme.endswith("dynamic") else 1e-4
    assert (got - expected).abs().max() <= tolerance * expected.abs().max()


def test_quantized_arms_serve_requests_and_chunks_of_other_sizes():
    runner = ModelRunner(build(), OFF.kv_tokens)

    def served(config: EngineConfig) -> list[list[int]]:
        requests = [Request(i, [(7 * i + j) % 101 for j in range(5 + 3 * i)], 8 + i) for i in range(6)]
        Engine(runner, config).run(requests)
        return [request.output for request in requests]

    native = served(OFF)
    quantized = served(replace(OFF, weights="int8_dynamic"))
    assert quantized != native
    assert served(replace(OFF, weights="int8_dynamic", max_num_batched_tokens=7)) == quantized
    assert served(OFF) == native


@pytest.mark.parametrize("inputs", [4096, 512])
def test_bytes_are_those_of_the_sizing_formula(inputs):
    """One bytes-per-weight figure for `plan` and for the engine, in 16 bits."""
    weight = torch.randn(32, inputs).bfloat16()
    eight = quantize(weight, "int8_weight_only").bytes * 8 / weight.numel()
    assert eight == 8 + 16 / inputs == quantize(weight, "fp8_weight_only").bytes * 8 / weight.numel()
    if inputs == 4096:
        assert eight == RECIPE_BITS["int8"] == RECIPE_BITS["fp8"]
    four = quantize(weight, "int4_weight_only").bytes * 8 / weight.numel()
    assert four == RECIPE_BITS["int4"] + 12 / 128, "torch's layout has a zero point of 16 bits, GPTQ's has 4"
    wide = quantize(weight.float(), "int4_weight_only").bytes * 8 / weight.numel()
    assert wide == 4 + 64 / 128


def test_a_model_s_bytes_are_the_sum_of_its_layers():
    model = build(dtype=torch.bfloat16)
    layers = QuantizedLayers(model, "int8_weight_only", CPU)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not model.lm_head]
    assert layers.parameters == sum(m.weight.numel() for m in linear)
    assert layers.native_bytes == 2 * layers.parameters
    assert layers.bytes == layers.parameters + sum(2 * m.out_features for m in linear)


@pytest.mark.parametrize(("dtype", "scheme", "kernel"), [
    (torch.float32, "int8_weight_only", KernelUsed("mm", False, 14)),
    (torch.float32, "int8_dynamic", KernelUsed("_int_mm", True, 14)),
    (torch.float32, "fp8_weight_only", KernelUsed("mm", False, 14)),
    (torch.float32, "fp8_dynamic", KernelUsed("mm", False, 14)),
    (torch.float32, "int4_weight_only", KernelUsed("mm", False, 14)),
    (torch.float32, "sparse_24", KernelUsed("mm", False, 14)),
    (torch.bfloat16, "int8_weight_only", KernelUsed("_weight_int8pack_mm", True, 14)),
    (torch.bfloat16, "int8_dynamic", KernelUsed("_int_mm", True, 14)),
    (torch.bfloat16, "int4_weight_only", KernelUsed("_weight_int4pack_mm_for_cpu", True, 14)),
])  # fmt: skip
def test_the_kernel_that_ran_is_recorded(dtype, scheme, kernel):
    runner = ModelRunner(build(dtype=dtype), OFF.kv_tokens)
    runner.configure(replace(OFF, weights=scheme))
    assert runner.weight_kernels == (kernel,)


def test_experts_held_as_one_tensor_stay_native_and_are_named():
    model = build("mixtral", num_local_experts=4, num_experts_per_tok=2)
    runner = ModelRunner(model, OFF.kv_tokens)
    runner.configure(replace(OFF, weights="int8_dynamic"))
    (note,) = runner.notes
    attention = 64 * (64 + 32 + 32 + 64) * LAYERS
    experts = 3 * 64 * 96 * 4 * LAYERS
    assert f"{experts / (experts + attention):.1%} of the linear layers' parameters stay native" in note
    assert f"experts held as one tensor ({2 * LAYERS})" in note
    names = {name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj"}, "routers stay native too"


def test_layers_whose_sizes_do_not_suit_stay_native_and_are_named():
    runner = ModelRunner(build(hidden_size=48, head_dim=12), OFF.kv_tokens)
    runner.configure(replace(OFF, weights="int4_weight_only"))
    (note,) = runner.notes
    assert f"its 48 inputs do not divide into groups of 32 ({6 * LAYERS})" in note
    assert runner.quantized.parameters == 48 * 96 * LAYERS, "down_proj alone has 96 inputs"


@pytest.mark.parametrize(("model", "scheme", "reason"), [
    (lambda: build("gpt2", n_embd=32, n_layer=1, n_head=2), "int8_dynamic", "they are Conv1D modules"),
    (lambda: build(hidden_size=48, head_dim=12, intermediate_size=80), "int4_weight_only", "80 inputs do not divide"),
])  # fmt: skip
def test_a_model_of_which_nothing_can_be_quantized_is_refused(model, scheme, reason):
    runner = ModelRunner(model(), OFF.kv_tokens)
    runner.configure(OFF)
    expected = logits(runner)
    with pytest.raises(InputError, match=rf"weights={scheme}: none of the model's layers can be quantized: .*{reason}"):
        runner.configure(replace(OFF, weights=scheme))
    runner.configure(OFF)
    assert torch.equal(logits(runner), expected)


def test_a_linear_layer_that_shares_its_weight_is_left_alone():
    model = build()
    first, second = (layer.mlp for layer in model.model.layers)
    second.up_proj.weight = first.up_proj.weight
    layers = QuantizedLayers(model, "int8_dynamic", CPU)
    layers.enable(True)
    assert "another module uses the same weight (2)" in layers.notes[0]
    assert first.up_proj.weight is second.up_proj.weight


def test_sparsity_is_labelled_untrained():
    runner = ModelRunner(build(), OFF.kv_tokens)
    runner.configure(replace(OFF, weights="sparse_24"))
    assert runner.notes == ["2:4 sparsity: one-shot magnitude, untrained"]
    runner.configure(OFF)
    assert runner.notes == []


@pytest.mark.parametrize(("scheme", "capability", "needed"), [
    ("fp8_dynamic", (8, 6), "8.9"), ("sparse_24", (7, 5), "8.0"), ("int4_weight_only", (7, 5), "8.0"),
    ("int8_dynamic", (7, 0), "7.5"),
])  # fmt: skip
def test_what_a_card_lacks_is_named(monkeypatch, scheme, capability, needed):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(UnsupportedHereError, match=rf"^needs compute capability {needed}$"):
        refuse_device(scheme, torch.bfloat16, torch.device("cuda"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_a_card_has_is_not_refused(monkeypatch, scheme):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    refuse_device(scheme, torch.bfloat16, torch.device("cuda"))
    refuse_device(scheme, torch.float32, CPU)
    with pytest.raises(UnsupportedHereError, match=r"^needs a CUDA card$"):
        refuse_device(scheme, torch.bfloat16, torch.device("mps"))


def test_other_types_on_a_card_are_refused_with_what_would_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for scheme in ("fp8_dynamic", "int4_weight_only", "sparse_24"):
        with pytest.raises(InputError, match="not float32: --dtype bfloat16"):
            refuse_device(scheme, torch.float32, torch.device("cuda"))


def test_packed_and_quantized_weights_exclude_each_other():
    with pytest.raises(InputError, match="pack_weights packs native weights, not int8_dynamic"):
        replace(OFF, pack_weights=True, weights="int8_dynamic")


def test_a_second_copy_that_does_not_fit_leaves_the_native_model(monkeypatch):
    runner = ModelRunner(build(), OFF.kv_tokens)
    runner.configure(OFF)
    expected = logits(runner)
    calls = itertools.count()

    def limited(weight, scheme):
        if next(calls) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return quantize(weight, scheme)

    with monkeypatch.context() as patch:
        patch.setattr(quantize_module, "quantize", limited)
        with pytest.raises(torch.OutOfMemoryError):
            runner.configure(replace(OFF, weights="int8_dynamic"))
    assert not any(isinstance(module, QuantizedLinear) for module in runner.model.modules())
    assert runner.quantized is None
    runner.configure(OFF)
    assert torch.equal(logits(runner), expected)
    runner.configure(replace(OFF, weights="int8_dynamic"))
    assert runner.weight_kernels[0].name == "_int_mm"


def test_a_new_runner_finds_the_original_layers():
    model = build()
    ModelRunner(model, OFF.kv_tokens).configure(replace(OFF, weights="int8_dynamic"))
    assert any(isinstance(module, QuantizedLinear) for module in model.modules())
    ModelRunner(model, OFF.kv_tokens)
    assert not any(isinstance(module, QuantizedLinear) for module in model.modules())


def test_both_copies_are_kept_so_that_arms_take_turns():
    runner = ModelRunner(build(), OFF.kv_tokens)
    on = replace(OFF, weights="int8_dynamic")
    runner.configure(on)
    first = runner.quantized
    runner.configure(OFF)
    runner.configure(on)
    assert runner.quantized is first
    runner.configure(replace(on, weights="fp8_weight_only"))
    assert runner.quantized is not first


@pytest.mark.slow
def test_a_quantized_model_is_compiled_whole():
    torch.compiler.reset()
    runner = ModelRunner(build(), OFF.kv_tokens, compiler=lambda module, inputs: module.forward)
    runner.configure(replace(OFF, weights="int8_dynamic"))
    expected = logits(runner)
    runner.configure(replace(OFF, weights="int8_dynamic", compile=True))
    assert runner.notes == []
    torch.testing.assert_close(logits(runner), expected, rtol=0, atol=1e-5)
    torch.compiler.reset()

"""Fusions: found by name, verified by numbers, switched on and off on one model."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.fusion import FusedRMSNorm, Fusions, MergedLinear
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner

LAYERS = 2
OFF = EngineConfig(max_model_len=64, num_kv_blocks=48, block_size=4, max_num_seqs=4, max_num_batched_tokens=16)
ON = replace(OFF, enable_fusion=True)
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
EXPECTED = {
    # Merged QKV and gate-up, and fused norms, in each layer; norms at the end.
    "llama": ({}, (1, 1, 2), 1),
    "mistral": ({}, (1, 1, 2), 1),
    "qwen2": ({}, (1, 1, 2), 1),
    "qwen3": ({"head_dim": 8}, (1, 1, 4), 1),
    "qwen3_moe": (MOE, (1, 0, 4), 1),
    "mixtral": ({}, (1, 0, 2), 1),
    "gemma2": ({"head_dim": 8}, (1, 1, 4), 1),
    "gemma3_text": ({"head_dim": 8}, (1, 1, 6), 1),
    "olmo2": ({}, (1, 1, 4), 1),
    "granite": ({}, (1, 1, 2), 1),
    "phi3": ({"pad_token_id": 0}, (0, 0, 2), 1),
    "opt": ({"ffn_dim": 48, "word_embed_proj_dim": 32}, (1, 0, 0), 0),
    "gpt2": ({"n_embd": 32, "n_head": 4, "n_layer": LAYERS}, (0, 0, 0), 0),
}


def build(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Weights N(0, 0.25) and norms away from what they start as, so that a wrong offset shows."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        name,
        **{
            "vocab_size": 97,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            **EXPECTED[name][0],
        },
    )
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def fusions_of(model: nn.Module, tokens: int = 5) -> Fusions:
    ids = torch.arange(tokens)[None]

    @torch.inference_mode()
    def probe() -> torch.Tensor:
        logits: torch.Tensor = model(ids, use_cache=False).logits
        return logits

    return Fusions(model, probe)


def served(runner: ModelRunner, config: EngineConfig) -> list[list[int]]:
    requests = [Request(i, [(5 * i + 3 * j) % 97 for j in range(6 + 5 * i)], 10) for i in range(4)]
    Engine(runner, config).run(requests)
    return [request.output for request in requests]


def counts(model: nn.Module) -> Counter[str]:
    return Counter(type(module).__name__ for module in model.modules())


@pytest.mark.parametrize("name", EXPECTED)
def test_fused_models_give_the_same_tokens_and_off_is_the_original(name):
    model = build(name)
    before, modules = state(model), counts(model)
    runner = ModelRunner(model, OFF.kv_tokens)
    expected = served(runner, OFF)
    assert len({tuple(output) for output in expected}) == 4
    fused = served(runner, ON)
    assert not runner.notes
    _, (qkv, gate_up, norms), last = EXPECTED[name]
    found = counts(model)
    assert found["MergedLinear"] == LAYERS * (3 * qkv + 2 * gate_up)
    assert found["FusedRMSNorm"] == LAYERS * norms + last
    assert fused == expected
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert served(runner, OFF) == expected
    assert counts(model) == modules
    assert served(runner, ON) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3_text", "olmo2"])
def test_every_dtype_is_verified_within_its_rounding(name, dtype):
    model = build(name, dtype)
    fusions = fusions_of(model)
    assert not fusions.notes
    _, (qkv, gate_up, norms), last = EXPECTED[name]
    assert fusions.count == LAYERS * (qkv + gate_up + norms) + last


def test_merged_weights_are_the_only_copy_and_parameters_stay_the_same_objects():
    model = build("qwen2")
    layer = model.model.layers[0]
    parameters = list(model.parameters())
    sizes = sum(parameter.nbytes for parameter in parameters)
    fusions = fusions_of(model)
    attention = layer.self_attn
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    assert sum(storages.values()) == sizes
    for name in ("weight", "bias"):
        parts = [getattr(getattr(attention, f"{which}_proj"), name) for which in "qkv"]
        assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    for on in (True, False):
        fusions.enable(on)
        assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    # What is written to a parameter later (quantized values, say) is what the fused model computes with.
    fusions.enable(True)
    hidden = torch.randn(1, 3, 32)
    before = attention.k_proj(hidden)
    fusions.release()
    attention.k_proj.weight.mul_(2)
    doubled = attention.k_proj(hidden) - attention.k_proj.bias
    torch.testing.assert_close(doubled, 2 * (before - attention.k_proj.bias))


def test_a_product_is_computed_once_and_handed_out_in_any_order(monkeypatch):
    model = build("llama")
    expected = {}
    attention = model.model.layers[0].self_attn
    hidden, other = torch.randn(1, 3, 32), torch.randn(1, 3, 32)
    for which in "qkv":
        expected[which] = getattr(attention, f"{which}_proj")(hidden), getattr(attention, f"{which}_proj")(other)
    fusions_of(model).enable(True)
    products = []
    linear = nn.functional.linear
    monkeypatch.setattr(nn.functional, "linear", lambda x, w, b=None: products.append(len(w)) or linear(x, w, b))

    def check(calls: str, sizes: list[int]) -> None:
        """A capital letter: called with the other tensor."""
        products.clear()
        for which in calls:
            out = getattr(attention, f"{which.lower()}_proj")(other if which.isupper() else hidden)
            torch.testing.assert_close(out, expected[which.lower()][which.isupper()])
        assert products == sizes

    check("qkv", [64])
    check("vkq", [64])
    check("qkvqkv", [64, 64])
    check("qKvk", [64, 16])
    check("qqkv", [64, 32])
    check("QkKV", [64, 16])


def test_nothing_of_a_forward_stays_alive():
    runner = ModelRunner(build("llama"), OFF.kv_tokens)
    runner.configure(ON)
    module = runner.model.model.layers[0].self_attn.q_proj
    seen: list[weakref.ref[torch.Tensor]] = []
    module.register_forward_hook(lambda m, args, out: seen.extend([weakref.ref(args[0]), weakref.ref(out)]))
    served(runner, ON)
    gc.collect()
    assert len(seen) >= 20
    assert not [ref for ref in seen if ref() is not None]


def test_another_runner_finds_the_original_model():
    model = build("llama")
    modules = counts(model)
    expected = served(ModelRunner(model, OFF.kv_tokens), ON)
    second = ModelRunner(model, OFF.kv_tokens)
    assert counts(model) == modules
    for config in (OFF, ON):
        assert served(second, config) == expected
    assert counts(model)["MergedLinear"] == LAYERS * 5


class ReadsTwice(nn.Module):
    """As Gemma 3n's layers that share K/V: the second call uses q alone."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.q_proj(hidden) + self.k_proj(hidden * 2) + self.v_proj(hidden)


class WithNorm(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.norm = norm

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(self.head(hidden))


class OddRMSNorm(nn.Module):
    def __init__(self, offset: float = 0.5, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)
        self.eps = eps
        self.offset = offset

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normal = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normal * (self.weight + self.offset)


class UnscaledRMSNorm(nn.Module):
    eps = 1e-6

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps)


class GatedRMSNorm(OddRMSNorm):
    def forward(self, hidden: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(hidden) * (2.0 if gate is None else gate)


def tried(model: nn.Module) -> Fusions:
    model.eval().requires_grad_(False)
    return Fusions(model, lambda: model(torch.linspace(-1, 1, 24).view(3, 8)))


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_the_scale_of_a_norm_is_found_by_its_numbers(offset):
    model = WithNorm(OddRMSNorm(offset))
    fusions = tried(model)
    assert (fusions.count, fusions.notes) == (1, [])
    fusions.enable(True)
    assert isinstance(model.norm, FusedRMSNorm)


def test_a_norm_without_weight_is_fused():
    assert tried(WithNorm(UnscaledRMSNorm())).count == 1


@pytest.mark.parametrize(
    "norm",
    [OddRMSNorm(0.5), OddRMSNorm(0.0, eps=1e-3), OddRMSNorm(0.01), GatedRMSNorm(0.0)],
    ids=["another offset", "another epsilon", "almost", "a gate"],
)
def test_a_norm_that_computes_something_else_is_left_out_with_a_note(norm):
    model = WithNorm(norm)
    fusions = tried(model)
    assert fusions.count == 0
    (note,) = fusions.notes
    assert note.startswith(f"fused RMSNorm was left out for {type(norm).__name__}: its output differs by")
    fusions.enable(True)
    assert model.norm is norm


def test_a_linear_that_computes_something_else_is_left_out_with_a_note():
    model = build("llama")
    layer = model.model.layers[1]
    layer.self_attn.v_proj.register_forward_hook(lambda module, args, out: out * 1.01)
    address = layer.self_attn.v_proj.weight.data_ptr()
    fusions = fusions_of(model)
    (note,) = fusions.notes
    assert note.startswith(
        "merged q_proj + k_proj + v_proj was left out for LlamaAttention: its output differs by 0.01"
    )
    assert note.endswith("(1 of them)")
    fusions.enable(True)
    assert counts(model)["MergedLinear"] == LAYERS * 5 - 3
    assert layer.self_attn.v_proj.weight.data_ptr() == address


def test_siblings_that_read_different_inputs_are_left_out_with_a_note():
    model = ReadsTwice()
    fusions = tried(model)
    assert fusions.count == 0
    assert fusions.notes == [
        "merged q_proj + k_proj + v_proj was left out for ReadsTwice: they do not all read the same input (1 of them)"
    ]


def test_shared_weights_are_left_out_with_a_note():
    model = build("llama")
    first, second = (layer.mlp for layer in model.model.layers)
    second.up_proj.weight = first.up_proj.weight
    fusions = fusions_of(model)
    (note,) = fusions.notes
    assert "merged gate_proj + up_proj was left out for LlamaMLP: another module uses the same weight (2" in note


def test_a_model_whose_code_does_not_go_with_them_runs_without(monkeypatch):
    """Code that asks for something that only the original modules have."""
    model = build("llama")
    forward = type(model.model).forward

    def picky(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(module, MergedLinear) for module in self.modules()):
            raise TypeError("unexpected module\nin layer 0")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model.model), "forward", picky)
    runner = ModelRunner(model, OFF.kv_tokens)
    expected = served(runner, OFF)
    assert served(runner, ON) == expected
    assert runner.notes == ["fusions were left out: the model does not run with them (TypeError: unexpected module)"]

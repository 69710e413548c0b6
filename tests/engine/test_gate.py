from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine import gate, runner
from inferdoc.engine.attention import hook, reference
from inferdoc.errors import ModelError

LAYERS = 3
DECODER = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "vocab_size": 97,
    "n_embd": 32,
    "n_layer": LAYERS,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "llama": DECODER,
    "qwen2": DECODER,
    "qwen3": DECODER,
    "mistral": DECODER | {"sliding_window": 6},
    "gemma2": DECODER | {"sliding_window": 6, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "gpt2": GPT2,
    "phi3": DECODER,
    "gpt_oss": DECODER | {"sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": DECODER
    | {
        "attention_chunk_size": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 48,
        "no_rope_layers": [1] * 3,
    },
    "bloom": {
        "vocab_size": 97,
        "hidden_size": 32,
        "n_layer": LAYERS,
        "n_head": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}


def build(model_type: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Random weights large enough that a wrong mask or scale shows in the logits; biases and sinks not zero."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **MODELS[model_type])).to(dtype).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
        elif "norm" not in name and "ln_" not in name:
            torch.nn.init.normal_(parameter, 0.0, 1.0 if "sinks" in name else 0.25)
    return model


def check(model: torch.nn.Module, layers: int = LAYERS) -> gate.GateResult:
    return gate.check_model(model, expected_layers=layers, vocabulary=97, name="tiny")


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gpt2", "phi3", "gpt_oss"])
def test_the_gate_passes_an_architecture_that_the_hook_serves(model_type):
    result = check(build(model_type))
    assert result.layers == LAYERS
    assert result.largest_difference < 1e-4


@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_the_gate_passes_models_in_double_precision(model_type):
    assert check(build(model_type, torch.float64)).largest_difference < 1e-5


def test_the_recorded_layers_say_what_each_attention_is():
    gemma = [spec for _, spec in hook.record_layers(build("gemma2"))]
    assert [(s.window, s.softcap, s.kv_heads, s.key_dim, s.value_dim) for s in gemma] == [
        (6, 2.0, 2, 8, 8), (None, 2.0, 2, 8, 8), (6, 2.0, 2, 8, 8)
    ]  # fmt: skip
    assert [spec.scale for spec in gemma] == pytest.approx([8**-0.5] * 3)
    assert all(spec.has_sinks for _, spec in hook.record_layers(build("gpt_oss")))
    assert [spec.kv_heads for _, spec in hook.record_layers(build("gpt2"))] == [4, 4, 4]


def test_trap_22_a_model_that_never_calls_the_hook_is_refused():
    with pytest.raises(ModelError, match="tiny: the attention of 0 of 3 layers goes through the hook"):
        check(build("bloom"))


def test_trap_22_a_model_whose_mask_never_reaches_the_hook_is_refused():
    """Chunked attention exists in the mask alone: every layer calls the hook, and the logits are still wrong."""
    model = build("llama4_text")
    assert len(hook.record_layers(model)) == LAYERS
    with pytest.raises(ModelError, match="logits through the paged engine differ"):
        check(model)


def test_trap_22_a_layer_that_skips_the_hook_is_refused():
    model = build("llama")
    skipping = model.model.layers[1].self_attn
    skipping.config = copy.deepcopy(skipping.config)
    skipping.config._attn_implementation = "sdpa"
    with pytest.raises(ModelError, match="2 of 3 layers"):
        check(model)


def test_trap_22_fewer_layers_than_expected_are_refused():
    with pytest.raises(ModelError, match="3 of 4 layers"):
        check(build("llama"), layers=4)


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("llama", {"scale": 0.3}),
        ("mistral", {"window": None}),
        ("mistral", {"window": 5}),
        ("mistral", {"window": 7}),
        ("gemma2", {"softcap": None}),
    ],
)
def test_trap_14_and_22_a_layer_that_is_run_otherwise_than_the_model_means_is_refused(model_type, change, monkeypatch):
    def record(model):
        layers = hook.record_layers(model)
        module, spec = layers[0]
        return [(module, replace(spec, **change)), *layers[1:]]

    monkeypatch.setattr(runner, "record_layers", record)
    with pytest.raises(ModelError, match="logits through the paged engine differ"):
        check(build(model_type))


def test_lost_sinks_are_refused(monkeypatch):
    attention = reference.paged_attention
    monkeypatch.setattr(reference, "paged_attention", lambda *args: attention(*args[:-1], None))
    with pytest.raises(ModelError, match="logits through the paged engine differ"):
        check(build("gpt_oss"))


def test_logits_that_are_no_numbers_are_refused():
    model = build("llama")
    model.lm_head.weight.data[5] = torch.nan
    with pytest.raises(ModelError, match="logits"):
        check(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_trap_18_lower_precision_is_compared_with_a_wider_bound(dtype):
    result = check(build("llama", dtype))
    assert 1e-4 < result.largest_difference < 0.08

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from inferdoc.engine import gate, runner
from inferdoc.engine.attention import hook, reference
from inferdoc.engine.attention.layer import LayerSpec
from inferdoc.engine.batch import BatchArrays
from inferdoc.errors import ModelError
from inferdoc.models import load_model

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
    "mistral": DECODER | {"sliding_window": 6},
    "gemma2": DECODER | {"sliding_window": 6, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "gpt2": GPT2,
    "gpt_oss": DECODER | {"sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2},
}


def build(model_type: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Random weights large enough that a wrong mask or scale shows in the logits; biases and sinks not zero."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(model_type, **MODELS[model_type])
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
        elif "norm" not in name and "ln_" not in name:
            torch.nn.init.normal_(parameter, 0.0, 1.0 if "sinks" in name else 0.25)
    return model


def check(model: torch.nn.Module, layers: int = LAYERS) -> gate.GateResult:
    return gate.check_model(model, expected_layers=layers, vocabulary=97, name="tiny")


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
    monkeypatch.setattr(reference, "paged_attention", lambda *args: attention(*args[:5], None, *args[6:]))
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


def deep_llama(folder: Path, layers: int, dtype: str) -> torch.nn.Module:
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.to_json_file(folder / "config.json", use_diff=False)
    return load_model(folder, dtype=dtype, load_format="dummy").model


@pytest.mark.parametrize(("layers", "dtype"), [(2, "bfloat16"), (16, "bfloat16"), (32, "bfloat16"), (32, "float16")])
def test_trap_18_and_22_one_wrong_layer_of_many_is_refused_in_16_bits(tmp_path, monkeypatch, layers, dtype):
    """Where rounding alone differs by as much as a fixed bound could allow; the model as it is passes."""
    model = deep_llama(tmp_path, layers, dtype)
    gate.check_model(model, expected_layers=layers, vocabulary=512, name="deep")

    def record(model):
        recorded = hook.record_layers(model)
        module, spec = recorded[layers // 2]
        recorded[layers // 2] = (module, replace(spec, window=12))
        return recorded

    monkeypatch.setattr(runner, "record_layers", record)
    with pytest.raises(ModelError, match="logits through the paged engine differ"):
        gate.check_model(model, expected_layers=layers, vocabulary=512, name="deep")


def test_trap_22_a_layer_whose_attention_is_lost_is_refused_in_16_bits(tmp_path, monkeypatch):
    model = deep_llama(tmp_path, 32, "bfloat16")
    chunked = gate._chunked_logits

    def lost(*arguments):
        attention = model.model.layers[16].self_attn
        handle = attention.register_forward_hook(lambda module, args, output: (output[0] * 0, *output[1:]))
        try:
            return chunked(*arguments)
        finally:
            handle.remove()

    monkeypatch.setattr(gate, "_chunked_logits", lost)
    with pytest.raises(ModelError, match="logits through the paged engine differ"):
        gate.check_model(model, expected_layers=32, vocabulary=512, name="deep")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["gemma2", "gpt2", "gpt_oss", "mistral"])
def test_trap_18_each_family_passes_in_16_bits(model_type, dtype):
    check(build(model_type, dtype))


def test_trap_18_tokens_that_differ_by_rounding_are_reported_and_never_refused(monkeypatch):
    """Head rows in pairs that are nearly one; where each pair's logits are exchanged, so is the likeliest token."""
    assert check(build("llama")).first_divergence is None
    model = build("llama")
    rows = model.lm_head.weight.data
    rows[1:96:2] = rows[0:95:2] * (1 + 1e-5)
    rows[96] = 0.0
    exact = gate._chunked_logits
    exchanged = [index ^ 1 for index in range(96)] + [96]
    monkeypatch.setattr(gate, "_chunked_logits", lambda *args: exact(*args)[:, exchanged])
    result = check(model)
    assert result.first_divergence == (0, 10)
    assert result.largest_difference < 1e-3


def test_decodes_are_part_of_the_check(monkeypatch):
    """Positions off by one where a row has a single token, as in a decode, and nowhere else."""
    make = BatchArrays.build

    def shifted(arrays, batch):
        step = make(arrays, batch)
        counts = np.repeat(np.diff(step.query_starts), np.diff(step.query_starts))
        return replace(step, positions=step.positions - (counts == 1))

    monkeypatch.setattr(BatchArrays, "build", shifted)
    with pytest.raises(ModelError, match="logits through the paged engine differ"):
        check(build("llama"))


def write_config(folder: Path, model_type: str, **change: object) -> Path:
    path = folder / "config.json"
    AutoConfig.for_model(model_type, **(MODELS[model_type] | change)).to_json_file(path, use_diff=False)
    return path


@pytest.mark.parametrize("model_type", MODELS)
def test_the_probe_without_weights_lists_what_the_loaded_model_does(tmp_path, model_type):
    found = gate.probe(write_config(tmp_path, model_type), expected_layers=LAYERS, dtype="float32", name="tiny")
    assert found.note is None
    assert list(found.layers) == [spec for _, spec in hook.record_layers(build(model_type))]


def test_the_probe_takes_no_memory_for_weights(tmp_path):
    """64 layers of 8192: 100 GB in bfloat16."""
    config = write_config(
        tmp_path, "llama", hidden_size=8192, intermediate_size=28672, num_hidden_layers=64, num_attention_heads=64,
        num_key_value_heads=8, head_dim=128,
    )  # fmt: skip
    found = gate.probe(config, expected_layers=64, dtype="bfloat16", name="large")
    assert found.layers == (LayerSpec(kv_heads=8, key_dim=128, value_dim=128, scale=128**-0.5),) * 64


def test_the_probe_refuses_before_weights_are_read(tmp_path):
    with pytest.raises(ModelError, match="tiny: the attention of 3 of 4 layers"):
        gate.probe(write_config(tmp_path, "llama"), expected_layers=4, dtype="float32", name="tiny")


def test_a_model_that_does_not_run_without_weights_is_checked_after_loading(tmp_path, monkeypatch):
    def fail(model):
        raise RuntimeError("aten::nonzero: not on meta\nmore")

    monkeypatch.setattr(gate, "record_layers", fail)
    found = gate.probe(write_config(tmp_path, "llama"), expected_layers=LAYERS, dtype="float32", name="tiny")
    assert found.layers is None
    assert "aten::nonzero: not on meta)" in found.note
    assert "checked after loading only" in found.note


@pytest.mark.parametrize(
    ("change", "dtype", "reason"),
    [
        ({"head_dim": 320}, "bfloat16", "tiny: head dim 320 is too large .*256.*'torch' runs any"),
        ({}, "float64", "tiny: .*not float64.*'torch' runs any"),
    ],
)
def test_what_the_triton_kernels_cannot_run_is_refused_before_loading(tmp_path, change, dtype, reason):
    config = write_config(tmp_path, "llama", **change)
    with pytest.raises(ModelError, match=reason):
        gate.probe(config, expected_layers=LAYERS, dtype=dtype, name="tiny", attention_backend="triton")
    assert gate.probe(config, expected_layers=LAYERS, dtype=dtype, name="tiny").layers is not None


def test_the_gate_uses_the_backend_that_will_be_used(monkeypatch):
    configured = []
    configure = runner.ModelRunner.configure

    def record(self, config):
        configured.append(config.attention_backend)
        configure(self, replace(config, attention_backend="torch"))

    monkeypatch.setattr(runner.ModelRunner, "configure", record)
    gate.check_model(build("llama"), expected_layers=LAYERS, vocabulary=97, name="tiny", attention_backend="triton")
    assert configured == ["triton"]

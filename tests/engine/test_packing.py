"""Weights packed for one number of rows: the same products, on and off on one model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.packing import PackedLayers, PackedLinear, why_unpackable
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.errors import InputError

CPU = torch.device("cpu")
OFF = EngineConfig(max_model_len=64, num_kv_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=32)
ON = replace(OFF, pack_weights=True)
needs_mkl = pytest.mark.skipif(why_unpackable(torch.float32, CPU) is not None, reason="this torch is without MKL")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.normal_(0, 0.25)
    return model


def tokens(runner: ModelRunner, config: EngineConfig) -> list[list[int]]:
    requests = [Request(i, [(7 * i + j) % 101 for j in range(5 + 3 * i)], 8 + i) for i in range(6)]
    Engine(runner, config).run(requests)
    return [request.output for request in requests]


@needs_mkl
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(4, 48), (1, 4, 48), (3, 48), (1, 1, 48), (1, 9, 48)], ids=str)
def test_products_of_any_number_of_rows_are_those_of_the_layer(bias, shape):
    torch.manual_seed(0)
    linear, hidden = nn.Linear(48, 30, bias=bias).requires_grad_(False), torch.randn(shape)
    expected = hidden.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    torch.testing.assert_close(PackedLinear(linear, 4)(hidden).double(), expected, rtol=0, atol=1e-5)


@needs_mkl
@pytest.mark.parametrize("fusion", [False, True])
def test_both_arms_give_the_same_tokens_and_off_is_the_model_as_it_was(model, fusion):
    runner = ModelRunner(model, OFF.kv_tokens)
    modules = dict(model.named_modules())
    off, on = replace(OFF, enable_fusion=fusion), replace(ON, enable_fusion=fusion)
    expected = tokens(runner, off)
    assert len({tuple(output) for output in expected}) == 6
    assert tokens(runner, on) == expected
    packed = [name for name, module in model.named_modules() if isinstance(module, PackedLinear)]
    assert len(packed) == (2 * 2 if fusion else 2 * 7) + 1  # o and down; or q, k, v, o, gate, up, down; and the head
    assert tokens(runner, off) == expected
    runner.configure(OFF)
    assert dict(model.named_modules()) == modules


@needs_mkl
def test_tied_weights_stay_tied(model):
    layers = PackedLayers(model, rows=4)
    layers.enable(True)
    assert isinstance(model.lm_head, PackedLinear)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@needs_mkl
def test_a_new_runner_finds_the_original_layers(model):
    ModelRunner(model, OFF.kv_tokens).configure(ON)
    assert isinstance(model.lm_head, PackedLinear)
    ModelRunner(model, OFF.kv_tokens)
    assert type(model.lm_head) is nn.Linear


@needs_mkl
def test_another_batch_size_is_packed_anew(model):
    runner = ModelRunner(model, OFF.kv_tokens)
    runner.configure(ON)
    first = model.lm_head
    runner.configure(ON)
    assert model.lm_head is first
    runner.configure(replace(ON, max_num_seqs=3))
    assert model.lm_head is not first
    assert tokens(runner, replace(ON, max_num_seqs=3)) == tokens(runner, replace(OFF, max_num_seqs=3))


def test_other_types_and_devices_are_refused_with_the_reason(model):
    assert "torch.bfloat16 on cpu" in (why_unpackable(torch.bfloat16, CPU) or "")
    assert "on cuda" in (why_unpackable(torch.float32, torch.device("cuda")) or "")
    with pytest.raises(InputError, match=r"pack_weights is not available here: .* torch.float64 on cpu"):
        ModelRunner(model.double(), OFF.kv_tokens).configure(ON)


def test_a_torch_without_mkl_is_named(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkl", object())
    assert "built without" in (why_unpackable(torch.float32, CPU) or "")

"""Tiny transformers models through the kernels give the logits that they give through plain torch."""

from __future__ import annotations

import pytest
import torch
import transformers
from attention_cases import DEVICE

from inferdoc.engine.attention.hook import attach, record_layers
from inferdoc.engine.attention.layer import LayerPages, StepState
from inferdoc.engine.attention.reference import TorchLayout
from inferdoc.engine.attention.triton_layout import TritonLayout
from inferdoc.engine.batch import StepInput
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch, Row

SIZES = {
    "vocab_size": 97,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "gemma2": (
        transformers.Gemma2Config,
        transformers.Gemma2ForCausalLM,
        {"sliding_window": 6, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    ),
    "gpt_oss": (
        transformers.GptOssConfig,
        transformers.GptOssForCausalLM,
        {
            "sliding_window": 6,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}
STEPS = (((0, 9), (0, 3)), ((9, 5), (3, 1)), ((14, 1), (4, 1)), ((15, 1), (5, 1)))
"""(K/V tokens there, new tokens) of two requests: prompts, a chunk beside a decode, decodes."""


def logits_by(model, layout_of) -> list[torch.Tensor]:
    state = StepState()
    for module, spec in record_layers(model):
        pages = [torch.full((64, spec.kv_heads, d), torch.nan, device=DEVICE) for d in (spec.key_dim, spec.value_dim)]
        attach(module, LayerPages(*pages, spec=spec, state=state))
    generator = torch.Generator().manual_seed(1)
    requests = [Request(n, torch.randint(0, 97, (20,), generator=generator).tolist(), 1) for n in range(2)]
    outputs = []
    for rows in STEPS:
        for request, (start, _), blocks in zip(requests, rows, ([3, 1], [2, 0]), strict=True):
            request.num_computed, request.block_ids = start, blocks
        batch = Batch([Row(r, count, samples=True) for r, (_, count) in zip(requests, rows, strict=True)], 16)
        step = StepInput.from_batch(batch)
        state.layout = layout_of(step, DEVICE)
        ids, positions = (torch.from_numpy(a).to(DEVICE)[None] for a in (step.token_ids, step.positions))
        with torch.inference_mode():
            outputs.append(model(ids, position_ids=positions, use_cache=False).logits[0].double())
    return outputs


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("segments", [0, 2])
def test_a_model_gives_the_logits_of_plain_torch(name, segments):
    config, model_class, options = MODELS[name]
    torch.manual_seed(0)
    model = model_class(config(**SIZES, **options)).eval().to(DEVICE)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    specs = [spec for _, spec in record_layers(model)]
    assert any(spec.window for spec in specs) == (name != "llama")
    assert any(spec.softcap for spec in specs) == (name == "gemma2")
    assert any(spec.has_sinks for spec in specs) == (name == "gpt_oss")
    expected = logits_by(model, TorchLayout)
    got = logits_by(model, lambda step, device: TritonLayout.from_step(step, device, segments=segments))
    for ours, theirs in zip(got, expected, strict=True):
        assert len(theirs.argmax(-1).unique()) > 1, "varied outputs"
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)

"""Rotary positions: variants that depend on the batch, frequencies in 16 bits, positions far into a sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine.gate import check_model
from inferdoc.engine.request import Request
from inferdoc.engine.rotary import pin_rotary
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.errors import ModelError

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LONG = {
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.0, 1.0, 1.0],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
        "original_max_position_embeddings": 64,
    },
}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}


def build(model_type: str = "llama", dtype: torch.dtype = torch.float32, **change: Any) -> torch.nn.Module:
    torch.manual_seed(3)
    config = AutoConfig.for_model(model_type, **(BASE | change))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
    return model


def frequencies(factors: list[float]) -> torch.Tensor:
    """Of heads of 8 elements, by the definition."""
    return torch.tensor([1 / (factor * 10000 ** (i / 4)) for i, factor in enumerate(factors)])


def cosines(model: torch.nn.Module, positions: list[int]) -> torch.Tensor:
    return model.model.rotary_emb(torch.zeros(1), torch.tensor([positions]))[0]


def test_trap_15_without_a_pin_one_long_request_rotates_all_others_anew():
    model = build("phi3", **LONG)
    assert not torch.allclose(cosines(model, [0, 1, 2])[0, 1], cosines(model, [0, 1, 100])[0, 1])


@pytest.mark.parametrize(("max_model_len", "kept"), [(64, "short_factor"), (65, "long_factor"), (256, "long_factor")])
def test_trap_15_longrope_keeps_the_factors_of_the_longest_sequence_there_can_be(max_model_len, kept):
    model = build("phi3", **LONG)
    notes = pin_rotary(model, max_model_len=max_model_len, name="tiny")
    expected = frequencies(LONG["rope_parameters"][kept])
    for positions in ([0, 1, 2], [0, 1, 200], [63], [64], [0]):
        cosines(model, positions)
        torch.testing.assert_close(model.model.rotary_emb.inv_freq, expected)
    assert torch.equal(cosines(model, [0, 1, 2])[0, 1], cosines(model, [0, 1, 200])[0, 1])
    assert any("the long factors" in note for note in notes) == (kept == "long_factor")


def test_trap_15_the_gate_pins_longrope_and_passes_the_model():
    model = build("phi3", **LONG)
    result = check_model(model, expected_layers=2, vocabulary=97, name="tiny", max_model_len=200)
    assert result.largest_difference < 1e-4
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, frequencies([1.0, 2.0, 4.0, 8.0]))
    assert "--max-model-len 200 is above 64" in result.notes[0]


def test_trap_15_a_variant_that_scales_by_the_longest_sequence_and_cannot_be_pinned_is_refused():
    """Phi-3.5-MoE also picks a magnitude by the batch, in its own code."""
    parameters = LONG["rope_parameters"] | {"short_mscale": 1.0, "long_mscale": 1.3}
    settings = {"rope_parameters": parameters, "original_max_position_embeddings": 64, "num_local_experts": 2}
    with pytest.raises(ModelError, match=r"cannot be pinned; --max-model-len 64 runs"):
        pin_rotary(build("phimoe", **settings), max_model_len=128, name="tiny")
    pin_rotary(build("phimoe", **settings), max_model_len=64, name="tiny")


def test_trap_15_dynamic_ntk_stays_at_its_original_frequencies_or_is_refused():
    model = build(**DYNAMIC)
    assert pin_rotary(model, max_model_len=256, name="tiny") == []
    cosines(model, [0, 1000])
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, frequencies([1.0] * 4))
    with pytest.raises(ModelError, match=r"tiny: .*dynamic NTK.*--max-model-len 256 runs"):
        pin_rotary(build(**DYNAMIC), max_model_len=257, name="tiny")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_trap_15_frequencies_stay_exact_in_a_model_of_16_bits_and_a_cast_model_is_refused(dtype):
    exact = build(dtype=dtype)
    assert exact.model.rotary_emb.inv_freq.dtype == torch.float32
    torch.testing.assert_close(exact.model.rotary_emb.inv_freq, frequencies([1.0] * 4))
    pin_rotary(exact, max_model_len=256, name="tiny")
    with pytest.raises(ModelError, match=r"rounded to 16 bits .*with dtype="):
        pin_rotary(build().to(dtype), max_model_len=256, name="tiny")


@pytest.mark.parametrize("model_type", ["llama", "phi3", "gpt_neox"])
def test_trap_15_positions_beyond_four_thousand_are_those_of_the_model(model_type):
    """The last tokens of a long prompt in chunks, then two decodes: logits as of one forward over all of it."""
    model = build(model_type, max_position_embeddings=8192)
    length, chunk, block_size = 4200, 1400, 16
    prompt = torch.randint(97, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        expected = model(torch.tensor([prompt]), use_cache=False, logits_to_keep=3).logits[0]
    runner = ModelRunner(model, kv_tokens=length + block_size)
    request = Request(0, prompt, 1)
    request.block_ids = list(range(-(-length // block_size)))[::-1]
    ours = []
    for tokens in (chunk, chunk, chunk - 2, 1, 1):
        ours.append(runner.logits(Batch([Row(request, tokens, samples=True)], block_size))[0])
        request.num_computed += tokens
    assert request.num_computed == length
    difference = (torch.stack(ours[2:]) - expected).abs().max() / expected.std()
    assert difference < 1e-3
    assert (torch.stack(ours[2:]).argmax(-1) == expected.argmax(-1)).all()

"""Models that the engine would run wrongly without an error are refused by name, and sizing still answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferdoc.errors import ModelError
from inferdoc.models import ModelSpec, check_supported, load_model, read_spec


@pytest.mark.parametrize(
    ("name", "architecture", "reason"),
    [
        ("falcon-7b", "RWForCausalLM", "attention interface"),
        ("falcon-40b", "FalconForCausalLM", "attention interface"),
        ("mpt-7b", "MptForCausalLM", "attention interface"),
        ("jamba-1.5-mini", "JambaForCausalLM", "packed sequence"),
        ("qwen3-next-80b-a3b-instruct", "Qwen3NextForCausalLM", "packed sequence"),
        ("nemotron-h-56b-base", "NemotronHForCausalLM", "packed sequence"),
        ("granite-4.0-h-small", "GraniteMoeHybridForCausalLM", "packed sequence"),
        ("qwen3.5-27b", "Qwen3_5ForConditionalGeneration", "packed sequence"),
        ("llama-4-scout-17b-16e", "Llama4ForConditionalGeneration", "chunked attention"),
        ("deepseek-v3.2", "DeepseekV32ForCausalLM", "indexed_attention"),
        ("eagle3-draft-qwen3-8b", "LlamaForCausalLMEagle3", "speculation head"),
        ("internlm2.5-7b-chat", "InternLM2ForCausalLM", "no causal language model class"),
    ],
)
def test_refusal_names_architecture_reason_and_what_works(
    shared: Path, name: str, architecture: str, reason: str
) -> None:
    spec = read_spec(str(shared / "model_configs" / f"{name}.json"))
    assert spec.kv_bytes(100) > 0
    with pytest.raises(ModelError, match=rf"{architecture}: .*{reason}.*Sizing and trace analysis still work"):
        check_supported(spec)


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "qwen3-8b",
        "gemma-2-2b-it",
        "gemma-3-1b-it",
        "mistral-7b-v0.1",
        "gpt-oss-20b",
        "gpt2",
        "opt-125m",
        "mixtral-8x7b",
        "phi-4",
        "starcoder2-7b",
        "olmo-3.1-32b-instruct",
        "deepseek-v2-lite",
        "redpajama-incite-3b",
    ],
)
def test_families_that_the_engine_runs_are_not_refused(shared: Path, name: str) -> None:
    check_supported(read_spec(str(shared / "model_configs" / f"{name}.json")))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "bloom", "n_layer": 2, "n_head": 4}, "attention interface"),
        ({"model_type": "mamba", "state_size": 16, "conv_kernel": 4}, "packed sequence"),
        ({"model_type": "lfm2", "conv_L_cache": 3, "layer_types": ["conv", "full_attention"]}, "packed sequence"),
        ({"attention_chunk_size": 32}, "chunked attention"),
        ({"alibi": True}, "ALiBi"),
        ({"attn_config": {"alibi": True}}, "ALiBi"),
        ({"position_embedding_type": "relative_key"}, "position bias"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
    ],
)
def test_rules_read_the_configuration(llama_config: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_supported(ModelSpec.from_config(llama_config | change, "odd"))


def test_loading_refuses_before_reading_weights(shared: Path) -> None:
    with pytest.raises(ModelError, match="FalconForCausalLM"):
        load_model(shared / "model_configs" / "falcon-40b.json", load_format="dummy")

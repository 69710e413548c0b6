"""Small models on disk, made by transformers itself with random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Maker = Callable[..., Path]


@pytest.fixture
def llama_config() -> dict[str, Any]:
    """A two-layer Llama. By hand: 2 x (2 x 64 x 64 + 2 x 64 x 32 + 3 x 64 x 128 + 2 x 64) + 64 + embeddings."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "eos_token_id": [3, 5],
        "dtype": "bfloat16",
    }


@pytest.fixture
def config_only(tmp_path: Path, llama_config: dict[str, Any]) -> Path:
    """A directory with a config.json and nothing else."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama_config))
    return folder


@pytest.fixture
def saved_llama(tmp_path: Path, llama_config: dict[str, Any]) -> Path:
    """A model directory with weights in safetensors, without a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    folder = tmp_path / "tiny-llama"
    LlamaForCausalLM(LlamaConfig.from_dict(llama_config)).to(torch.bfloat16).save_pretrained(folder)
    return folder

"""Tests that need a card. Not yet run on one: here they are skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from inferdoc.devices import Device, find_device


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA card, and torch finds none here")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def card() -> torch.device:
    return torch.device("cuda:0")


@pytest.fixture(scope="session")
def device() -> Device:
    return find_device("cuda")


@pytest.fixture(scope="session")
def backend() -> str:
    return "triton"


@pytest.fixture
def small_model(card: torch.device) -> LlamaForCausalLM:
    """Random weights with outputs that vary; grouped heads, head dim 64, float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    with card:
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data.normal_(0.0, 2.0 / parameter.shape[-1] ** 0.5)
    return model

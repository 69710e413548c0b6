"""What the card says about itself, what a step takes of its memory, and what happens when there is none left."""

from __future__ import annotations

import pytest
import torch

from inferdoc.devices import (
    asked_bytes,
    describe,
    find_device,
    free_now,
    is_out_of_memory,
    measure_bandwidth,
    measure_matmul,
    release,
)
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.gate import check_model
from inferdoc.engine.memory import LargestStep, Reading, profile
from inferdoc.engine.runner import ModelRunner
from inferdoc.models import embedded_path, load_model

GIB = 1024**3


def test_the_driver_names_the_card_and_its_memory(device):
    assert device.kind == "cuda"
    assert device.source == "nvml", "nvidia-ml-py is a dependency, so the driver is asked"
    assert device.driver is not None
    assert device.capability is not None
    assert device.total_bytes is not None
    properties = torch.cuda.get_device_properties(device.index)
    assert device.total_bytes == pytest.approx(properties.total_memory, rel=0.05)
    assert 0 < free_now(device) <= device.total_bytes


def test_a_copy_is_as_fast_as_a_card_s_memory_can_be(device):
    bandwidth = measure_bandwidth(device, GIB)
    assert 50e9 < bandwidth.bytes_per_s < 20e12
    assert bandwidth.low > 0.7 * bandwidth.bytes_per_s, "nobody else is on the card"


def test_products_are_as_fast_as_a_card_can_be(device):
    assert 5e12 < measure_matmul(device, "bfloat16").flops_per_s < 5e15


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_the_gate_passes_the_embedded_model(dtype, backend):
    loaded = load_model(embedded_path(), dtype=dtype, device="cuda")
    gate = check_model(
        loaded.model,
        expected_layers=len(loaded.spec.layers),
        vocabulary=loaded.spec.vocab_size,
        name="embedded",
        attention_backend=backend,
    )
    assert gate.layers == len(loaded.spec.layers)


def test_the_memory_profile_has_every_term(device, small_model, backend):
    before = Reading(free=free_now(device), own=torch.cuda.memory_reserved(device.index))
    config = EngineConfig(
        max_model_len=512, num_kv_blocks=256, max_num_seqs=8, attention_backend=backend, enforce_eager=False
    )
    runner = ModelRunner(small_model, config.kv_tokens)
    runner.configure(config)
    assert runner.graph_bytes is not None
    assert runner.graph_bytes > 0
    weights = sum(p.numel() * p.element_size() for p in small_model.parameters())
    step = LargestStep(tokens=512, context=512, sequences=8, decode_context=64, block_size=config.block_size)
    terms = profile(runner, step, device=device, before_load=before, weight_bytes=weights, vocabulary=512)
    assert terms.activation_peak is not None
    assert terms.activation_peak >= terms.logits > 0
    assert terms.outside_framework is not None


def test_memory_that_cannot_be_had_is_told_in_bytes_and_released(device, card):
    free = free_now(device)
    held = torch.empty(free // 4, dtype=torch.uint8, device=card)
    with pytest.raises(RuntimeError) as caught:
        torch.empty(free, dtype=torch.uint8, device=card)
    assert is_out_of_memory(caught.value)
    asked = asked_bytes(caught.value)
    assert asked == pytest.approx(free, rel=0.01)
    del caught
    del held
    release()
    assert "asked for" in describe(asked, device)
    assert free_now(device) > 0.95 * free


def test_a_pool_larger_than_the_card_fails_without_harm(device, small_model):
    runner = ModelRunner(small_model, 64)
    free = free_now(device)
    failed = False
    try:
        runner.resize(2 * free // runner.kv_bytes_per_token)
    except RuntimeError as error:
        failed = is_out_of_memory(error)
    assert failed
    release()
    runner.resize(64)
    release()
    assert free_now(device) > 0.9 * free


def test_cuda_devices_are_numbered(device):
    assert find_device("cuda:0").uuid == device.uuid

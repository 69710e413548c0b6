"""The matrix rate: plausible, inside its range, in the type asked for; what cannot be had is a failed measurement."""

from __future__ import annotations

import pytest
import torch

from inferdoc.devices import Device, find_device, measure_matmul
from inferdoc.errors import MeasurementError


@pytest.fixture
def device() -> Device:
    return find_device("cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rate_is_plausible_and_inside_its_range(device: Device, dtype: str) -> None:
    found = measure_matmul(device, dtype)
    assert found.low <= found.flops_per_s <= found.high
    assert 1e7 < found.flops_per_s < 1e14
    assert (found.dtype, found.passes > 0) == (dtype, True)


def test_a_pass_is_counted_as_two_operations_a_product(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(float(i) for i in range(1000))  # every look at the clock is a second after the last
    monkeypatch.setattr("inferdoc.devices.matmul.time.perf_counter", lambda: next(ticks))
    found = measure_matmul(device, "float32")
    assert found.flops_per_s == 2 * found.size**3


def test_the_seed_of_others_is_left_alone(device: Device) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    measure_matmul(device, "float32")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_memory_that_cannot_be_had_is_a_failed_measurement(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")

    monkeypatch.setattr("torch.randn", fail)
    with pytest.raises(MeasurementError, match="could not be had"):
        measure_matmul(device, "float32")

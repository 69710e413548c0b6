"""Memory bandwidth: bounded, plausible, and marked where a cache answers."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from inferdoc.devices import Device, find_device, measure_bandwidth
from inferdoc.errors import MeasurementError

MIB = 1024**2


@pytest.fixture
def device() -> Device:
    return replace(find_device("cpu"), cache_bytes=8 * MIB, free_bytes=4 * 1024 * MIB)


def test_rate_is_plausible_and_inside_its_range(device: Device) -> None:
    found = measure_bandwidth(device, 64 * MIB)
    assert found.low <= found.bytes_per_s <= found.high
    assert 0.05e9 < found.bytes_per_s < 5e12
    assert found.passes >= 3
    assert found.measured_bytes == 64 * MIB
    assert "sum" in found.method


@pytest.mark.parametrize(
    ("working_set", "cache", "resident"),
    [(4 * MIB, 8 * MIB, True), (8 * MIB, 8 * MIB, True), (9 * MIB, 8 * MIB, False), (4 * MIB, None, None)],
)
def test_set_that_fits_the_cache_is_marked(
    device: Device, working_set: int, cache: int | None, resident: bool | None
) -> None:
    found = measure_bandwidth(replace(device, cache_bytes=cache), working_set)
    assert found.cache_resident is resident
    assert found.llc_bytes == cache


def test_large_working_set_is_measured_with_a_bounded_one(device: Device) -> None:
    start = time.perf_counter()
    found = measure_bandwidth(device, 80 * 1024 * MIB)
    assert found.measured_bytes == 256 * MIB
    assert found.cache_resident is False
    assert time.perf_counter() - start < 10  # loose: shared test machines stall


def test_set_takes_at_most_half_of_the_free_memory(device: Device) -> None:
    assert measure_bandwidth(replace(device, free_bytes=20 * MIB), 80 * 1024 * MIB).measured_bytes == 10 * MIB


def test_virtual_machine_note_is_handed_on(device: Device) -> None:
    note = "virtual machine: the last-level cache that it reports may be shared with other guests"
    assert measure_bandwidth(replace(device, notes=(note,)), MIB).note == note


def test_memory_that_cannot_be_had_is_a_failed_measurement(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr("torch.ones", fail)
    with pytest.raises(MeasurementError, match="could not be had"):
        measure_bandwidth(device, MIB)

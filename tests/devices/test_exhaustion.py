"""Failed allocations: told apart from other errors, sized, and described with what is free."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inferdoc.devices import Device, asked_bytes, bytes_text, describe, find_device, is_out_of_memory

ON_A_CARD = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.72 GiB, 1.20 GiB is free."
)
HUGE = 10**16


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (torch.OutOfMemoryError(ON_A_CARD), 5 * 2**29),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."), 4096),
        (RuntimeError("CUDA error: out of memory"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
        (MemoryError(), None),
    ],
)
def test_every_kind_of_failed_allocation_is_known(error: Exception, asked: int | None) -> None:
    assert is_out_of_memory(error)
    assert asked_bytes(error) == asked


def test_what_torch_and_numpy_really_raise_is_known() -> None:
    with pytest.raises(RuntimeError) as failed:
        torch.empty(HUGE, dtype=torch.uint8)
    assert is_out_of_memory(failed.value)
    assert asked_bytes(failed.value) == HUGE
    with pytest.raises(MemoryError) as numpys:
        np.empty(HUGE, dtype=np.uint8)
    assert is_out_of_memory(numpys.value)


@pytest.mark.parametrize(
    "error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("out of memory")]
)
def test_other_errors_are_not(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_the_description_has_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Device = find_device("cpu")
    monkeypatch.setattr("inferdoc.devices.exhaustion.free_now", lambda _: 3 * 2**20)
    assert describe(2 * 2**30, device) == "out of memory: 2.00 GiB asked for, 3.0 MiB free"
    assert describe(None, device) == "out of memory: 3.0 MiB free"
    monkeypatch.setattr("inferdoc.devices.exhaustion.free_now", lambda _: None)
    assert describe(None, device) == "out of memory"


def test_sizes_are_readable() -> None:
    assert [bytes_text(size) for size in (512, 5 * 2**20, 3 * 2**29)] == ["512 B", "5.0 MiB", "1.50 GiB"]

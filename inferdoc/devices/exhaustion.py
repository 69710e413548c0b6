"""Memory that could not be had: how to tell, what was asked for, what is free, and how to let go of the rest."""

from __future__ import annotations

import gc
import re
import sys

from inferdoc.devices.device import Device
from inferdoc.devices.host import Host

# Beside torch.OutOfMemoryError: the CPU allocator, and what CUDA libraries raise for memory outside torch's allocator.
_MESSAGES = ("DefaultCPUAllocator: can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_ASKED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: on a card, in torch's allocator for CPUs, or in Python itself."""
    if isinstance(error, MemoryError):
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):  # torch's, without importing it
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def asked_bytes(error: BaseException) -> int | None:
    """Size of the allocation that failed, where the message tells it."""
    found = _ASKED.search(str(error))
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def free_now(device: Device) -> int | None:
    """Bytes of the device that are free now: the driver's answer on a card, available memory on a host."""
    if device.kind == "cpu" or device.unified:
        return Host().memory().available
    import torch

    try:
        return int(torch.cuda.mem_get_info(device.index)[0])
    except RuntimeError:
        return None


def describe(asked: int | None, device: Device) -> str:
    """One line with the bytes. Call it after `release`, so that what is free is what another try would find.

    Args:
        asked: the failing error's `asked_bytes`; not the error itself, whose frames hold what is to be released.
    """
    free = free_now(device)
    parts = [
        f"{bytes_text(asked)} asked for" if asked is not None else None,
        f"{bytes_text(free)} free" if free is not None else None,
    ]
    return ": ".join(["out of memory", ", ".join(filter(None, parts))]).removesuffix(": ")


def release() -> None:
    """Let go of what failed work held. Its frames must be gone: call this outside the ``except`` block."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def bytes_text(size: float) -> str:
    """``1.50 GiB``, ``12.0 MiB``, ``512 B``."""
    if size >= 2**30:
        return f"{size / 2**30:.2f} GiB"
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size:.0f} B"

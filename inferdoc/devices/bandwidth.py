"""How fast the device reads memory, measured: the ceiling of decoding, which reads all weights for every step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferdoc.devices.device import Device
from inferdoc.errors import MeasurementError

_LARGEST = 2 * 1024**3
_SMALLEST = 1024**2
_TIME_LIMIT_S = 0.5
_PASSES = 9
# Read from end to end, a set of two caches finds nothing of itself left; a larger one takes longer and tells no more.
_CACHES = 2


@dataclass(frozen=True)
class Bandwidth:
    """One measurement.

    bytes_per_s: median over `passes`; low, high: slowest and fastest pass. measured_bytes: size of the set read.
    cache_resident: whether the working set asked about fits the last-level cache, so that the rate is the cache's and
        no share of memory bandwidth can be told; None where the cache's size is unknown.
    llc_bytes: last-level cache (L2 on a card). method, note: how it was measured, and what limits its meaning.
    """

    bytes_per_s: float
    low: float
    high: float
    passes: int
    measured_bytes: int
    cache_resident: bool | None
    llc_bytes: int | None
    method: str
    note: str | None = None


def measure_bandwidth(device: Device, working_set_bytes: int) -> Bandwidth:
    """Reads a set of the size that a decoding step reads, again and again, in under a second.

    CPU: sums over a float32 buffer with all of torch's threads. CUDA: copies on the device, timed by events, each byte
    counted once as read and once as written. At most 2 GiB, at most twice the last-level cache (where the working set
    is larger than that), and at most half of the free memory.

    Raises:
        MeasurementError: the memory for the set cannot be had.
    """
    size = _set_size(device, working_set_bytes)
    try:
        rates = _copy_rates(device.torch_name, size) if device.kind == "cuda" else _read_rates(size)
    except (RuntimeError, MemoryError):
        raise MeasurementError(f"memory bandwidth: {size} bytes could not be had on {device.torch_name}") from None
    cache = device.cache_bytes
    note = next((text for text in device.notes if "last-level cache" in text), None)
    return Bandwidth(
        bytes_per_s=statistics.median(rates),
        low=min(rates),
        high=max(rates),
        passes=len(rates),
        measured_bytes=size,
        cache_resident=None if cache is None else working_set_bytes <= cache,
        llc_bytes=cache,
        method="device copy, read and write counted" if device.kind == "cuda" else "sum over a float32 buffer",
        note=note,
    )


def _set_size(device: Device, working_set_bytes: int) -> int:
    bounds = [working_set_bytes, _LARGEST]
    if device.cache_bytes is not None:
        bounds.append(max(_CACHES * device.cache_bytes, 256 * 1024**2))
    if device.usable_bytes is not None:
        bounds.append(device.usable_bytes // 2)
    return max(min(bounds), _SMALLEST) // 4 * 4


def _read_rates(size: int) -> list[float]:
    import torch

    buffer = torch.ones(size // 4, dtype=torch.float32)
    buffer.sum()
    # a pass over a small set is shorter than the clock and the call can resolve, so several make one reading
    repeats = max(1, 32 * 1024**2 // size)
    rates: list[float] = []
    end = time.perf_counter() + _TIME_LIMIT_S
    while len(rates) < _PASSES and (len(rates) < 3 or time.perf_counter() < end):
        start = time.perf_counter()
        for _ in range(repeats):
            buffer.sum()
        rates.append(size * repeats / (time.perf_counter() - start))
    return rates


def _copy_rates(name: str, size: int) -> list[float]:
    import torch

    half = size // 8 * 4
    make_event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
    with torch.cuda.device(name):
        source = torch.ones(half // 4, dtype=torch.float32, device=name)
        target = torch.empty_like(source)
        repeats = max(1, 256 * 1024**2 // half)
        rates: list[float] = []
        for reading in range(_PASSES + 2):
            start, end = make_event(), make_event()
            start.record()
            for _ in range(repeats):
                target.copy_(source)
            end.record()
            end.synchronize()
            if reading >= 2:
                rates.append(2 * half * repeats / (start.elapsed_time(end) / 1000))
    return rates

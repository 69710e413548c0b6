"""How fast the device multiplies matrices, measured: the ceiling of prompts and of large batches."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from inferdoc.devices.device import Device
from inferdoc.devices.exhaustion import is_out_of_memory
from inferdoc.errors import MeasurementError

_TIME_LIMIT_S = 0.3
_PASSES = 9
_WARM_UPS = 2
# Large enough to reach the rate, small enough for a host that has to emulate the type: 0.27 and 1100 GFLOP a product.
_SIZE = {"cpu": 512, "cuda": 8192}


@dataclass(frozen=True)
class MatmulRate:
    """One measurement of square products in `dtype`, with all of torch's threads on a CPU.

    flops_per_s: median over `passes`, a multiply and an add counted as two; low, high: slowest and fastest pass.
    """

    flops_per_s: float
    low: float
    high: float
    passes: int
    size: int
    dtype: str


def measure_matmul(device: Device, dtype: str) -> MatmulRate:
    """Multiplies a square matrix with itself, again and again, in about 0.3 s.

    Raises:
        MeasurementError: the memory for it cannot be had, or the device cannot multiply this type.
    """
    import torch

    size = _SIZE[device.kind]
    try:
        # Random numbers: a card runs faster on constants, which flip fewer bits.
        generator = torch.Generator(device.torch_name).manual_seed(0)
        matrix = torch.randn(size, size, dtype=getattr(torch, dtype), device=device.torch_name, generator=generator)
        out = torch.empty_like(matrix)
        rates: list[float] = []
        began = time.perf_counter()
        while len(rates) < _PASSES + _WARM_UPS:
            start = time.perf_counter()
            torch.mm(matrix, matrix, out=out)
            if device.kind == "cuda":
                torch.cuda.synchronize(device.index)
            end = time.perf_counter()
            rates.append(2 * size**3 / (end - start))
            if len(rates) >= 1 + _WARM_UPS and end - began > _TIME_LIMIT_S:
                break
    except (RuntimeError, MemoryError) as error:
        why = "the memory could not be had" if is_out_of_memory(error) else str(error).splitlines()[0]
        raise MeasurementError(f"matrix rate in {dtype} on {device.torch_name}: {why}") from None
    rates = rates[_WARM_UPS:]
    return MatmulRate(statistics.median(rates), min(rates), max(rates), len(rates), size, dtype)

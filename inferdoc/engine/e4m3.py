"""The 8-bit floating-point type e4m3: 3 bits of mantissa, magnitudes from 2^-9 to 448, no infinity (OCP, 2023)."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from inferdoc.errors import MeasurementError

LARGEST = 448.0


def to_e4m3(tensor: Tensor) -> Tensor:
    """Rounded to the nearest, ties to even; what is too large becomes the largest, NaN stays NaN."""
    return tensor.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def from_e4m3(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Exact in every type of 16 bits and more. On a CPU by a table: torch's own conversion takes ten times as long."""
    if numbers.device.type != "cpu":
        return numbers.to(dtype)
    places = numbers.view(torch.uint8).flatten().int()
    return _table(dtype).index_select(0, places).view(numbers.shape)


@cache
def _table(dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(dtype)


def scale_for(largest: float) -> float:
    """The smallest power of two with which `largest` takes at most half of the range: larger values may come.

    A margin costs no precision in a floating-point type, and a power of two makes scaling exact.

    Raises:
        MeasurementError: it is no finite number: the model's type overflowed before.
    """
    if not math.isfinite(largest):
        raise MeasurementError("keys or values of the calibration text are not finite: the model's own type overflows")
    return float(2.0 ** math.ceil(math.log2(max(largest, 1e-12) * 2 / LARGEST)))

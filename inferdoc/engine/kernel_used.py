"""Which operator multiplies by quantized weights, as torch's profiler sees it: what really ran, not what was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inferdoc.engine.quantized_weights import QuantizedWeight
from inferdoc.engine.silent import silent_stderr

_PLAIN = ("mm", "addmm", "bmm", "mv", "addmv")
"""Products of floating-point numbers: before one of these the weights were made such numbers again."""
_FUSED = (
    "_int_mm",
    "_scaled_mm",
    "_scaled_mm_v2",
    "_weight_int8pack_mm",
    "_weight_int4pack_mm",
    "_weight_int4pack_mm_for_cpu",
    "_cslt_sparse_mm",
    "_sparse_semi_structured_mm",
    "_sparse_semi_structured_addmm",
    "_sparse_semi_structured_linear",
)
NOT_FUSED = "no fused kernel here"


@dataclass(frozen=True)
class KernelUsed:
    """One way in which layers were multiplied.

    name: torch's operators for the product, ``aten::`` left out. fused: it reads the quantized weights; else they were
    made floating-point numbers first, and a time of it says nothing about the scheme. layers: how many went this way.
    """

    name: str
    fused: bool
    layers: int


def kernels_of(
    weights: Sequence[QuantizedWeight], rows: Sequence[int], dtype: torch.dtype, device: torch.device
) -> tuple[KernelUsed, ...]:
    """Multiply by every shape of weight once, with each number of rows, and list what ran, most layers first."""
    alike: dict[tuple[int, int], list[QuantizedWeight]] = {}
    for weight in weights:
        alike.setdefault(weight.shape, []).append(weight)
    found: Counter[tuple[str, bool]] = Counter()
    for (_, inputs), group in alike.items():
        ran = set()
        for count in rows:
            ran |= _ran(group[0], torch.ones(count, inputs, dtype=dtype, device=device))
        products = sorted(ran & {*_PLAIN, *_FUSED})
        fused = bool(products) and not ran & {*_PLAIN}
        found[" and ".join(products) or "unknown", fused] += len(group)
    return tuple(KernelUsed(name, fused, layers) for (name, fused), layers in found.most_common())


def _ran(weight: QuantizedWeight, hidden: torch.Tensor) -> set[str]:
    """Names of the operators of one product."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.inference_mode(), silent_stderr(), torch.profiler.profile(activities=activities) as profiler:
        weight.multiply(hidden)
    return {event.key.removeprefix("aten::") for event in profiler.key_averages()}

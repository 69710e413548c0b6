"""Weight matrices in fewer bits, and their products with activations. W is [out, in], X [rows, in], Y = X W^T.

Each scheme's formula, with q the stored numbers and s the scales (a row is an output feature):

    int8_weight_only   W = s[row] q                                       s = largest |W| of the row / 127.5
    int8_dynamic       the same, and X = t[row] p in int8                 t = largest |X| of the row / 127
    fp8_weight_only    W = s[row] q, q in e4m3                            s = largest |W| of the row / 448
    fp8_dynamic        the same, and X = t[row] p in e4m3                 t = largest |X| of the row / 448
    int4_weight_only   W = s[row, group] (q - 8) + z[row, group]          s = (highest - lowest of the group) / 15
    sparse_24          of 4 weights side by side the 2 largest are kept   one-shot magnitude, untrained

torchao quantizes, and multiplies where it has a fused kernel (cards: fp8_dynamic, int4_weight_only). Elsewhere torch's
own kernels multiply, and where there is none, the weights are made floating-point numbers again for each product: that
tells of memory and quality, and nothing of speed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from inferdoc.engine.config import WeightScheme
from inferdoc.engine.e4m3 import LARGEST, from_e4m3, to_e4m3
from inferdoc.errors import InputError, UnsupportedHereError
from inferdoc.models.quiet import silence

GROUPS = (128, 64, 32)
"""Sizes of an int4 group; a layer takes the largest that divides its inputs."""
_LEAST_ROWS_ON_CARDS = 32
"""cuBLAS multiplies int8 from 17 rows on (torch._int_mm checks it); fewer are padded."""
_CAPABILITY: dict[str, tuple[int, int]] = {
    # NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities": e4m3 operands of tensor cores came with 8.9, int8 ones
    # with 7.5 (7.2 on embedded chips), sparse ones with 8.0. torch's _weight_int4pack_mm and torch.sparse's
    # semi-structured products check for 8.0 themselves, torch._scaled_mm for 8.9.
    "int8_dynamic": (7, 5),
    "fp8_dynamic": (8, 9),
    "int4_weight_only": (8, 0),
    "sparse_24": (8, 0),
}
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)


class UnquantizableError(Exception):
    """Why a layer stays native."""


class QuantizedWeight:
    """One matrix of `shape` [out, in]; `multiply` gives X W^T for X [rows, in]."""

    def __init__(self, shape: torch.Size, multiply: Callable[[Tensor], Tensor], *held: Tensor) -> None:
        self.shape = (shape[0], shape[1])
        self.multiply = multiply
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in held)
        """Bytes of the numbers and scales."""


def refuse_device(scheme: WeightScheme, dtype: torch.dtype, device: torch.device) -> None:
    """Raises where a device cannot run a scheme.

    Raises:
        UnsupportedHereError: the device lacks it.
        InputError: it would do with weights of another type.
    """
    if device.type == "cpu" or scheme == "native":
        return
    if device.type != "cuda":
        raise UnsupportedHereError("needs a CUDA card")
    needed = _CAPABILITY.get(scheme)
    if needed is not None and torch.cuda.get_device_capability(device) < needed:
        raise UnsupportedHereError(f"needs compute capability {needed[0]}.{needed[1]}")
    if scheme in ("fp8_dynamic", "int4_weight_only") and dtype != torch.bfloat16:
        raise InputError(f"weights={scheme} needs a model in bfloat16 on a card, not {_name(dtype)}: --dtype bfloat16")
    if scheme == "sparse_24" and dtype not in _SIXTEEN_BITS:
        raise InputError(f"weights={scheme} needs a model in 16 bits on a card, not {_name(dtype)}: --dtype bfloat16")


def quantize(weight: Tensor, scheme: WeightScheme) -> QuantizedWeight:
    """The matrix [out, in] under a scheme.

    Raises:
        UnquantizableError: its shape does not go with the scheme.
    """
    make = {
        "int8_weight_only": _int8_weight_only,
        "int8_dynamic": _int8_dynamic,
        "fp8_weight_only": _fp8_weight_only,
        "fp8_dynamic": _fp8_dynamic,
        "int4_weight_only": _int4_weight_only,
        "sparse_24": _sparse_24,
    }[scheme]
    with torch.no_grad():
        return make(weight.detach())


def _int8_weight_only(weight: Tensor) -> QuantizedWeight:
    numbers, scales = _by_torchao(weight, "Int8WeightOnlyConfig")
    ours = scales.to(weight.dtype)
    # torch's CPU kernel for float32 is a plain loop, up to 60 times slower than making the weights floats again.
    fused = weight.dtype == torch.bfloat16 or (weight.dtype == torch.float16 and weight.device.type == "cuda")

    def multiply(hidden: Tensor) -> Tensor:
        if fused:
            product: Tensor = torch.ops.aten._weight_int8pack_mm(hidden, numbers, ours)
            return product
        return functional.linear(hidden, numbers.to(hidden.dtype)) * ours

    return QuantizedWeight(weight.shape, multiply, numbers, ours)


def _int8_dynamic(weight: Tensor) -> QuantizedWeight:
    numbers, scales = _by_torchao(weight, "Int8WeightOnlyConfig")
    on_card = weight.device.type == "cuda"
    if on_card and (weight.shape[0] % 8 or weight.shape[1] % 8):
        raise UnquantizableError("its sizes are no multiples of 8, as int8 products on cards need them")
    transposed = numbers.t()

    def multiply(hidden: Tensor) -> Tensor:
        rows = hidden.shape[0]
        wide = hidden.float()
        steps = wide.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
        rounded = (wide / steps).round_().to(torch.int8)
        if on_card and rows < _LEAST_ROWS_ON_CARDS:
            rounded = functional.pad(rounded, (0, 0, 0, _LEAST_ROWS_ON_CARDS - rows))
        product = torch._int_mm(rounded, transposed)[:rows]
        return (product * steps * scales).to(hidden.dtype)

    return QuantizedWeight(weight.shape, multiply, numbers, scales)


def _fp8_weight_only(weight: Tensor) -> QuantizedWeight:
    numbers, scales = _by_torchao(weight, "Float8WeightOnlyConfig")
    ours = scales.to(weight.dtype)

    def multiply(hidden: Tensor) -> Tensor:
        return functional.linear(hidden, from_e4m3(numbers, hidden.dtype)) * ours

    return QuantizedWeight(weight.shape, multiply, numbers, ours)


def _fp8_dynamic(weight: Tensor) -> QuantizedWeight:
    if weight.device.type == "cuda":
        if weight.shape[0] % 16 or weight.shape[1] % 16:
            raise UnquantizableError("its sizes are no multiples of 16, as fp8 products on cards need them")
        return _torchao_product(weight, "Float8DynamicActivationFloat8WeightConfig", granularity=_torchao().PerRow())
    numbers, scales = _by_torchao(weight, "Float8WeightOnlyConfig")

    def multiply(hidden: Tensor) -> Tensor:
        wide = hidden.float()
        steps = wide.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / LARGEST
        rounded = from_e4m3(to_e4m3(wide / steps), torch.float32)
        product = functional.linear(rounded, from_e4m3(numbers, torch.float32))
        return (product * steps * scales).to(hidden.dtype)

    return QuantizedWeight(weight.shape, multiply, numbers, scales)


def _int4_weight_only(weight: Tensor) -> QuantizedWeight:
    group = next((size for size in GROUPS if weight.shape[1] % size == 0), None)
    if group is None:
        raise UnquantizableError(f"its {weight.shape[1]} inputs do not divide into groups of {GROUPS[-1]}")
    if weight.device.type == "cuda":
        return _torchao_product(
            weight, "Int4WeightOnlyConfig", group_size=group, int4_packing_format="tile_packed_to_4d"
        )
    if weight.shape[0] % 16:
        raise UnquantizableError(f"its {weight.shape[0]} outputs are no multiple of 16, as the CPU's int4 layout needs")
    groups = weight.float().view(len(weight), -1, group)
    lowest, highest = groups.amin(dim=2), groups.amax(dim=2)
    scales = ((highest - lowest) / 15).clamp_min(1e-12).to(weight.dtype)
    zeros = lowest.to(weight.dtype).float() + 8 * scales.float()
    zeros = zeros.to(weight.dtype)
    numbers = ((groups - zeros.float()[..., None]) / scales.float()[..., None]).round_().add_(8).clamp_(0, 15)
    numbers = numbers.to(torch.int32).flatten(1)
    if weight.dtype == torch.bfloat16:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
        both = torch.stack([scales, zeros], dim=-1).transpose(0, 1).contiguous()  # [groups, out, 2]
        return QuantizedWeight(
            weight.shape,
            lambda hidden: torch.ops.aten._weight_int4pack_mm_for_cpu(hidden, packed, group, both),
            packed,
            both,
        )
    # For other types torch has a plain loop, as for int8: two numbers a byte, made floats again.
    pairs = (numbers[:, ::2] | numbers[:, 1::2] << 4).to(torch.uint8)

    def multiply(hidden: Tensor) -> Tensor:
        steps = torch.stack([pairs & 15, pairs >> 4], dim=-1).view(len(pairs), -1, group).to(hidden.dtype) - 8
        return functional.linear(hidden, (steps * scales[..., None] + zeros[..., None]).flatten(1))

    return QuantizedWeight(weight.shape, multiply, pairs, scales, zeros)


def _sparse_24(weight: Tensor) -> QuantizedWeight:
    if weight.shape[1] % 4:
        raise UnquantizableError(f"its {weight.shape[1]} inputs do not divide into fours")
    kept = prune_24(weight)
    if weight.device.type != "cuda":
        return QuantizedWeight(weight.shape, lambda hidden: functional.linear(hidden, kept), kept)
    try:
        with silence():
            sparse: Tensor = torch.sparse.to_sparse_semi_structured(kept)
    except RuntimeError as error:
        raise UnquantizableError(str(error).splitlines()[0]) from None
    held = [part for name in ("packed", "meta") if isinstance(part := getattr(sparse, name, None), Tensor)]
    return QuantizedWeight(weight.shape, lambda hidden: functional.linear(hidden, sparse), *held)


def prune_24(weight: Tensor) -> Tensor:
    """Of each four weights side by side the two of largest magnitude, the others zero."""
    fours = weight.view(len(weight), -1, 4)
    largest = fours.abs().topk(2, dim=2).indices
    return torch.zeros_like(fours).scatter(2, largest, fours.gather(2, largest)).flatten(1)


def _by_torchao(weight: Tensor, config: str) -> tuple[Tensor, Tensor]:
    """Numbers [out, in] and scales [out] in float32."""
    quantized: Any = _torchao_weight(weight.float(), config)
    return quantized.qdata, quantized.scale.flatten().float()


def _torchao_product(weight: Tensor, config: str, **options: Any) -> QuantizedWeight:
    """torchao's own tensor and its own product. Not yet run on a card."""
    quantized = _torchao_weight(weight, config, **options)
    names, _ = quantized.__tensor_flatten__()  # type: ignore[attr-defined]
    held = [getattr(quantized, name) for name in names]
    return QuantizedWeight(weight.shape, lambda hidden: functional.linear(hidden, quantized), *held)


def _torchao_weight(weight: Tensor, config: str, **options: Any) -> Tensor:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    with silence():
        api: Any = _torchao()
        # It would set options of torch.compile for the whole process, the other arm of a comparison included.
        api.quantize_(layer, getattr(api, config)(set_inductor_config=False, **options))
    quantized = layer.weight.data
    if type(quantized) is Tensor:
        raise UnquantizableError("torchao leaves it as it is")  # without a word, where a shape does not suit it
    return quantized


def _torchao() -> Any:
    try:
        return importlib.import_module("torchao.quantization")
    except ImportError as error:
        raise InputError("quantized weights need the package torchao, 0.18 or later: pip install torchao") from error


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

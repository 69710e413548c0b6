"""The linear layers of a model with quantized weights, put in place and taken out again: one model, both arms.

Embeddings, the output head, routers and whatever shares a weight with another module stay native, so what is tied stays
tied. Layers that were merged before are quantized as merged. Both copies of the weights are kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inferdoc.engine.config import WeightScheme
from inferdoc.engine.fusion import MergedLinear, MergedProduct
from inferdoc.engine.kernel_used import KernelUsed, kernels_of
from inferdoc.engine.quantized_linear import QuantizedLinear, QuantizedProduct
from inferdoc.engine.quantized_weights import QuantizedWeight, UnquantizableError, quantize, refuse_device
from inferdoc.errors import InputError
from inferdoc.models.counting import ROUTER

_ROWS = (1, 64)
"""Products that are tried to find the kernel: one of a decode step, one of a prompt."""


@dataclass(frozen=True)
class _Swap:
    parent: nn.Module
    name: str
    original: nn.Linear
    quantized: QuantizedLinear


class QuantizedLayers:
    """The quantized layers of a model. They are off until `enable`.

    Args:
        model: with its own weights; fused before, where it is to be fused.

    Raises:
        InputError: the checkpoint is quantized already, or no layer can be.
        UnsupportedHereError: the device cannot run the scheme.
        Exception: memory for the second copy could not be had.
    """

    def __init__(self, model: nn.Module, scheme: WeightScheme, device: torch.device) -> None:
        dtype = next(model.parameters()).dtype
        earlier = refuse_quantized(model, scheme)
        refuse_device(scheme, dtype, device)
        self.scheme = scheme
        self.bytes = 0
        """Of the quantized weights, scales included."""
        self.native_bytes = 0
        """Of the weights that they stand for."""
        self.parameters = 0
        """Numbers that are quantized."""
        self.notes: list[str] = [] if earlier is None else [earlier]
        """What stays native and why, for the user."""
        self._on = False
        self._swaps: list[_Swap] = []
        self._products: list[tuple[MergedProduct, QuantizedProduct]] = []
        self._left: Counter[str] = Counter()
        self._left_parameters = 0
        self._take_all(model)
        if not self.parameters:
            reasons = "; ".join(self._left) or "it has no linear layers"
            raise InputError(f"weights={scheme}: none of the model's layers can be quantized: {reasons}")
        total = self.parameters + self._left_parameters
        if self._left:
            what = "; ".join(f"{reason} ({count})" for reason, count in self._left.items())
            self.notes.append(
                f"weights={scheme}: {self._left_parameters / total:.1%} of the linear layers' parameters stay native: "
                f"{what}"
            )
        if scheme == "sparse_24":
            self.notes.append("2:4 sparsity: one-shot magnitude, untrained")
        weights = [swap.quantized.product.weight for swap in self._swaps] + [p.weight for _, p in self._products]
        self.kernels: tuple[KernelUsed, ...] = kernels_of(weights, _ROWS, dtype, device)
        """What multiplies, found by running it."""

    def enable(self, on: bool) -> None:
        """Put the quantized layers in place, or the original ones."""
        if on == self._on:
            return
        self._on = on
        for swap in self._swaps:
            setattr(swap.parent, swap.name, swap.quantized if on else swap.original)
        for merged, product in self._products:
            merged.quantized = product if on else None

    def _take_all(self, model: nn.Module) -> None:
        head = model.get_output_embeddings()  # type: ignore[operator]
        uses = Counter(id(module.weight) for module in model.modules() if hasattr(module, "weight"))
        merged: dict[int, list[MergedLinear]] = {}
        for prefix, parent in list(model.named_modules()):
            for name, child in list(parent.named_children()):
                if child is head or ROUTER.search(f"{prefix}.{name}"):
                    continue
                if isinstance(child, MergedLinear):
                    merged.setdefault(id(child.product), []).append(child)
                elif type(child) is nn.Linear and uses[id(child.weight)] > 1:
                    self._leave("another module uses the same weight", child.weight.numel())
                elif type(child) is nn.Linear:
                    weight = self._quantize(child.weight)
                    if weight is not None:
                        self._swaps.append(_Swap(parent, name, child, QuantizedLinear(child, weight)))
                elif isinstance(child, nn.Linear) or type(child).__name__ == "Conv1D":
                    self._leave(f"they are {type(child).__name__} modules", child.weight.numel())
            for stacked in parent.parameters(recurse=False):
                if stacked.dim() == 3:
                    self._leave("experts held as one tensor", stacked.numel())
        for modules in merged.values():
            product = modules[0].product
            weight = self._quantize(product.weight)
            if weight is not None:
                self._products.append((product, QuantizedProduct(weight, product.bias)))

    def _quantize(self, native: Tensor) -> QuantizedWeight | None:
        try:
            weight = quantize(native, self.scheme)
        except UnquantizableError as error:
            self._leave(str(error), native.numel())
            return None
        self.bytes += weight.bytes
        self.native_bytes += native.numel() * native.element_size()
        self.parameters += native.numel()
        return weight

    def _leave(self, reason: str, parameters: int) -> None:
        self._left[reason] += 1
        self._left_parameters += parameters


def quantized_by(model: nn.Module) -> str | None:
    """Method of the checkpoint's own quantization, also where its weights were dequantized when they were loaded."""
    held: Any = getattr(getattr(model, "config", None), "quantization_config", None)
    method = held.get("quant_method") if isinstance(held, dict) else getattr(held, "quant_method", None)
    by = getattr(model, "quantized_by", None) or getattr(method, "value", method)
    return None if by is None else str(by)


def refuse_quantized(model: nn.Module, scheme: WeightScheme) -> str | None:
    """Refuses a checkpoint that is quantized already, but for GGUF, whose blocks are always expanded: that gets a note.

    Raises:
        InputError: by which method it is quantized.
    """
    by = quantized_by(model)
    if by is None:
        return None
    if by == "gguf":
        return f"weights={scheme}: the GGUF file was quantized before, so what is lost beside it is understated"
    raise InputError(
        f"weights={scheme}: the checkpoint is already quantized by {by}; weights=native measures it as it is"
    )

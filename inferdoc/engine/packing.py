"""Linear layers whose weights MKL has packed for one number of rows: on a CPU, for steps of a full batch of decodes.

MKL rearranges a weight matrix at each product. For 32 rows that takes about a quarter of the time, and a packed copy
saves it. The copy is as large as the weights, and serves products of exactly that many rows; others go on as before.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from inferdoc.engine.operators import define

_layers: WeakValueDictionary[int, PackedLinear] = WeakValueDictionary()
"""A packed matrix has no layout that torch.compile knows, so a compiled model names the layer by number."""


class PackedLinear(nn.Module):
    """Stands for a linear layer, whose parameters it shares."""

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self._original = (linear,)  # in a tuple, so that it is no child
        self._rows = rows
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(linear.weight.detach(), rows)
        self._number = id(self)
        _layers[self._number] = self

    def forward(self, hidden: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            product: Tensor = torch.ops.inferdoc.packed_linear(hidden, self.weight, self._number)
            return product
        return self.multiply(hidden)

    def multiply(self, hidden: Tensor) -> Tensor:
        # MKL compares the number of rows by itself, so nothing here depends on it.
        product: Tensor = torch.ops.mkl._mkl_linear(hidden, self._packed, self.weight, self.bias, self._rows)
        return product


def _multiply(hidden: Tensor, weight: Tensor, layer: int) -> Tensor:
    return _layers[layer].multiply(hidden)


def _shape(hidden: Tensor, weight: Tensor, layer: int) -> Tensor:
    return hidden.new_empty(*hidden.shape[:-1], weight.shape[0])


define("packed_linear(Tensor hidden, Tensor weight, int layer) -> Tensor", _multiply, _shape)


class PackedLayers:
    """The packed layers of a model. They are off until `enable`.

    Args:
        model: float32, on a CPU.
        rows: tokens of the steps that they serve.
    """

    def __init__(self, model: nn.Module, rows: int) -> None:
        self.rows = rows
        self._swaps = [
            (parent, name, child, PackedLinear(child, rows))
            for parent in list(model.modules())
            for name, child in parent.named_children()
            if type(child) is nn.Linear and child.weight.dtype == torch.float32
        ]
        self._on = False

    def enable(self, on: bool) -> None:
        """Put the packed layers in place, or the original ones."""
        if on != self._on:
            self._on = on
            for parent, name, original, packed in self._swaps:
                setattr(parent, name, packed if on else original)


def why_unpackable(dtype: torch.dtype, device: torch.device) -> str | None:
    """The reason why a model's layers cannot be packed; None where they can."""
    if device.type != "cpu" or dtype != torch.float32:
        return f"weights are packed in float32 on a CPU, and the model is in {dtype} on {device.type}"
    if not hasattr(torch.ops.mkl, "_mkl_linear"):
        return "weights are packed by MKL, which this torch is built without"
    return None

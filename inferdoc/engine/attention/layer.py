"""What the attention of a layer is, where its K/V are, and what a backend must do with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from inferdoc.engine.e4m3 import to_e4m3


@dataclass(frozen=True)
class LayerSpec:
    """What a layer's attention call looks like, as the hook saw it."""

    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None = None
    """A query sees the `window` latest positions, itself included."""
    softcap: float | None = None
    has_sinks: bool = False


class AttentionLayout(Protocol):
    """A step's geometry on the device. Made once a step (or once a graph), used by every layer."""

    def store(self, key: Tensor, value: Tensor, layer: LayerPages) -> None:
        """Write the step's key [Hkv, T, Dk] and value [Hkv, T, Dv] into the layer's pages."""
        ...

    def attend(self, query: Tensor, layer: LayerPages, sinks: Tensor | None) -> Tensor:
        """Causal attention of query [H, T, Dk] over the pages: [T, H, Dv]. `sinks`: [H] logits without a value."""
        ...


@dataclass
class StepState:
    """Set by the runner before each forward; shared by all layers of a model."""

    layout: AttentionLayout | None = field(default=None)


@dataclass(frozen=True)
class KvScales:
    """What the numbers of pages in e4m3 are multiplied by; powers of two."""

    key: float
    value: float


@dataclass
class LayerPages:
    """A layer's K/V: [slots, Hkv, Dk] and [slots, Hkv, Dv]; slot = block * block_size + offset."""

    keys: Tensor
    values: Tensor
    spec: LayerSpec
    state: StepState
    scales: KvScales | None = None
    """Set where the pages are in e4m3; else they are in the model's own type."""
    number: int = field(default=0, init=False)
    """By which a compiled model names them."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        """Store the step's key [Hkv, T, Dk] and value [Hkv, T, Dv], attend with query [H, T, Dk]: [T, H, Dv]."""
        layout = self.state.layout
        assert layout is not None, "the runner sets the layout before the forward"
        layout.store(key, value, self)
        return layout.attend(query, self, sinks)

    def stored(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Key and value in the type of the pages; e4m3 as bytes, which every operator takes."""
        if self.scales is None:
            return key, value
        narrow = to_e4m3(key / self.scales.key), to_e4m3(value / self.scales.value)
        return narrow[0].view(torch.uint8), narrow[1].view(torch.uint8)


def rows_in_place(tensor: Tensor) -> Tensor:
    """For kernels that take any strides but in the last dimension, which nearly always lies side by side already."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

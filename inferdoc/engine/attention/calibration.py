"""Scales for K/V in e4m3, from the largest keys and values that each layer gives on some tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from inferdoc.engine.attention.layer import KvScales, LayerPages
from inferdoc.engine.attention.reference import TorchLayout, paged_attention
from inferdoc.engine.batch import StepInput
from inferdoc.engine.e4m3 import scale_for


class CalibrationLayout(TorchLayout):
    """One prompt, whose K/V are used as they come, and are not stored: the pages may be of any type, or none.

    Args:
        step: a single row, from its first token on, whose slots are its positions.
    """

    def __init__(self, step: StepInput, device: torch.device) -> None:
        super().__init__(step, device)
        self.largest: dict[int, tuple[Tensor, Tensor]] = {}
        """By the layer's number: largest magnitude of its keys, and of its values."""

    def store(self, key: Tensor, value: Tensor, layer: LayerPages) -> None:
        self._key, self._value = key.transpose(0, 1).contiguous(), value.transpose(0, 1).contiguous()
        self.largest[layer.number] = key.abs().amax(), value.abs().amax()

    def attend(self, query: Tensor, layer: LayerPages, sinks: Tensor | None) -> Tensor:
        return paged_attention(query, self._key, self._value, self, layer.spec, sinks)

    def scales(self, layer: LayerPages) -> KvScales:
        key, value = self.largest[layer.number]
        return KvScales(scale_for(float(key)), scale_for(float(value)))

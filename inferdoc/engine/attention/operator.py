"""Attention as one operator, so that torch.compile traces around it instead of into it.

To the compiler it is a function of its tensors. That it also writes K/V into pages stays hidden: they are read nowhere
but in here, and each call's result feeds the next layer, so no call is dropped or moved before another.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch
from torch import Tensor

from inferdoc.engine.attention.layer import LayerPages
from inferdoc.engine.operators import define

_pages: WeakValueDictionary[int, LayerPages] = WeakValueDictionary()
"""An operator's arguments are tensors and numbers, so the pages of its layer go by number."""


def register(pages: LayerPages) -> None:
    """Give a layer's pages the number by which a compiled model names them, for as long as they live."""
    pages.number = id(pages)
    _pages[pages.number] = pages


def paged_attention(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, layer: int) -> Tensor:
    """`LayerPages.attend` of the layer with this number."""
    out: Tensor = torch.ops.inferdoc.paged_attention(query, key, value, sinks, layer)
    return out


def _attend(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, layer: int) -> Tensor:
    return _pages[layer].attend(query, key, value, sinks).contiguous()


def _shape(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, layer: int) -> Tensor:
    return query.new_empty(query.shape[1], query.shape[0], value.shape[2])


define("paged_attention(Tensor query, Tensor key, Tensor value, Tensor? sinks, int layer) -> Tensor", _attend, _shape)

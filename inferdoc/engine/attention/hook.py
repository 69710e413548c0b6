"""The one coupling to transformers: an attention function that writes K/V into pages and reads them back.

Pages and the step's layout hang on the attention modules, since some families drop custom keyword arguments on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inferdoc.engine.attention.layer import LayerPages, LayerSpec
from inferdoc.engine.attention.operator import paged_attention
from inferdoc.models.quiet import silence

with silence():  # it imports torchao, which tells of libraries for other cards
    from transformers import AttentionInterface

NAME = "inferdoc_paged"
_ATTRIBUTE = "inferdoc_layer"


@dataclass
class Recorder:
    """Stands in for `LayerPages` while a probe run finds out what each layer's attention looks like."""

    specs: list[LayerSpec]
    modules: list[nn.Module]


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The function that transformers calls: query [1, H, T, Dk], key and value [1, Hkv, T, D], after RoPE."""
    layer = getattr(module, _ATTRIBUTE)
    sinks = kwargs.get("s_aux")
    if isinstance(layer, Recorder):
        layer.specs.append(_spec(query, key, value, kwargs))
        layer.modules.append(module)
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    if torch.compiler.is_compiling():
        return paged_attention(query[0], key[0], value[0], sinks, layer.number).unsqueeze(0), None
    return layer.attend(query[0], key[0], value[0], sinks).unsqueeze(0), None


def _spec(query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, Any]) -> LayerSpec:
    scale = kwargs.get("scaling")
    return LayerSpec(
        kv_heads=key.shape[1],
        key_dim=key.shape[3],
        value_dim=value.shape[3],
        scale=query.shape[3] ** -0.5 if scale is None else float(scale),
        window=kwargs.get("sliding_window"),
        softcap=kwargs.get("softcap"),
        has_sinks=kwargs.get("s_aux") is not None,
    )


def record_layers(model: nn.Module) -> list[tuple[nn.Module, LayerSpec]]:
    """Run two tokens through the model and list its attention calls, in order, with the module of each."""
    AttentionInterface.register(NAME, attention_forward)
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    recorder = Recorder([], [])
    for module in model.modules():
        setattr(module, _ATTRIBUTE, recorder)
    try:
        ids = torch.tensor([[0, 1]], device=next(model.parameters()).device)
        with torch.inference_mode():
            model(ids, position_ids=torch.arange(2, device=ids.device)[None], use_cache=False)
    finally:
        for module in model.modules():
            delattr(module, _ATTRIBUTE)
    return list(zip(recorder.modules, recorder.specs, strict=True))


def attach(module: nn.Module, pages: LayerPages) -> None:
    setattr(module, _ATTRIBUTE, pages)

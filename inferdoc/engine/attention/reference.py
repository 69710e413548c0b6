"""Paged attention in plain torch: runs on CPU and CUDA in any dtype, and is the oracle for faster kernels.

Rows with one query token (decodes) are gathered into one padded batch; rows with more (prompt chunks) run one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from inferdoc.engine.attention.layer import KvScales, LayerPages, LayerSpec
from inferdoc.engine.batch import Ints, StepInput
from inferdoc.engine.e4m3 import from_e4m3


class TorchLayout:
    """A step's geometry on the device, shared by all layers.

    Args:
        step: the packed input.
        device: where the K/V pages are.
    """

    def __init__(self, step: StepInput, device: torch.device) -> None:
        self.slots = torch.from_numpy(step.slots).to(device)
        counts = step.query_starts[1:] - step.query_starts[:-1]
        decodes = (counts == 1).nonzero()[0]
        self.chunks = chunks_of(step, (counts > 1).nonzero()[0], device)
        self.decode_tokens: Tensor | None = None
        if len(decodes):
            tables = torch.from_numpy(step.block_tables).to(device)
            offsets = torch.arange(step.block_size, device=device)
            lengths = torch.from_numpy(step.lengths[decodes]).to(device)
            longest = int(step.lengths[decodes].max())
            blocks = tables[torch.from_numpy(decodes).to(device), : -(-longest // step.block_size)]
            slots = (blocks[:, :, None] * step.block_size + offsets).reshape(len(decodes), -1)[:, :longest]
            age = lengths[:, None] - 1 - torch.arange(longest, device=device)
            # Places past a row's end hold anything, NaN included: read the row's first token there, and mask it.
            self.decode_slots = torch.where(age >= 0, slots, slots[:, :1])
            self.decode_age = age
            self.decode_tokens = torch.from_numpy(step.query_starts[decodes]).to(device)
            self.all_decodes = len(decodes) == len(counts)

    def store(self, key: Tensor, value: Tensor, layer: LayerPages) -> None:
        key, value = layer.stored(key, value)
        layer.keys.view(key.dtype)[self.slots] = key.transpose(0, 1)
        layer.values.view(value.dtype)[self.slots] = value.transpose(0, 1)

    def attend(self, query: Tensor, layer: LayerPages, sinks: Tensor | None) -> Tensor:
        return paged_attention(query, layer.keys, layer.values, self, layer.spec, sinks, layer.scales)


@dataclass(frozen=True)
class Chunk:
    """Queries [begin, end) of the packed row, which are the last positions of the K/V in `slots`."""

    begin: int
    end: int
    slots: Tensor


def chunks_of(step: StepInput, rows: Ints, device: torch.device) -> list[Chunk]:
    """These rows of a step, one by one."""
    tables = torch.from_numpy(step.block_tables).to(device)
    offsets = torch.arange(step.block_size, device=device)
    chunks = []
    for row in rows:
        length = int(step.lengths[row])
        blocks = tables[row, : -(-length // step.block_size)]
        slots = (blocks[:, None] * step.block_size + offsets).reshape(-1)[:length]
        chunks.append(Chunk(int(step.query_starts[row]), int(step.query_starts[row + 1]), slots))
    return chunks


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: TorchLayout,
    spec: LayerSpec,
    sinks: Tensor | None = None,
    scales: KvScales | None = None,
) -> Tensor:
    """Causal attention of packed queries over paged K/V.

    Args:
        query: [H, T, Dk].
        keys, values: [slots, Hkv, Dk], [slots, Hkv, Dv]: a layer's pages.
        sinks: [H] logits that join the softmax without a value, or None.
        scales: of pages in e4m3.

    Returns:
        [T, H, Dv].
    """
    heads, tokens, _ = query.shape
    out = query.new_empty(tokens, heads, spec.value_dim)
    if layout.decode_tokens is not None:
        at = slice(None) if layout.all_decodes else layout.decode_tokens
        # The query heads that share a KV head stand as so many queries of one head: its K/V are read once for all.
        groups = heads // spec.kv_heads
        rows = query[:, at].transpose(0, 1).reshape(-1, spec.kv_heads, groups, spec.key_dim)
        k, v = _gather(keys, values, layout.decode_slots, scales, query.dtype)
        k, v = k.transpose(1, 2), v.transpose(1, 2)  # [R, Hkv, L, D]
        visible = layout.decode_age >= 0
        if spec.window is not None:
            visible &= layout.decode_age < spec.window
        own = None if sinks is None else sinks.view(spec.kv_heads, groups)
        out[at] = _attend(rows, k, v, visible[:, None, None, :], spec, own).flatten(1, 2)
    for chunk in layout.chunks:
        out[chunk.begin : chunk.end] = attend_chunk(query, keys, values, chunk, spec, sinks, scales)
    return out


def attend_chunk(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    chunk: Chunk,
    spec: LayerSpec,
    sinks: Tensor | None,
    scales: KvScales | None = None,
) -> Tensor:
    """One chunk's part of `paged_attention`: [its tokens, H, Dv]."""
    k, v = _gather(keys, values, chunk.slots, scales, query.dtype)
    k, v = k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0)
    queries, length = chunk.end - chunk.begin, len(chunk.slots)
    mask: Tensor | None = None
    if queries < length or spec.window is not None:
        at_position = torch.arange(length - queries, length, device=query.device)[:, None]
        age = at_position - torch.arange(length, device=query.device)
        mask = age >= 0 if spec.window is None else (age >= 0) & (age < spec.window)
    rows = query[None, :, chunk.begin : chunk.end]
    own = None if sinks is None else sinks.view(-1, 1)
    return _attend(rows, k, v, mask, spec, own)[0].transpose(0, 1)


def _gather(
    keys: Tensor, values: Tensor, slots: Tensor, scales: KvScales | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """K/V [slots, Hkv, D] at [...] -> [..., Hkv, D]; e4m3 becomes `dtype`."""
    if scales is None:
        return _rows(keys, slots), _rows(values, slots)
    k, v = (_rows(pages.view(torch.uint8), slots).view(pages.dtype) for pages in (keys, values))
    return from_e4m3(k, dtype).mul_(scales.key), from_e4m3(v, dtype).mul_(scales.value)


def _rows(pages: Tensor, slots: Tensor) -> Tensor:
    """Whole rows are copied, several times faster than indexing."""
    return pages.flatten(1).index_select(0, slots.flatten()).view(*slots.shape, *pages.shape[1:])


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spec: LayerSpec, sinks: Tensor | None) -> Tensor:
    """[B, H, Q, Dk], [B, Hkv, L, Dk], [B, Hkv, L, Dv] -> [B, H, Q, Dv].

    `mask` None: causal and square. `sinks`: [H, Q] or [H, 1].
    """
    grouped = q.shape[1] != k.shape[1]
    if spec.softcap is None and sinks is None:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=spec.scale, enable_gqa=grouped
        )
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = (q @ k.transpose(-1, -2)) * spec.scale
    if spec.softcap is not None:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    if mask is None:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        sink = sinks.to(scores.dtype)[None, :, :, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights[..., : k.shape[-2]].to(v.dtype) @ v

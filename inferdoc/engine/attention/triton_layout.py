"""Paged attention by the Triton kernels: pages are read in place, nothing is gathered.

Import this module only where the Triton backend was asked for: it needs the `triton` package.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from inferdoc.engine.attention.layer import LayerPages, rows_in_place
from inferdoc.engine.attention.triton_launch import (
    E4M3_UNIT,
    STORE_TOKENS,
    Card,
    constants,
    lanes,
    query_blocks,
    segments_for,
    tile_for,
)
from inferdoc.engine.batch import StepInput
from inferdoc.errors import InputError

try:
    from triton import cdiv, knobs

    from inferdoc.engine.attention.triton_paged import attend_kernel, reduce_kernel, store_kernel
except ModuleNotFoundError as error:
    raise InputError("attention_backend 'triton' needs the package triton (Linux); 'torch' runs anywhere") from error


class TritonLayout:
    """A step's geometry on the device, shared by all layers.

    Either made for one step (`from_step`), or over persistent device buffers that a CUDA graph reads: then only the
    *contents* of the four tensors change from step to step, never their shapes, `block_size` or `max_query_len`.

    A row that pads a bucket has slot -1, so it writes no page, and length 1 with a table that points to a scrap block,
    as `graphs.DecodeInputs` has it: it reads scrap, whatever that holds, and its output means nothing. Length 0 would
    do too: it reads no page, and its output is zero. Either leaves the other rows as they are. It owns its query tokens
    like any other row (`query_starts` goes on counting); output at tokens that no row owns is undefined.

    Args:
        slots: [T] integers, where each token's K/V go; -1 is not written.
        query_starts: [R + 1] integers; row r has the tokens [query_starts[r], query_starts[r + 1]), possibly none.
        lengths: [R] integers, K/V tokens of each row after this step, its own query tokens included.
        block_tables: [R, W] integers; entries past a row's length are never read.
        block_size: tokens a block, a power of two.
        max_query_len: no row has more query tokens than this, now or at any replay. It decides the launch, so for a
            graph it is the bucket's constant (1 for decodes, k + 1 for a speculative verify).
        segments: parts into which each row's K/V are split, a power of two; 0 takes the 2D path; None: `segments_for`.

    Raises:
        InputError: the tensors are not on a card (and the kernels are not interpreted).
    """

    def __init__(
        self,
        slots: Tensor,
        query_starts: Tensor,
        lengths: Tensor,
        block_tables: Tensor,
        *,
        block_size: int,
        max_query_len: int,
        segments: int | None = None,
    ) -> None:
        refuse_device(slots.device)
        self.slots = slots
        self.query_starts = query_starts
        self.lengths = lengths
        self.block_tables = block_tables
        self.block_size = block_size
        self.max_query_len = max_query_len
        self.segments = segments

    @classmethod
    def from_step(cls, step: StepInput, device: torch.device, *, segments: int | None = None) -> TritonLayout:
        counts = step.query_starts[1:] - step.query_starts[:-1]
        return cls(
            torch.from_numpy(step.slots).to(device),
            torch.from_numpy(step.query_starts).to(device),
            torch.from_numpy(step.lengths).to(device),
            torch.from_numpy(step.block_tables).to(device),
            block_size=step.block_size,
            max_query_len=int(counts.max()),
            segments=segments,
        )

    def store(self, key: Tensor, value: Tensor, layer: LayerPages) -> None:
        spec = layer.spec
        key, value = rows_in_place(key), rows_in_place(value)
        tokens = len(self.slots)
        keys, values = _pages(layer)
        store_kernel[cdiv(tokens, STORE_TOKENS), spec.kv_heads](
            key,
            value,
            keys,
            values,
            self.slots,
            tokens,
            *key.stride()[:2],
            *value.stride()[:2],
            *keys.stride()[:2],
            *values.stride()[:2],
            1 / layer.scales.key if layer.scales else 1.0,
            1 / layer.scales.value if layer.scales else 1.0,
            KEY_DIM=spec.key_dim,
            VALUE_DIM=spec.value_dim,
            KEY_LANES=lanes(spec.key_dim),
            VALUE_LANES=lanes(spec.value_dim),
            TOKENS=STORE_TOKENS,
            E4M3=layer.scales is not None,
        )

    def attend(self, query: Tensor, layer: LayerPages, sinks: Tensor | None) -> Tensor:
        spec = layer.spec
        query = rows_in_place(query)
        heads, tokens, _ = query.shape
        groups = heads // spec.kv_heads
        rows, width = self.block_tables.shape
        card = _card(query.device)
        tile = tile_for(groups, self.max_query_len, spec, query.dtype.itemsize, card.capability)
        blocks = query_blocks(tokens, rows, groups, tile, self.max_query_len)
        segments = self.segments
        if segments is None:
            segments = segments_for(
                tile,
                programs=blocks * spec.kv_heads,
                longest=width * self.block_size,
                tokens=tokens,
                heads=heads,
                value_dim=spec.value_dim,
                processors=card.processors,
            )
        out = query.new_empty(tokens, heads, spec.value_dim)
        partial = maxima = sums = out
        if segments:
            partial = query.new_empty(tokens, heads, segments, spec.value_dim, dtype=torch.float32)
            maxima, sums = query.new_empty(2, tokens, heads, segments, dtype=torch.float32)
        keys, values = _pages(layer)
        attend_kernel[blocks, spec.kv_heads, max(1, segments)](
            query,
            keys,
            values,
            out if sinks is None else sinks,
            partial,
            maxima,
            sums,
            self.block_tables,
            self.query_starts,
            self.lengths,
            rows,
            self.block_tables.stride(0),
            spec.scale * (layer.scales.key * E4M3_UNIT if layer.scales else 1.0),
            layer.scales.value * E4M3_UNIT if layer.scales else 1.0,
            spec.softcap or 0.0,
            spec.window or 0,
            *query.stride()[:2],
            *keys.stride()[:2],
            *values.stride()[:2],
            **constants(spec, groups, tile, self.block_size, self.max_query_len),
            E4M3=layer.scales is not None,
            SPLIT=segments > 0,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        if segments:
            reduce_kernel[tokens, heads](
                partial,
                maxima,
                sums,
                out if sinks is None else sinks,
                out,
                VALUE_DIM=spec.value_dim,
                VALUE_LANES=lanes(spec.value_dim),
                SEGMENTS=segments,
                SINKS=spec.has_sinks,
            )
        return out


def _pages(layer: LayerPages) -> tuple[Tensor, Tensor]:
    """E4m3 as bytes: Triton has that type on cards of capability 8.9 and more alone."""
    if layer.scales is None:
        return layer.keys, layer.values
    return layer.keys.view(torch.uint8), layer.values.view(torch.uint8)


def refuse_device(device: torch.device) -> None:
    """Raises InputError where the kernels cannot run: without a card, unless Triton interprets them."""
    if device.type != "cuda" and not knobs.runtime.interpret:
        raise InputError(
            f"attention_backend 'triton' needs a CUDA device and the model is on {device.type}; use 'torch'"
        )


@functools.cache
def _card(device: torch.device) -> Card:
    if device.type != "cuda":
        return Card(processors=1, capability=0)  # the interpreter runs one program at a time
    properties = torch.cuda.get_device_properties(device)
    return Card(properties.multi_processor_count, properties.major * 10 + properties.minor)

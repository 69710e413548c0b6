"""How the attention kernels are launched: tile sizes, segments and constants. Plain Python.

Everything here depends on the model, the bucket and the card, never on sequence lengths: what a CUDA graph has captured
stays right at every replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inferdoc.engine.attention.layer import LayerSpec
from inferdoc.errors import ModelError

LARGEST_HEAD_DIM = 256
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
STORE_TOKENS = 16
E4M3_UNIT = 256.0
"""The kernels read e4m3 as 1/256 of what it is, and the scales make up for it."""
MOST_SEGMENTS = 64
_LEAST_TILES_A_SEGMENT = 4
_PARTIAL_BYTES = 64 << 20


def refuse_unsupported(spec: LayerSpec, dtype: torch.dtype) -> None:
    """Raises ModelError where the kernels cannot run a layer, saying what can."""
    if max(spec.key_dim, spec.value_dim) > LARGEST_HEAD_DIM:
        raise ModelError(
            f"head dim {max(spec.key_dim, spec.value_dim)} is too large for the Triton attention (at most "
            f"{LARGEST_HEAD_DIM}); attention_backend 'torch' runs any"
        )
    if dtype not in DTYPES:
        raise ModelError(
            f"the Triton attention runs float16, bfloat16 and float32, not {str(dtype).removeprefix('torch.')}; "
            "attention_backend 'torch' runs any"
        )


@dataclass(frozen=True)
class Card:
    processors: int
    """Streaming multiprocessors."""
    capability: int
    """Compute capability: 80, 90, 100, ..."""


@dataclass(frozen=True)
class Tile:
    """What one program works on at a time."""

    m: int
    """Query tokens x query heads of a KV head."""
    n: int
    """K/V positions."""
    warps: int
    stages: int
    """Depth of the software pipeline. A tile's block ids, its K/V and its products are a stage or more apart: with 5,
    two tiles of K/V are on their way at once, with 3, one."""


def tile_for(groups: int, max_query_len: int, spec: LayerSpec, itemsize: int, capability: int) -> Tile:
    """Three sizes of m, since each is a kernel to compile: decode, verify and short chunks, long chunks.

    Chosen by compiling (`benchmarks/kernels.py`): bfloat16 spills no registers up to head dim 128, and what is compiled
    for capability 8.x fits the 99 KiB of shared memory that the smallest cards have. Not yet timed on a card.
    """
    least, wanted = max(16, power_of_two(groups)), power_of_two(groups * max_query_len)
    if itemsize == 4:
        small = least == 16 and max(spec.key_dim, spec.value_dim) <= 128
        return Tile(m=least, n=32 if small else 16, warps=4 if least == 16 else 8, stages=3)
    if max(spec.key_dim, spec.value_dim) > 128:
        if max(least, wanted) == 16:
            return Tile(m=16, n=32, warps=4, stages=5)
        return Tile(m=max(least, 64), n=32 if least <= 64 else 16, warps=8, stages=3)
    if max(least, wanted) == 16:
        return Tile(m=16, n=64, warps=4, stages=5)
    if max(least, wanted) <= 64:
        return Tile(m=64, n=32, warps=4, stages=5)
    return Tile(m=max(least, 128), n=64 if capability // 10 in (9, 10) else 32, warps=8, stages=5)


def constants(spec: LayerSpec, groups: int, tile: Tile, block_size: int, max_query_len: int) -> dict[str, int | bool]:
    """The compile-time constants of `attend_kernel`, all but E4M3 and SPLIT."""
    return {
        "GROUP": groups,
        "KEY_DIM": spec.key_dim,
        "VALUE_DIM": spec.value_dim,
        "KEY_LANES": lanes(spec.key_dim),
        "VALUE_LANES": lanes(spec.value_dim),
        "BLOCK_SIZE": block_size,
        "BLOCK_M": tile.m,
        "BLOCK_N": tile.n,
        "ONE_BLOCK": max_query_len <= tile.m // groups,
        "WINDOWED": spec.window is not None,
        "CAPPED": spec.softcap is not None,
        "SINKS": spec.has_sinks,
    }


def query_blocks(tokens: int, rows: int, groups: int, tile: Tile, max_query_len: int) -> int:
    """The grid's first dimension: enough for any way in which the tokens may belong to the rows."""
    block_q = tile.m // groups
    return rows if max_query_len <= block_q else tokens // block_q + rows


def segments_for(
    tile: Tile, *, programs: int, longest: int, tokens: int, heads: int, value_dim: int, processors: int
) -> int:
    """Into how many parts to split each row's K/V: a power of two, or 0 for the 2D path.

    Split where the launch would leave multiprocessors idle, until each has one program of 8 warps or four of 4. But the
    longest row that the block tables can hold keeps 4 tiles a part, and the parts' float32 sums stay below 64 MiB. Not
    yet tuned on a card.

    Args:
        programs: query blocks x KV heads.
        longest: K/V positions that a row of the block tables can hold.
    """
    wanted = processors * (1 if tile.warps == 8 else 4) // programs
    most = min(
        MOST_SEGMENTS,
        wanted,
        longest // (tile.n * _LEAST_TILES_A_SEGMENT),
        _PARTIAL_BYTES // (tokens * heads * value_dim * 4),
    )
    return 1 << most.bit_length() - 1 if most > 1 else 0


def lanes(head_dim: int) -> int:
    """Width of a tile that holds `head_dim`; the rest is masked."""
    return max(16, power_of_two(head_dim))


def power_of_two(number: int) -> int:
    """The smallest that is not below `number`."""
    return 1 << (number - 1).bit_length()

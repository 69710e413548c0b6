"""Bytes from shapes: what a sequence keeps in the KV cache. The only place where that sum is made."""

from __future__ import annotations

import math
from collections.abc import Iterable

from inferdoc.errors import ModelError
from inferdoc.models.layers import LayerSpec

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
"""Bytes of one element, by type name."""


def element_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`.

    Raises:
        ModelError: a type that is not in `DTYPE_BYTES`.
    """
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"unknown type {dtype!r}; known are {', '.join(sorted(DTYPE_BYTES))}")
    return DTYPE_BYTES[dtype]


def kv_bytes(
    layers: Iterable[LayerSpec],
    tokens: int,
    *,
    dtype: str,
    state_dtype: str | None = None,
    tensor_parallel: int = 1,
    uncompressed: bool = False,
) -> int:
    """Bytes that one rank keeps for one sequence of `tokens` tokens.

    Ordinary layers keep ``kv heads × (key size + value size) × tokens``; sliding layers at most their window; MLA one
    latent a token, without a factor 2; state layers a fixed amount. Splitting over `tensor_parallel` ranks divides key
    and value heads, at least one stays on each rank (fewer heads than ranks are copied); a latent is held whole by
    every rank. A narrower cache type does not shrink state, which stays in 16 bits or in `state_dtype`.

    Args:
        dtype: type of the cache.
        state_dtype: type of recurrent matrices where the model fixes one.
        uncompressed: MLA layers as keys and values of every head, as an engine without latent caching stores them.
    """
    if tokens < 0 or tensor_parallel < 1:
        raise ModelError(f"{tokens} tokens on {tensor_parallel} ranks cannot be sized")
    size = element_bytes(dtype)
    recurrent_size = element_bytes(state_dtype) if state_dtype else max(size, 2)
    total = 0
    for layer in layers:
        kept = tokens if layer.window is None else min(tokens, layer.window)
        if layer.latent_dim and not uncompressed:
            total += layer.latent_dim * kept * size
        else:
            heads = math.ceil(layer.kv_heads / tensor_parallel)
            total += heads * (layer.head_dim_k + layer.head_dim_v) * kept * size
        total += math.ceil(layer.conv_elements / tensor_parallel) * max(size, 2)
        total += math.ceil(layer.recurrent_elements / tensor_parallel) * recurrent_size
    return total

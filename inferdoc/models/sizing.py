"""Bytes from shapes: what a sequence keeps in the KV cache, and what a step computes with. The only such sums."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

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
_INDEX_BLOCK = 128
"""Elements of an index key that share a scale."""


def element_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`.

    Raises:
        ModelError: a type that is not in `DTYPE_BYTES`.
    """
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"unknown type {dtype!r}; known are {', '.join(sorted(DTYPE_BYTES))}")
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class KvBytes:
    """What one sequence keeps on one rank, in bytes, by how it depends on the sequence's length.

    growing: of the layers that keep every token. windowed: of those that keep at most a window. fixed: state.
    index: keys of the indexers of sparse attention, which grow with every token too.
    """

    growing: int
    windowed: int
    fixed: int
    index: int = 0

    @property
    def total(self) -> int:
        return self.growing + self.windowed + self.fixed + self.index


@dataclass(frozen=True)
class StepWidth:
    """Elements a token that a layer holds at its peak. whole: on every rank. split: divided over the ranks."""

    whole: int
    split: int


def kv_parts(
    layers: Iterable[LayerSpec],
    tokens: int,
    *,
    dtype: str,
    state_dtype: str | None = None,
    tensor_parallel: int = 1,
    uncompressed: bool = False,
) -> KvBytes:
    """Bytes that one rank keeps for one sequence of `tokens` tokens.

    Ordinary layers keep ``kv heads × (key size + value size) × tokens``; sliding layers at most their window; MLA one
    latent a token, without a factor 2; state layers a fixed amount. Splitting over `tensor_parallel` ranks divides key
    and value heads, at least one stays on each rank (fewer heads than ranks are copied); a latent is held whole by
    every rank. A narrower cache type does not shrink state, which stays in 16 bits or in `state_dtype`.

    The indexer of sparse attention keeps one key a layer and token for all its heads, whole on every rank, whatever the
    cache type: as vLLM lays it out (`DeepseekV32IndexerCache`: rows of ``head_dim + head_dim // 128 * 4`` bytes), FP8
    with a float32 scale for 128 elements, 132 bytes for a key of 128. Other engines may keep it in 16 bits.

    Args:
        dtype: type of the cache.
        state_dtype: type of recurrent matrices where the model fixes one.
        uncompressed: MLA layers as keys and values of every head, as an engine without latent caching stores them.
    """
    if tokens < 0 or tensor_parallel < 1:
        raise ModelError(f"{tokens} tokens on {tensor_parallel} ranks cannot be sized")
    size = element_bytes(dtype)
    recurrent_size = element_bytes(state_dtype) if state_dtype else max(size, 2)
    growing = windowed = fixed = index = 0
    for layer in layers:
        if layer.latent_dim and not uncompressed:
            a_token = layer.latent_dim * size
        else:
            heads = math.ceil(layer.kv_heads / tensor_parallel)
            a_token = heads * (layer.head_dim_k + layer.head_dim_v) * size
        if layer.window is None:
            growing += a_token * tokens
        else:
            windowed += a_token * min(tokens, layer.window)
        index += (layer.index_dim + 4 * math.ceil(layer.index_dim / _INDEX_BLOCK)) * tokens
        fixed += math.ceil(layer.conv_elements / tensor_parallel) * max(size, 2)
        fixed += math.ceil(layer.recurrent_elements / tensor_parallel) * recurrent_size
    return KvBytes(growing, windowed, fixed, index)


def activation_bytes(
    width: StepWidth, *, hidden_size: int, vocab_size: int, tokens: int, sequences: int, tensor_parallel: int = 1
) -> int:
    """Most bytes that a step of `tokens` tokens holds beside weights and cache, with 16-bit activations: a model.

    The larger of two moments: a layer's MLP, ``tokens × width × 2 B``, and sampling, ``sequences × vocabulary`` as
    16-bit logits, a float32 copy and float32 probabilities. It gives 2.99 GiB for Llama 3.1 8B and 29,041 tokens, what
    the log of vllm-project/vllm#10517 has (17.98 GiB at the peak, 14.9888 of them weights).
    """
    layer = (tokens * width.whole + math.ceil(tokens * width.split / tensor_parallel)) * 2
    sampling = min(tokens, sequences) * (vocab_size * (2 + 4 + 4) + hidden_size * 2)
    return max(layer, sampling)

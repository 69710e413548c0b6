"""Start a Llama with the attention pattern that copies, since a few million tokens are too few for it to form.

To go on with a text that has occurred before, a model needs two heads in a row (an *induction* circuit, Olsson et al.
2022, "In-context learning and induction heads"): one that looks at the token before, and in the next layer one that
looks for the place whose token before equals the current token, and repeats what stands there. Both are written into
the otherwise random weights of layers 0 and 1, one of each for every key-value head; training does the rest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

EMBEDDING_SCALE = 0.1
CONSTANT = 8.0
"""Coordinate 0 of every embedding is this many times the scale of the others: attention has no bias to do it with."""
PREVIOUS_LOGIT = 30.0
MATCH_LOGIT = 25.0
COPY_GAIN = 2.0


@torch.no_grad()
def start_copying(model: LlamaForCausalLM, seed: int) -> None:
    """Write both heads into `model`, in place. Needs two layers or more, and tied embeddings."""
    config = model.config
    size, width = config.hidden_size, config.head_dim
    queries = config.num_attention_heads // config.num_key_value_heads
    generator = torch.Generator().manual_seed(seed)
    half = width // 2
    turns = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)  # radians a position, for each pair
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0, EMBEDDING_SCALE, generator=generator)
    embedding[:, 0] = CONSTANT * EMBEDDING_SCALE
    norm = math.sqrt((size - 1 + CONSTANT**2) / size)
    residual = EMBEDDING_SCALE * math.sqrt(size / width)
    first, second = (model.model.layers[layer].self_attn for layer in (0, 1))

    # Pairs that turn fast tell the neighbour from the rest; pairs that hardly turn compare contents at any distance.
    fast = torch.nonzero(turns > 0.15).flatten()
    slow = torch.nonzero(turns < 0.004).flatten()
    key, query = torch.zeros(width), torch.zeros(width)
    key[fast] = 1.0
    query[fast], query[fast + half] = turns[fast].cos(), -turns[fast].sin()
    previous = math.sqrt(PREVIOUS_LOGIT * math.sqrt(width) / len(fast)) * norm / CONSTANT
    compared = torch.cat([slow, slow + half])
    match = math.sqrt(MATCH_LOGIT * math.sqrt(width) / len(compared)) * norm

    for head in range(config.num_key_value_heads):
        kv = slice(head * width, (head + 1) * width)
        q = slice(head * queries * width, (head * queries + 1) * width)
        read, stored, copied = (_projection(width, size, generator) for _ in range(3))
        first.k_proj.weight[kv] *= 0.1
        first.q_proj.weight[q] *= 0.1
        first.k_proj.weight[kv, 0] = previous * key
        first.q_proj.weight[q, 0] = previous * query
        first.v_proj.weight[kv] = read
        first.o_proj.weight[:, q] = residual * stored.T
        second.q_proj.weight[q], second.k_proj.weight[kv] = 0.0, 0.0
        second.q_proj.weight[q][compared] = match * read[: len(compared)]
        second.k_proj.weight[kv][compared] = match * stored[: len(compared)]
        second.v_proj.weight[kv] = copied
        second.o_proj.weight[:, q] = COPY_GAIN * residual * copied.T


def _projection(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """A random [rows, columns] matrix with orthonormal rows that do not see coordinate 0."""
    basis, _ = torch.linalg.qr(torch.randn(columns - 1, rows, generator=generator))
    return torch.cat([torch.zeros(rows, 1), basis.T], dim=1)

"""Draws the next tokens from logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inferdoc.engine.sampling import SamplingParams
from inferdoc.engine.scheduler import Row

_GREEDY = SamplingParams()


def is_greedy(rows: Sequence[Row]) -> bool:
    return all(row.request.sampling is None or not row.request.sampling.temperature for row in rows)


def sample(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """One token for each row.

    Args:
        logits: [S, vocabulary].
        rows: the S rows that sample.

    Returns:
        [S] token ids, on the device of the logits; nothing waits for the device.
    """
    if is_greedy(rows):
        return logits.argmax(dim=-1)
    settings = torch.tensor([_settings(row, logits.shape[1]) for row in rows], dtype=torch.float64)
    if logits.is_cuda:
        settings = settings.pin_memory()
    uniform, temperature, top_k, top_p = settings.to(logits.device, non_blocking=True).unsqueeze(-1).unbind(1)
    drawn = draw(logits, uniform, temperature, top_k, top_p)
    return torch.where(temperature[:, 0] > 0, drawn, logits.argmax(dim=-1))


def draw(logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Invert each row's cumulative distribution, most likely token first, at its uniform number.

    A row's token depends on nothing but its own logits and settings, since all rows take the same way.

    Args:
        logits: [S, vocabulary].
        uniform, temperature, top_k, top_p: [S, 1] float64; a temperature of 0 is computed as 1.

    Returns:
        [S] token ids. A token with a logit of -inf is never drawn.
    """
    scaled = logits.double() / torch.where(temperature > 0, temperature, 1.0)
    scaled, tokens = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[1], device=logits.device)
    probability = scaled.masked_fill(rank >= top_k, float("-inf")).softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability
    probability = torch.where((before < top_p) | (rank == 0), probability, 0.0)
    cumulative = probability.cumsum(dim=-1)
    # Rounding may leave the threshold at the very end; the last token that can be drawn takes it.
    last = (probability > 0).sum(dim=-1, keepdim=True) - 1
    chosen = (cumulative <= uniform * cumulative[:, -1:]).sum(dim=-1, keepdim=True).minimum(last)
    return tokens.gather(1, chosen)[:, 0]


def _settings(row: Row, vocabulary: int) -> tuple[float, float, float, float]:
    params = row.request.sampling or _GREEDY
    top_k = vocabulary if params.top_k is None else params.top_k
    return params.uniform(row.request.id, row.end), params.temperature, top_k, params.top_p

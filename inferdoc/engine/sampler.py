"""Draws the next tokens from logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inferdoc.engine.request import Request
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
    return sample_at(logits, [(row.request, row.end) for row in rows])


def sample_at(logits: Tensor, places: Sequence[tuple[Request, int]]) -> Tensor:
    """One token for each place: a request and a position in its sequence. [S]"""
    uniform, temperature, top_k, top_p = settings_at(places, logits)
    drawn = draw(logits, uniform, temperature, top_k, top_p)
    return torch.where(temperature[:, 0] > 0, drawn, logits.argmax(dim=-1))


def settings_at(places: Sequence[tuple[Request, int]], logits: Tensor, stream: int = 0) -> tuple[Tensor, ...]:
    """What draws the token of each place from its logits: uniform number, temperature, top-k, top-p; each [S, 1]."""
    settings = torch.tensor([_settings(*place, logits.shape[1], stream) for place in places], dtype=torch.float64)
    if logits.is_cuda:
        settings = settings.pin_memory()
    return settings.to(logits.device, non_blocking=True).unsqueeze(-1).unbind(1)


def draw(logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Invert each row's cumulative distribution, most likely token first, at its uniform number.

    A row's token depends on nothing but its own logits and settings, since all rows take the same way.

    Args:
        logits: [S, vocabulary].
        uniform, temperature, top_k, top_p: [S, 1] float64; a temperature of 0 is computed as 1.

    Returns:
        [S] token ids. A token with a logit of -inf is never drawn.
    """
    return invert(*_ranked(logits, temperature, top_k, top_p), uniform)


def probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """What `draw` draws from: [S, vocabulary] float64, in the order of the vocabulary."""
    kept, tokens = _ranked(logits, temperature, top_k, top_p)
    return torch.empty_like(kept).scatter_(1, tokens, kept / kept.sum(dim=-1, keepdim=True))


def invert(probability: Tensor, tokens: Tensor, uniform: Tensor) -> Tensor:
    """The token at which each row's cumulative sum passes the uniform number's share of the whole.

    Args:
        probability: [S, vocabulary] of any sum, those above zero first.
        tokens: [S, vocabulary] that they belong to.
        uniform: [S, 1]

    Returns:
        [S]
    """
    cumulative = probability.cumsum(dim=-1)
    # Rounding may leave the threshold at the very end; the last token that can be drawn takes it.
    last = ((probability > 0).sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    chosen = (cumulative <= uniform * cumulative[:, -1:]).sum(dim=-1, keepdim=True).minimum(last)
    return tokens.gather(1, chosen)[:, 0]


def _ranked(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities that temperature, top-k and top-p leave, the highest first, not yet normalized; their tokens."""
    scaled = logits.double() / torch.where(temperature > 0, temperature, 1.0)
    scaled, tokens = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[1], device=logits.device)
    probability = scaled.masked_fill(rank >= top_k, float("-inf")).softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability
    return torch.where((before < top_p) | (rank == 0), probability, 0.0), tokens


def _settings(request: Request, position: int, vocabulary: int, stream: int) -> tuple[float, float, float, float]:
    params = request.sampling or _GREEDY
    top_k = vocabulary if params.top_k is None else params.top_k
    return params.uniform(request.id, position, stream), params.temperature, top_k, params.top_p

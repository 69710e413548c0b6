"""Which drafted tokens stand. The outputs are those of plain decoding: equal with greedy, alike in distribution else.

    draft          x1 x2 x3
    logits      after last, after x1, after x2, after x3

Greedy: a drafted token stands while it is the argmax. Drafts without probabilities (q = 1 at the drafted token): while
it is the token that plain decoding draws at this position, with the same number. That accepts with probability p(x) and
replaces with p without x, which is the rule below, and gives plain decoding's very tokens.

Drafts drawn from probabilities q (Leviathan et al., arXiv 2211.17192, algorithm 1): x stands with probability
min(1, p(x) / q(x)); the first that does not is replaced by a draw from max(p - q, 0), normalized. After a draft that
stands in full comes a draw from p. Temperature, top-k and top-p are applied to p and q before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from inferdoc.engine.request import Request
from inferdoc.engine.sampler import invert, is_greedy, probabilities, sample_at, settings_at
from inferdoc.engine.sampling import ACCEPT
from inferdoc.engine.scheduler import Row


def verify(logits: Tensor, rows: Sequence[Row]) -> list[list[int]]:
    """The tokens that each row emits: the drafted ones that stand, and one more.

    Args:
        logits: [S, vocabulary] after the last token of each row and after each drafted one, row by row.
        rows: the rows that sample.
    """
    places = [place for row in rows for place in _places(row)]
    ruled = [
        index
        for index, (row, offset) in enumerate((row, offset) for row in rows for offset in range(1 + row.drafted))
        if row.draft is not None and row.draft.probabilities is not None and offset < row.drafted
    ]
    chosen = logits.argmax(dim=-1) if is_greedy(rows) else sample_at(logits, places)
    stands = torch.zeros(len(places), dtype=torch.bool, device=logits.device)
    replaced = chosen.clone()
    if ruled:
        at = torch.tensor(ruled, device=logits.device)
        stands[at], replaced[at] = _judge(logits[at], [places[index] for index in ruled], rows)
    own, allowed, instead = torch.stack([chosen, stands.long(), replaced]).tolist()
    emitted = []
    begin = 0
    for row in rows:
        end = begin + 1 + row.drafted
        emitted.append(_emit(row, own[begin:end], allowed[begin:end], instead[begin:end]))
        begin = end
    return emitted


def accept_or_replace(p: Tensor, q: Tensor, drafted: Tensor, coins: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Judge drafted tokens one by one, as if those before them stood.

    Args:
        p, q: [D, vocabulary] float64 of the target and of the drafter, each row a distribution.
        drafted: [D] drawn from q.
        coins, uniform: [D, 1] in [0, 1): decide whether each stands, and what replaces it.

    Returns:
        [D] whether it stands; [D] the token in its place if not.
    """
    at = drafted[:, None]
    stands = (coins * q.gather(1, at) < p.gather(1, at))[:, 0]
    rest, tokens = (p - q).clamp(min=0).sort(dim=-1, descending=True, stable=True)
    return stands, invert(rest, tokens, uniform)


def _judge(logits: Tensor, places: list[tuple[Request, int]], rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """`accept_or_replace` for all drafted tokens that have probabilities."""
    width = logits.shape[1]
    uniform, temperature, top_k, top_p = settings_at(places, logits)
    coins = settings_at(places, logits, stream=ACCEPT)[0]
    drafts = [row.draft for row in rows if row.draft is not None]
    known = [(draft.tokens, draft.probabilities) for draft in drafts if draft.probabilities is not None]
    q = torch.cat([each for _, each in known]).to(logits.device)
    q = functional.pad(q, (0, width - q.shape[1]))  # a draft's logits may be fewer, never more
    drafted = torch.tensor([token for tokens, _ in known for token in tokens], device=logits.device)
    return accept_or_replace(probabilities(logits, temperature, top_k, top_p), q, drafted, coins, uniform)


def _places(row: Row) -> Iterator[tuple[Request, int]]:
    """The positions of the tokens that the row's logits are for."""
    return ((row.request, position) for position in range(row.end - row.drafted, row.end + 1))


def _emit(row: Row, own: list[int], stands: list[int], instead: list[int]) -> list[int]:
    draft = row.draft
    if draft is None:
        return own
    tokens = draft.tokens
    if draft.accepted is not None:
        return [*tokens[: draft.accepted], own[draft.accepted]]
    if draft.probabilities is None:
        accepted = next((i for i, token in enumerate(tokens) if token != own[i]), len(tokens))
        return own[: accepted + 1]
    accepted = next((i for i in range(len(tokens)) if not stands[i]), len(tokens))
    return [*tokens[:accepted], instead[accepted]]

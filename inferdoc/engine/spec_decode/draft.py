"""A smaller model that drafts: a runner with K/V of its own, in blocks of the target's size.

Each request of the target has a shadow here, with its own block table (and prefix cache, where the target has one):

    tokens of the request    0 ............................ n
    shadow after a step      | agreed on      | drafted     |
    after the check          | agreed on         | what was rejected is cut off, what stands stays computed

The last drafted token is never computed while drafting; where all of a draft stood, it is computed in the next round,
together with the target's own token. Where the pool here has no room for a request, nothing is drafted for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.kv_manager import KVManager
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.sampler import invert, probabilities, settings_at
from inferdoc.engine.sampling import DRAFT
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.engine.spec_decode.proposal import Draft, wanted
from inferdoc.errors import InputError


@dataclass
class _Shadow:
    """A request of the target as the draft model has it."""

    request: Request
    agreed: int
    """Its first tokens that are the target's."""
    chosen: list[int] = field(default_factory=list)
    drawn_from: list[Tensor] = field(default_factory=list)
    """Of this round; probabilities only where the request is sampled."""


class DraftModel:
    """Drafts token by token, all requests in one batch.

    Args:
        runner: the draft model; it is set up for runs under `config`, in its own weights.
        config: the target's.
        vocabulary: logits of the target; other tokens are never proposed.

    Raises:
        InputError: the pool cannot hold one sequence.
    """

    def __init__(self, runner: ModelRunner, config: EngineConfig, *, vocabulary: int) -> None:
        speculative = config.speculative_config
        assert speculative is not None
        if runner.kv_tokens < config.max_model_len:
            raise InputError(
                f"the draft model's pool has {runner.kv_tokens} tokens of KV; it must hold one sequence of "
                f"max_model_len {config.max_model_len}"
            )
        self._most = speculative.num_speculative_tokens
        self._vocabulary = vocabulary
        self.config = replace(
            config,
            speculative_config=None,
            reservation="paged",
            num_kv_blocks=runner.kv_tokens // config.block_size,
            weights="native",
            kv_cache_dtype="auto",
        )
        self.runner = runner
        runner.configure(self.config)
        self.kv = KVManager(self.config)
        self._shadows: dict[Request, _Shadow] = {}

    def follow(self, batch: Batch) -> None:
        """Compute the same prompts here, as far as the step goes."""
        rows = []
        for row, end in zip(batch.rows, batch.ends, strict=True):
            if row.request.steady is None and (shadow := self._shadow(row.request)):
                self._agree(row.request, shadow)  # it may be back from a preemption in the middle of a draft
                tokens = end - shadow.request.num_computed
                if tokens > 0 and self.kv.grow(shadow.request, tokens):
                    rows.append(Row(shadow.request, tokens, samples=False))
        if rows:
            self.runner.execute(Batch(rows, self.config.block_size))
            for row in rows:
                row.request.num_computed += row.num_tokens
                self.kv.publish(row.request)

    def propose(self, running: Sequence[Request]) -> None:
        self._let_go(running)
        round_of: list[tuple[Request, _Shadow, int]] = []
        for request in running:
            if (most := wanted(request, self._most)) and (shadow := self._shadow(request)):
                self._agree(request, shadow)
                if self.kv.grow(shadow.request, shadow.request.to_compute + most - 1):
                    round_of.append((request, shadow, most))
                else:
                    self.kv.trim(shadow.request, len(shadow.request.tokens))
        for place in range(self._most):
            self._draft_one([shadow for _, shadow, most in round_of if most > place])
        for request, shadow, _ in round_of:
            drawn = torch.stack(shadow.drawn_from) if shadow.drawn_from else None
            request.draft = Draft(shadow.chosen, drawn)

    @torch.inference_mode()
    def _draft_one(self, shadows: Sequence[_Shadow]) -> None:
        """The next token of each."""
        if not shadows:
            return
        requests = [shadow.request for shadow in shadows]
        rows = [Row(request, request.to_compute, samples=True) for request in requests]
        logits = self.runner.logits(Batch(rows, self.config.block_size))[:, : self._vocabulary]
        chosen = logits.argmax(dim=-1)
        sampled = [i for i, request in enumerate(requests) if request.sampling and request.sampling.temperature]
        if sampled:
            at = torch.tensor(sampled, device=logits.device)
            drawn, q = self._draw(logits[at], [(requests[i], len(requests[i].tokens)) for i in sampled])
            chosen[at] = drawn
            for i, each in zip(sampled, q, strict=True):
                shadows[i].drawn_from.append(each)
        for shadow, row, token in zip(shadows, rows, chosen.tolist(), strict=True):
            shadow.request.num_computed += row.num_tokens
            shadow.request.tokens.append(token)
            shadow.chosen.append(token)

    @staticmethod
    def _draw(logits: Tensor, places: list[tuple[Request, int]]) -> tuple[Tensor, Tensor]:
        """Tokens [S], and what they were drawn from: [S, vocabulary]."""
        uniform, temperature, top_k, top_p = settings_at(places, logits, stream=DRAFT)
        q = probabilities(logits, temperature, top_k, top_p)
        ranked, tokens = q.sort(dim=-1, descending=True, stable=True)
        return invert(ranked, tokens, uniform), q

    def _shadow(self, request: Request) -> _Shadow | None:
        """The request's shadow; a new one where there is none, or ``None`` where the pool has no room for it."""
        shadow = self._shadows.get(request)
        if shadow is None:
            copy = Request(request.id, array("i", request.tokens), self._most, sampling=request.sampling)
            if not self.kv.admit(copy):
                return None
            shadow = self._shadows[request] = _Shadow(copy, agreed=len(copy.tokens))
        return shadow

    def _agree(self, request: Request, shadow: _Shadow) -> None:
        """Take over the target's tokens. K/V of drafted tokens that stand are kept; only such are published."""
        own, theirs = shadow.request.tokens, request.tokens
        agreed = shadow.agreed
        while agreed < min(len(own), len(theirs)) and own[agreed] == theirs[agreed]:
            agreed += 1
        del own[agreed:]
        own.extend(theirs[agreed:])
        shadow.agreed = len(own)
        # A draft that was cut short before the check may hold the target's tokens to the last, whose logits are needed.
        shadow.request.num_computed = min(shadow.request.num_computed, agreed, len(own) - 1)
        shadow.chosen, shadow.drawn_from = [], []
        self.kv.publish(shadow.request)
        self.kv.trim(shadow.request, len(own))

    def _let_go(self, running: Sequence[Request]) -> None:
        """Free what finished, aborted and preempted requests hold here."""
        if len(self._shadows) == len(running) and all(request in self._shadows for request in running):
            return
        kept = set(running)
        for request in [request for request in self._shadows if request not in kept]:
            self.kv.free(self._shadows.pop(request).request)

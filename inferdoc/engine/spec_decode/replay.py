"""What speculation would have done on outputs that are known: no model runs, and every draft length is worked out.

A drafter sees the tokens before a place. While its tokens are accepted those are the recorded ones, and after the first
one that is not, the rest of the draft counts for nothing. So what it proposes at each place given the record is all
that matters, and one pass over the record gives the acceptance of every number of drafted tokens exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferdoc.engine.spec_decode.acceptance import estimate_alpha
from inferdoc.engine.spec_decode.ngram import NgramIndex
from inferdoc.engine.spec_decode.proposal import DraftCounts


@dataclass(frozen=True)
class Places:
    """Of one output, place by place, given all tokens before it; the first token is the prompt's step's."""

    offered: list[int]
    """Tokens that would be proposed there."""
    agreed: list[int]
    """The first of them that are as recorded."""


@dataclass(frozen=True)
class Acceptance:
    """Decode steps of some outputs with drafts. A step emits the accepted tokens and the target's own next one."""

    drafts: DraftCounts = field(default_factory=DraftCounts)
    steps: int = 0
    emitted: int = 0

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(self.drafts + other.drafts, self.steps + other.steps, self.emitted + other.emitted)

    @property
    def proposed(self) -> int:
        return sum(self.drafts.drafted)

    @property
    def accepted(self) -> int:
        return sum(self.drafts.accepted)

    @property
    def alpha(self) -> float | None:
        """The chance that a drafted token is accepted, given that those before it in the draft were."""
        return estimate_alpha(self.accepted, sum(self.drafts.rejected))

    @property
    def tokens_per_step(self) -> float | None:
        return self.emitted / self.steps if self.steps else None

    def rates(self) -> tuple[float, ...]:
        """The chance of each place, given those before it; of the first in any step, whether it drafts or not."""
        reached = (self.steps, *self.drafts.accepted)
        return tuple(a / r if r else 0.0 for a, r in zip(self.drafts.accepted, reached, strict=False))


def ngram_places(prompt: Sequence[int], output: Sequence[int], *, shortest: int, longest: int, most: int) -> Places:
    """What prompt lookup proposes, up to `most` tokens."""
    index = NgramIndex(shortest, longest)
    tokens = [*prompt, *output[:1]]
    offered, agreed = [0], [0]
    for place in range(1, len(output)):
        draft = index.propose(tokens, most)
        offered.append(len(draft))
        recorded = output[place : place + len(draft)]
        agreed.append(next((i for i, token in enumerate(recorded) if token != draft[i]), len(recorded)))
        tokens.append(output[place])
    return Places(offered, agreed)


def model_places(hits: Sequence[bool]) -> Places:
    """What a draft model proposes: any number of tokens.

    Args:
        hits: for each token of the output but the first, whether the model's most likely token there is the recorded
            one.
    """
    agreed = [0] * (len(hits) + 2)
    for place in range(len(hits), 0, -1):
        agreed[place] = agreed[place + 1] + 1 if hits[place - 1] else 0
    count = len(hits) + 1
    return Places([count] * count, agreed[:count])


def walk(places: Places, k: int) -> Acceptance:
    """The steps that emit one output with up to k drafted tokens each, as the engine makes them.

    The first token comes with the prompt, and the last is never drafted: the step that checks emits one more.
    """
    count = len(places.offered)
    drafts = []
    at = 1
    while at < count:
        drafted = min(k, places.offered[at], count - at - 1)
        accepted = min(drafted, places.agreed[at])
        drafts.append((drafted, accepted))
        at += accepted + 1
    return Acceptance(DraftCounts.of(drafts), len(drafts), max(0, count - 1))


@dataclass(frozen=True)
class Replay:
    """Acceptance of one drafter on the outputs of a trace."""

    by_k: dict[int, Acceptance] = field(default_factory=dict)
    """By drafted tokens a step."""
    requests: int = 0
    note: str | None = None
    """What was replayed."""
    propose_s: float = 0.0
    """Seconds of one lookup for one request; 0 for a draft model, whose steps are timed apart."""
    reason: str | None = None
    """Why there is nothing."""
    each: dict[int, list[Acceptance]] = field(default_factory=dict)
    """By drafted tokens a step, request by request."""
    sampled: bool = False
    """The requests stand for others whose outputs were not replayed."""

    @classmethod
    def of(cls, outputs: Sequence[Places], lengths: Iterable[int], **others: Any) -> Replay:
        """Replay outputs with each number of drafted tokens a step."""
        each = {k: [walk(places, k) for places in outputs] for k in lengths}
        by_k = {k: sum(found, Acceptance()) for k, found in each.items()}
        return cls(by_k, len(outputs), each=each, **others)

"""What a drafter proposes for a request, and what became of the proposals of a step. Plain Python, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from inferdoc.engine.request import Request


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed to follow a request's present ones."""

    tokens: list[int]
    probabilities: Tensor | None = None
    """[tokens, vocabulary] float64: what each was drawn from. ``None``: the drafter had no other in mind (q = 1)."""
    accepted: int | None = None
    """How many to accept, whatever the model finds: set by synthetic acceptance."""

    def first(self, count: int) -> Draft | None:
        """The draft without what comes after its first `count` tokens; ``None`` where nothing is left."""
        if count >= len(self.tokens):
            return self
        if count < 1:
            return None
        probabilities = None if self.probabilities is None else self.probabilities[:count]
        accepted = None if self.accepted is None else min(self.accepted, count)
        return replace(self, tokens=self.tokens[:count], probabilities=probabilities, accepted=accepted)


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Drafted tokens by their place in the draft. A draft's tokens after a rejected one were never judged."""

    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    rejected: tuple[int, ...] = ()
    """Drafts whose first rejected token stands here."""

    @classmethod
    def of(cls, drafts: Iterable[tuple[int, int]]) -> DraftCounts:
        """From each draft's tokens and how many of them were accepted."""
        pairs = list(drafts)
        places = range(max((drafted for drafted, _ in pairs), default=0))
        return cls(
            drafted=tuple(sum(drafted > place for drafted, _ in pairs) for place in places),
            accepted=tuple(sum(accepted > place for _, accepted in pairs) for place in places),
            rejected=tuple(sum(accepted == place < drafted for drafted, accepted in pairs) for place in places),
        )

    def __add__(self, other: DraftCounts) -> DraftCounts:
        return DraftCounts(
            _sum(self.drafted, other.drafted),
            _sum(self.accepted, other.accepted),
            _sum(self.rejected, other.rejected),
        )

    def conditional_rates(self) -> list[float | None]:
        """Share accepted at each place, of the drafts that were accepted up to it; ``None`` where none was judged."""
        judged = zip(self.accepted, self.rejected, strict=True)
        return [a / (a + r) if a + r else None for a, r in judged]


def _sum(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(first, second, fillvalue=0))


def wanted(request: Request, most: int) -> int:
    """Tokens to draft for a request now, 0 where none can be checked: it computes its prompt, is done, or has a draft.

    The step that checks them emits one more, so the request's last token is never drafted, and the K/V stay within the
    request's length.
    """
    row = request.steady
    if row is None or row.padding or request.draft is not None:
        return 0
    return max(0, min(most, request.max_length - len(request.tokens) - 1))

"""Sessions whose later rows carry only new tokens, as whole prompts.

A whole prompt is the one before, its answer and what is new. A session only grows, so its full blocks stay what they
are; those that an answer or a later turn filled are named after the session and their position, since nothing is known
that could repeat in another session:

    turn 1   |- ids of the row -|- part -|
    turn 2   |- ids of the row -|- session, 2 -|- session, 3 -|- part -|
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from inferdoc.traces.ledger import RowError


@dataclass
class _Session:
    tokens: int = 0
    answered: bool = True
    turns: int = 0
    full: list[int] | None = field(default_factory=list)


class Growing:
    """Sessions that grow turn by turn; `block_size` is ``None`` where the trace has no blocks."""

    def __init__(self, block_size: int | None) -> None:
        self._size = block_size
        self._sessions: dict[str, _Session] = {}

    def broken(self, session: str) -> None:
        """A turn cannot be read: what follows in its session is not known."""
        self._sessions.setdefault(session, _Session()).answered = False

    def turn(
        self, session: str, new: int, output: int | None, blocks: Sequence[int] | None
    ) -> tuple[int, list[int] | None]:
        """Tokens and block ids of the whole prompt of the next turn, which adds `new` tokens.

        Raises:
            RowError: the length of an earlier turn or of its answer is not known; ids that do not fit `new`.
        """
        state = self._sessions.setdefault(session, _Session())
        if not state.answered:
            raise RowError(
                "the whole prompt is not known: an earlier turn of the session has no readable lengths",
                "a turn after one without readable lengths",
            )
        whole = state.tokens + new
        ids = self._blocks(session, state, new, whole, blocks)
        state.turns += 1
        state.answered = output is not None
        state.tokens = whole + (output or 0)
        return whole, ids

    def _blocks(
        self, session: str, state: _Session, new: int, whole: int, blocks: Sequence[int] | None
    ) -> list[int] | None:
        size = self._size
        if size is None:
            return None
        if blocks is not None and len(blocks) not in (new // size, -(-new // size)):
            raise RowError(
                f"hash_ids has {len(blocks)} ids for {new:,} new tokens: blocks of {size} make {-(-new // size)}",
                "number of hash_ids does not fit the new tokens",
            )
        if state.turns == 0:
            state.full = None if blocks is None else list(blocks[: new // size])
            return None if blocks is None else list(blocks)
        if state.full is None:
            return None
        state.full += [_id(session, str(at)) for at in range(len(state.full), whole // size)]
        return state.full + ([_id(session, f"part of turn {state.turns}")] if whole % size else [])


def _id(session: str, what: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{session}\0{what}".encode(), digest_size=8).digest(), "big")

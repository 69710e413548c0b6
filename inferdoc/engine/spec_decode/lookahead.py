"""What drafts mean to the scheduler: tokens of its budget, and slots past the ends of the requests.

    0 ................. num_computed   len(tokens)
    | computed          | last token   | drafted      |
                        |--- query tokens of the step-|

Rejected K/V stay past `num_computed` and are overwritten. Drafts get what nothing else wants: they shrink to the token
budget and the free blocks, and nobody is preempted for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from inferdoc.engine.kv_manager import KVManager
from inferdoc.engine.request import Request

if TYPE_CHECKING:
    from inferdoc.engine.scheduler import Row


class NoLookahead:
    """Speculation is off: no request has a draft."""

    def claim(self, running: Sequence[Request]) -> int:
        """Tokens of the step's budget for drafts, which are shortened to that."""
        return 0

    def extend(self, rows: list[Row], kv: KVManager) -> int:
        """Add the drafts to their requests' rows, as far as there are free blocks. Returns the tokens added."""
        return 0


class Lookahead(NoLookahead):
    """Speculation is on.

    Args:
        spare: most tokens of a step that may be drafts.
    """

    def __init__(self, spare: int) -> None:
        self._spare = spare

    def claim(self, running: Sequence[Request]) -> int:
        left = self._spare
        for request in running:
            if request.draft is not None:
                request.draft = request.draft.first(left)
                left -= len(request.draft.tokens) if request.draft else 0
        return self._spare - left

    def extend(self, rows: list[Row], kv: KVManager) -> int:
        added = 0
        for index, row in enumerate(rows):
            request = row.request
            if request.draft is None:
                continue
            kv.grow(request, 1 + len(request.draft.tokens))
            request.draft = draft = request.draft.first(kv.slots(request) - request.num_computed - 1)
            if draft is not None:
                rows[index] = replace(row, num_tokens=1 + len(draft.tokens), draft=draft)
                added += len(draft.tokens)
        return added

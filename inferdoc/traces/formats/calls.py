"""Calls as a reader finds them, one after another, and the draft that they make together."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from inferdoc.traces.columns import as_text, lists, text_column
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.values import whole
from inferdoc.traces.ledger import Ledger

EMBEDDINGS = "embeddings and other calls that generate no text"
REPEATED = "the same call again: a row with an id that was read before"
_TEXTS = ("prompt_text", "output_text")
_IDS = ("prompt_ids", "output_ids")
_MOST_WITHOUT_TEXT = 0.1
_FEWEST_BYTES_A_TOKEN = 2
"""Text of any language has more bytes of UTF-8 a token, so a shorter text is not the whole prompt."""


class Calls:
    """Rows by role: the roles of `Draft.cells`, and texts and token ids of prompt and output.

    A row's ``status`` is ``error`` where the source says that the call failed, or the source's own word.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lines: list[int] = []
        self._left_out: dict[str, array[int]] = {}
        self._ids: set[str | None] = set()
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, line: int, row: Mapping[str, Any], *, identity: Any = None) -> None:
        """A call; with an `identity` that an earlier one had, a repetition, which is counted and not used."""
        if identity is not None:
            key = as_text(identity)
            if key in self._ids:
                self.leave_out(line, REPEATED)
                return
            self._ids.add(key)
        self._lines.append(line)
        self.rows.append(dict(row))

    def leave_out(self, line: int, reason: str) -> None:
        self._left_out.setdefault(reason, array("q")).append(line)

    def only_shared_sessions(self, what: str) -> None:
        """Forget sessions that hold one call only: an id of the single call, which says nothing of its neighbours."""
        for row in self.rows:
            row["session"] = as_text(row.get("session"))
        sizes = Counter(row["session"] for row in self.rows)
        shared = {session for session, size in sizes.items() if session is not None and size > 1}
        for row in self.rows:
            if row["session"] not in shared:
                row["session"] = None
        if shared:
            self.notes.append(f"calls that share a {what} are read as one session ({len(shared):,} found)")

    def draft(
        self,
        format: str,
        names: Mapping[str, str],
        *,
        units: Mapping[str, str] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Draft:
        for reason, lines in self._left_out.items():
            self._ledger.leave_out(pl.Series(lines, dtype=pl.Int64), reason)
        self._forget_scattered_texts()
        self._note_short_texts()
        roles = dict.fromkeys(role for row in self.rows for role, value in row.items() if value is not None)
        columns = {
            role: lists([row.get(role) for row in self.rows], pl.Int64)
            if role in _IDS
            else text_column(row.get(role) for row in self.rows)
            for role in roles
        }
        return Draft(
            format=format,
            lines=pl.Series(self._lines, dtype=pl.Int64),
            cells={role: column for role, column in columns.items() if role not in (*_TEXTS, *_IDS)},
            names=dict(names),
            units={"ttft_s": "s", "e2e_s": "s", "queue_s": "s"} | dict(units or {}),
            ready={role: column for role, column in columns.items() if role in (*_TEXTS, *_IDS)},
            notes=[*notes, *self.notes],
        )

    def _forget_scattered_texts(self) -> None:
        """Texts count only where nearly all calls have them: a call without text seems to share no prefix."""
        usable = [row for row in self.rows if row.get("status") != "error" and row.get("error") is None]
        without = sum(row.get("prompt_text") is None for row in usable)
        needed = any(row.get("prompt_text") is not None and row.get("input_tokens") is None for row in usable)
        if not without or without == len(usable):
            return
        if needed or without <= _MOST_WITHOUT_TEXT * len(usable):
            self.notes.append(
                f"{without:,} of {len(usable):,} calls have no readable text: they seem to share no prefix"
            )
            return
        self.notes.append(
            f"{without:,} of {len(usable):,} calls have no readable text: the texts are not used, only the token counts"
        )
        for row in self.rows:
            row["prompt_text"] = row["output_text"] = None

    def _note_short_texts(self) -> None:
        both = [row for row in self.rows if row.get("prompt_text") is not None and whole(row.get("input_tokens"))]
        short = sum(
            len(row["prompt_text"].encode("utf-8", "replace"))
            < _FEWEST_BYTES_A_TOKEN * (whole(row["input_tokens"]) or 0)
            for row in both
        )
        if short:
            self.notes.append(
                f"{short:,} of {len(both):,} calls have less than {_FEWEST_BYTES_A_TOKEN} bytes of text for a counted"
                " token: their texts may lack instructions or tool definitions"
            )

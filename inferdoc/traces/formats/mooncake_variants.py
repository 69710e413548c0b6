"""Mooncake rows with more than lengths: sessions with delays, text, requests that wait for others, and new tokens only.

``timestamp`` and ``delay`` (or ``delay_ms``) are milliseconds; a row with a delay starts that long after the turn
before it, one with ``wait_for`` after the requests it names: closed loops, without a time of their own. The prompt is
one of ``input_length``, ``text_input``, ``messages`` and ``payload``. With ``message_mode: delta`` (or in the format
mooncake-delta) later rows of a session carry only what is new. Formats: AIPerf's and Dynamo's documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from inferdoc.traces.columns import as_text, lists, parse_counts, text_column
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats import sizes
from inferdoc.traces.formats.chat import media_notes
from inferdoc.traces.formats.closed_loop import without_arrivals
from inferdoc.traces.formats.fields import whole_numbers
from inferdoc.traces.formats.format import Format, Keys, all_of, any_of, has_any
from inferdoc.traces.formats.lineage import Families
from inferdoc.traces.formats.mooncake_delta import Growing
from inferdoc.traces.formats.mooncake_prompts import Prompts
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered
from inferdoc.traces.records import Record

BLOCK_SIZE = 512
_ROWS_LOOKED_AT = 100
_NAMES = {
    "arrival": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "session": "session_id",
    "prefix_blocks": "hash_ids",
}
_LOOPED = ("delay", "delay_ms", "wait_for", "tool_wait_ms")
_PROMPTS = ("input_length", "text_input", "messages", "payload")


@dataclass
class _Row:
    line: int
    record: Mapping[str, Any]
    session: str | None
    delta: bool
    """Whether the row carries only what is new in its session."""
    prompt: Rendered | None
    tokens: str | None
    blocks: Any


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    return _draft(_rows(records, ledger, delta=False), ledger)


def read_delta(records: Iterable[Record], ledger: Ledger) -> Draft:
    return _draft(_rows(records, ledger, delta=True), ledger)


def _rows(records: Iterable[Record], ledger: Ledger, *, delta: bool) -> list[_Row]:
    prompts, rows = Prompts(), []
    for line, record in records:
        mode, session = record.get("message_mode"), as_text(record.get("session_id"))
        only_new = session is not None and (mode == "delta" if mode in ("delta", "history") else delta)
        try:
            blocks = whole_numbers(record.get("hash_ids"), "hash_ids", "Q")
            prompt = prompts.of(line, record, session if only_new else None)
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        tokens = None if prompt is not None and only_new else as_text(record.get("input_length"))
        rows.append(_Row(line, record, session, only_new, prompt, tokens, blocks))
    return rows


def _draft(rows: list[_Row], ledger: Ledger) -> Draft:
    notes: list[str] = []
    block_size = _block_size(rows, notes)
    rows = _with_whole_prompts(rows, block_size, ledger, notes)
    texts = [row.prompt for row in rows if row.prompt is not None]
    draft = Draft(
        format="mooncake-delta" if any(row.delta for row in rows) else "mooncake-agentic",
        lines=pl.Series([row.line for row in rows], dtype=pl.Int64),
        cells={
            "arrival": text_column(row.record.get("timestamp") for row in rows),
            "input_tokens": text_column(row.tokens for row in rows),
            "output_tokens": text_column(row.record.get("output_length") for row in rows),
            "session": text_column(_sessions(rows, notes)),
        },
        names=dict(_NAMES),
        units={"arrival": "ms"},
        ready={"prompt_text": text_column(None if row.prompt is None else row.prompt.text for row in rows)},
        notes=notes + media_notes(texts),
    )
    if block_size is not None:
        draft.ready["prefix_blocks"] = lists([row.blocks for row in rows], pl.UInt64)
        draft.block_size = block_size
    if any(row.delta or _is_looped(row.record) for row in rows):
        without_arrivals(draft, "requests start when others have ended")
    return draft


def _block_size(rows: list[_Row], notes: list[str]) -> int | None:
    """The block size of the rows' own ids; ``None`` without ids, or where text without a length stands beside them."""
    if all(row.blocks is None for row in rows):
        return None
    if any(row.prompt is not None and row.tokens is None for row in rows):
        notes.append("hash_ids are not used: prompts are given as text, in which their prefixes are found")
        return None
    first = [row for row in rows if row.blocks is not None][:_ROWS_LOOKED_AT]
    lengths = text_column(row.record.get("input_length") for row in first)
    ids = lists([row.blocks for row in first], pl.UInt64)
    return sizes.inferred(lengths, ids, BLOCK_SIZE, "hash_ids", partial_last=None, notes=notes)


def _with_whole_prompts(rows: list[_Row], block_size: int | None, ledger: Ledger, notes: list[str]) -> list[_Row]:
    """Rows that carry only new tokens, with the whole prompt; those of which it is not known are refused."""
    grown = [row for row in rows if row.delta]
    if not grown:
        return rows
    counts = [
        parse_counts(text_column(row.record.get(name) for row in grown)) for name in ("input_length", "output_length")
    ]
    new, output = ([None if bad else value for value, bad in zip(c.values, c.bad, strict=True)] for c in counts)
    sessions, refused = Growing(block_size), set()
    for at, row in enumerate(grown):
        session = str(row.session)
        added = new[at]
        if row.prompt is not None or added is None:
            sessions.broken(session)
            continue
        try:
            tokens, row.blocks = sessions.turn(session, added, output[at], row.blocks)
        except RowError as error:
            sessions.broken(session)
            ledger.refuse(row.line, str(error), error.reason)
            refused.add(id(row))
            continue
        row.tokens = str(tokens)
    later = len(grown) - len({row.session for row in grown})
    if later:
        notes.append(
            f"{later:,} later turns carry only what is new: the whole prompt is the one before, its output and the new"
            " tokens"
        )
        if block_size is not None:
            notes.append(
                "blocks of later turns follow from their session alone: what they share with other sessions, beyond the"
                " first turn, is not known"
            )
        if any(row.prompt is not None for row in grown):
            notes.append("the answers of earlier turns are not in the file: texts of later turns lack them")
    return [row for row in rows if id(row) not in refused]


def _sessions(rows: list[_Row], notes: list[str]) -> list[str | None]:
    """Sessions as given, else the family of requests that wait for each other."""
    families = Families()
    members = set()
    for row in rows:
        name, waits = as_text(row.record.get("request_id")), row.record.get("wait_for")
        if name is None or not waits:
            continue
        for other in waits if isinstance(waits, list) else [waits]:
            before = str(as_text(other))
            families.join(name, before)
            members |= {name, before}
    if members:
        notes.append(
            "requests that wait for others make one session with them where no session_id is given; some of its turns"
            " may run side by side"
        )
    found = []
    for row in rows:
        name = as_text(row.record.get("request_id"))
        found.append(row.session if row.session is not None or name not in members else families.root(str(name)))
    return found


def _is_looped(record: Keys) -> bool:
    """Whether it starts when another one has ended: also after a delay of 0."""
    return any(record.get(name) not in (None, "", []) for name in _LOOPED)


def _is_delta(record: Keys) -> bool:
    return record.get("message_mode") == "delta" and any(name in record for name in _PROMPTS)


def _is_codex(record: Keys) -> bool:
    return "payload" in record and "type" in record


_KNOWN = has_any("hash_ids", "session_id", *_PROMPTS)
_is_variant = any_of(
    all_of(has_any(*_LOOPED), _KNOWN),
    all_of(has_any("text_input", "payload"), has_any("hash_ids", "session_id", "timestamp")),
    _is_delta,
)

FORMATS = (
    Format(
        "mooncake-agentic",
        "Mooncake with delays, text or dependencies",
        lambda record: not _is_codex(record) and _is_variant(record),
        read,
    ),
    Format("mooncake-delta", "Mooncake with new tokens only", has_any(*_PROMPTS), read_delta, detected=False),
)

"""WEKA agentic traces: a JSON object is one conversation, with ``requests`` and nested requests of sub-agents.

``t`` is seconds from the start of the conversation, inside a sub-agent from the sub-agent's own ``t``. Conversations
have independent clocks, and their block ids (``hash_id_scope: local``) mean nothing outside them.
Format: https://github.com/callanjfox/kv-cache-tester (traces).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import polars as pl

from inferdoc.traces import shown
from inferdoc.traces.columns import as_text, lists, text_column
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats import sizes
from inferdoc.traces.formats.fields import whole_numbers
from inferdoc.traces.formats.format import Format, all_of, has, has_prefix
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record

_FIELDS = {"input_tokens": "in", "output_tokens": "out", "model": "model", "e2e_s": "api_time", "ttft_s": "ttft"}


@dataclass
class _Requests:
    """Requests of all conversations, one list a column."""

    lines: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    times: list[str | None] = field(default_factory=list)
    records: list[Mapping[str, Any]] = field(default_factory=list)
    blocks: list[list[int] | None] = field(default_factory=list)
    agents: int = 0
    of_agents: int = 0


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    found = _Requests()
    numbers, shared = count(), dict[int, int]()
    given: list[Any] = []
    prompts: dict[bytes, int] = {}
    names: dict[str, int] = {}
    for conversation, (line, record) in enumerate(records):
        given.append(record.get("block_size"))
        start = len(found.lines)
        name = str(record.get("id") or f"conversation {conversation + 1}")
        names[name] = names.get(name, 0) + 1
        _collect(record, name if names[name] == 1 else f"{name} #{names[name]}", 0, line, found, ledger)
        found.segments.extend([conversation] * (len(found.lines) - start))
        same = hashlib.blake2b(
            repr([(r.get("in"), r.get("hash_ids")) for r in found.records[start:]]).encode()
        ).digest()
        prompts[same] = prompts.get(same, 0) + 1
        known = shared if record.get("hash_id_scope") == "global" else {}
        for blocks in found.blocks[start:]:
            if blocks is not None:
                # Numbered again over all conversations, so that ids of two never meet.
                blocks[:] = [known[id] if id in known else known.setdefault(id, next(numbers)) for id in blocks]
    return _draft(
        found, len(given), sum(prompts.values()) - len(prompts), sizes.stated(given, "block_size", ledger.where)
    )


def _collect(holder: Mapping[str, Any], session: str, start: Any, line: int, found: _Requests, ledger: Ledger) -> None:
    """The requests of a conversation, or of a sub-agent that began `start` seconds after it."""
    entries = holder.get("requests")
    if not isinstance(entries, list):
        ledger.refuse(line, f"requests is {shown.kind(entries)}: expected a list", "requests is not a list")
        return
    for position, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            message = f"requests[{position}] is {shown.kind(entry)}: expected an object"
            ledger.refuse(line, message, "a request that is not an object")
            continue
        if entry.get("type") == "subagent":
            found.agents += 1
            name = f"{session}/{entry.get('agent_id') or f'subagent {position}'}"
            before = len(found.lines)
            _collect(entry, name, _later(start, entry.get("t")), line, found, ledger)
            found.of_agents += len(found.lines) - before
            continue
        try:
            blocks = whole_numbers(entry.get("hash_ids"), "hash_ids", "Q")
        except RowError as error:
            ledger.refuse(line, f"requests[{position}]: {error}", error.reason)
            continue
        found.lines.append(line)
        found.sessions.append(session)
        found.times.append(_later(start, entry.get("t")))
        found.records.append(entry)
        found.blocks.append(None if blocks is None else list(blocks))


def _later(start: Any, t: Any) -> str | None:
    """`t` counted from `start`, to the nanosecond; what is no number is given back for the message about it."""
    try:
        return f"{float(start) + float(t):.9f}"
    except (TypeError, ValueError):
        return as_text(t if _is_number(start) else start)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _draft(found: _Requests, conversations: int, repeated: int, block_size: int | None) -> Draft:
    blocks = lists(found.blocks, pl.UInt64)
    draft = Draft(
        format="weka",
        lines=pl.Series(found.lines, dtype=pl.Int64),
        cells={role: text_column(record.get(name) for record in found.records) for role, name in _FIELDS.items()},
        names=_FIELDS | {"arrival": "t", "prefix_blocks": "hash_ids"},
        units={"arrival": "s", "e2e_s": "s", "ttft_s": "s"},
        ready={"prefix_blocks": blocks},
        block_size=block_size,
    )
    draft.cells |= {"arrival": text_column(found.times), "session": text_column(found.sessions)}
    if conversations > 1:
        draft.ready["segment"] = pl.Series(found.segments, dtype=pl.Int64)
        draft.independent_clocks = True
        draft.notes.append(
            f"{conversations:,} conversations, each with a clock and block ids of its own: there is no request rate"
            " over all of them, and what two of them share (tools, system prompt) is not in the ids"
        )
    if found.agents:
        draft.notes.append(
            f"{found.of_agents:,} requests are from {found.agents:,} sub-agents, which run beside their conversation:"
            " each is a session of its own, named conversation/agent"
        )
    if repeated:
        draft.notes.append(
            f"{repeated:,} conversations have exactly the prompts of another one, as if captured twice: all are kept"
        )
    untimed = draft.cells["e2e_s"].null_count()
    if untimed:
        draft.notes.append(
            f"{untimed:,} of {len(blocks):,} requests have no api_time: their end-to-end time is not known"
        )
    return draft


FORMAT = Format(
    "weka", "WEKA agentic trace", all_of(has("requests", "block_size"), has_prefix("hash_id_scope", "tool_tok")), read
)

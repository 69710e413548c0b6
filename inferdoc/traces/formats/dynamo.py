"""NVIDIA Dynamo request traces: events of schema ``dynamo.request.trace.v1``, maybe one level down in an envelope.

A ``request_end`` is a request; lines are in order of its end, arrival is ``request_received_ms`` (epoch). Prompts are
known by chained hashes of blocks over the whole range of 64 bits. Format: Dynamo's documentation of request tracing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from inferdoc.traces import shown
from inferdoc.traces.columns import lists, text_column
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats import sizes
from inferdoc.traces.formats.durations import without_zeros
from inferdoc.traces.formats.fields import whole_numbers
from inferdoc.traces.formats.format import Format, Keys
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record

_NAMES = {
    "arrival": "request_received_ms",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached_tokens": "cached_tokens",
    "model": "model",
    "ttft_s": "ttft_ms",
    "e2e_s": "total_time_ms",
    "status": "finish_reason",
    "session": "session_id",
    "request_id": "request_id",
}
_OTHER_EVENTS = {
    "tool_end": "tool events",
    "tool_error": "tool events",
    "request_payload": "events with the payload of a request, which its request_end counts",
}


@dataclass
class _Found:
    lines: list[int] = field(default_factory=list)
    cells: dict[str, list[Any]] = field(default_factory=lambda: {role: [] for role in _NAMES})
    blocks: list[Any] = field(default_factory=list)
    block_sizes: list[Any] = field(default_factory=list)
    children: int = 0
    differing: int = 0


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    found = _Found()
    others: dict[str, list[int]] = {}
    for line, record in records:
        event = _event(record)
        if event is None:
            ledger.refuse(line, "no event of a schema dynamo.*", "not an event of Dynamo")
            continue
        kind = event.get("event_type")
        if kind != "request_end":
            others.setdefault(_OTHER_EVENTS.get(str(kind), "events of a kind that is no request"), []).append(line)
            continue
        try:
            _add(found, line, event)
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
    for reason, lines in others.items():
        ledger.leave_out(lines, reason)
    return _draft(found, ledger)


def _event(record: Keys) -> Mapping[str, Any] | None:
    for event in (record, *record.values()):
        if isinstance(event, Mapping) and str(event.get("schema", "")).startswith("dynamo."):
            return event
    return None


def _add(found: _Found, line: int, event: Mapping[str, Any]) -> None:
    request = event.get("request")
    if not isinstance(request, Mapping):
        raise RowError(f"request is {shown.kind(request)}: expected an object", "request is not an object")
    replay = _object(request.get("replay"))
    hashes = whole_numbers(replay.get("input_sequence_hashes"), "input_sequence_hashes", "Q")
    context = _object(event.get("agent_context"))
    received, took = request.get("request_received_ms"), request.get("total_time_ms")
    ended = event.get("event_time_unix_ms")
    if took is None:
        took = _difference(ended, received)
    if received is None:
        received = _difference(ended, took)
    counted, replayed = request.get("input_tokens"), replay.get("input_length")
    found.differing += counted is not None and replayed is not None and counted != replayed
    found.children += context.get("parent_session_id") is not None
    values = {
        "arrival": received,
        "input_tokens": counted if replayed is None else replayed,
        "e2e_s": took,
        "ttft_s": request.get("ttft_ms"),
        "status": _object(request.get("finish_reason_metadata")).get("finish_reason"),
        "session": context.get("session_id"),
    } | {role: request.get(role) for role in ("request_id", "output_tokens", "cached_tokens", "model")}
    found.lines.append(line)
    for role, column in found.cells.items():
        column.append(values[role])
    found.blocks.append(hashes)
    found.block_sizes.append(replay.get("trace_block_size") if hashes is not None else None)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _difference(later: Any, earlier: Any) -> Any:
    """Milliseconds between two times where both are numbers and in order."""
    if isinstance(later, int | float) and isinstance(earlier, int | float) and later > earlier:
        return later - earlier
    return None


def _draft(found: _Found, ledger: Ledger) -> Draft:
    draft = Draft(
        format="dynamo",
        lines=pl.Series(found.lines, dtype=pl.Int64),
        cells={role: text_column(column) for role, column in found.cells.items()},
        names=_NAMES | {"prefix_blocks": "input_sequence_hashes"},
        units={"arrival": "ms", "ttft_s": "ms", "e2e_s": "ms"},
        ready={"prefix_blocks": lists(found.blocks, pl.UInt64)},
        block_size=sizes.stated(found.block_sizes, "trace_block_size", ledger.where),
        partial_last=True,
    )
    for role in ("ttft_s", "e2e_s"):
        without_zeros(draft, role, "shorter than the clock's millisecond")
    if draft.block_size is None:
        del draft.ready["prefix_blocks"]
    if found.differing:
        draft.notes.append(
            f"{found.differing:,} requests have an input_length that is not their input_tokens: the one of the hashes"
            " is used"
        )
    if found.children:
        draft.notes.append(f"{found.children:,} requests are of sessions that another session started")
    draft.notes.append(
        "Dynamo delivers trace events with best effort and leaves out requests with n > 1 or images: the load may have"
        " been higher"
    )
    return draft


FORMAT = Format("dynamo", "Dynamo request trace", lambda record: _event(record) is not None, read)

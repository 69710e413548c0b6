"""LLMServingSim workloads: ``input_toks``, ``output_toks``, ``arrival_time_ns``, maybe token ids.

A row may be a session instead: ``sub_requests`` that follow each other in a closed loop, after ``tool_duration_ns``.
Format: https://github.com/casys-kaist/LLMServingSim (workloads).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats import sizes
from inferdoc.traces.formats.closed_loop import without_arrivals
from inferdoc.traces.formats.fields import gather
from inferdoc.traces.formats.format import Format, any_of, has, list_with
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

_FIELDS = {
    "arrival": "arrival_time_ns",
    "input_tokens": "input_toks",
    "output_tokens": "output_toks",
    "session": "session_id",
    "turn": "turn",
    "model": "model",
}
_LISTS = {
    "prompt_ids": ("input_tok_ids", "q"),
    "output_ids": ("output_tok_ids", "q"),
    "prefix_blocks": ("hash_ids", "Q"),
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    sessions: list[int] = []
    fields = gather(
        _requests(records, ledger, sessions),
        [*_FIELDS.values(), "block_size"],
        dict(_LISTS.values()),
        ledger,
    )
    lists = {role: fields.lists[name] for role, (name, _) in _LISTS.items()}
    draft = Draft(
        format="llmservingsim",
        lines=fields.lines,
        cells={role: fields.cells[name] for role, name in _FIELDS.items()},
        names=_FIELDS | {role: name for role, (name, _) in _LISTS.items()},
        units={"arrival": "ns"},
        ready={role: column for role, column in lists.items() if column.null_count() < len(column)},
    )
    if "prefix_blocks" in draft.ready:
        draft.block_size = sizes.stated(fields.cells["block_size"], "block_size", ledger.where)
        if draft.block_size is None:
            del draft.ready["prefix_blocks"]
            draft.notes.append(
                "hash_ids without block_size are not used: how many tokens an id stands for is not known"
            )
    if sessions:
        draft.notes.append(
            f"{len(sessions):,} rows are sessions of sub_requests: each sub-request is one, with input_toks read as its"
            " whole prompt"
        )
        without_arrivals(draft, "sub-requests start when the one before has ended")
    return draft


def _requests(records: Iterable[Record], ledger: Ledger, sessions: list[int]) -> Iterator[Record]:
    """Every request as a record of its own; the lines of sessions go to `sessions`."""
    for line, record in records:
        if "sub_requests" not in record:
            yield line, record
            continue
        inner: Any = record["sub_requests"]
        if not isinstance(inner, list) or not all(isinstance(request, dict) for request in inner):
            ledger.refuse(
                line, f"sub_requests is {shown.kind(inner)}: expected a list of requests", "sub_requests is not a list"
            )
            continue
        sessions.append(line)
        if not inner:
            ledger.leave_out([line], "sessions without requests")
        name = record.get("session_id", f"session at line {line}")
        for turn, request in enumerate(inner, 1):
            arrival = record.get("arrival_time_ns") if turn == 1 else None
            yield line, {**request, "session_id": name, "turn": turn, "arrival_time_ns": arrival}


FORMAT = Format(
    "llmservingsim",
    "LLMServingSim workload",
    any_of(has("input_toks", "output_toks", "arrival_time_ns"), list_with("sub_requests", "input_toks")),
    read,
)

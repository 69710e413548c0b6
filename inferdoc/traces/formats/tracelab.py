"""TraceLab rounds: one LLM call of a coding agent a line, with the engine's measured split of cached and new tokens.

A round arrives with the last input event (user message, tool result) before its first output event. No text and no
hashes. Format: https://github.com/uw-syfi/TraceLab (example_sessions).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from inferdoc.traces import shown
from inferdoc.traces.columns import DAY_S, SHORTEST_LATENCY_S, parse_counts, parse_times
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.closed_loop import from_one
from inferdoc.traces.formats.fields import gather
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record

_FIELDS = {
    "arrival": "last input event",
    "input_tokens": "input_tokens_total",
    "output_tokens": "output_tokens",
    "cached_tokens": "prefix_tokens",
    "session": "session_id",
    "turn": "round_index",
    "model": "model",
    "request_id": "round_id",
}
_NEW = "newly_append_tokens"
_END = "last output event"
_INPUT_EVENTS = ("user_message", "tool_result")
_OUTPUT_EVENTS = ("reasoning", "text", "tool_call")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    fields = gather(_with_moments(records, ledger), [*_FIELDS.values(), _NEW, _END], {}, ledger)
    draft = Draft(
        format="tracelab",
        lines=fields.lines,
        cells={role: fields.cells[name] for role, name in _FIELDS.items()},
        names=dict(_FIELDS),
        notes=[
            "cached tokens are what the engine reported; reasoning tokens are a part of the output tokens and not added"
        ],
    )
    draft.cells["turn"] = from_one(draft.cells["turn"])
    arrival, end = (parse_times(cells).values for cells in (draft.cells["arrival"], fields.cells[_END]))
    took = (end - arrival) / 1e9
    draft.ready["e2e_s"] = pl.DataFrame({"x": took}).select(
        pl.when(pl.col("x").is_between(SHORTEST_LATENCY_S, DAY_S)).then("x").alias("x")
    )["x"]
    if draft.ready["e2e_s"].count():
        draft.notes.append(
            "end-to-end times are from a round's arrival to its last output event, as the agent's log wrote them down"
        )
    parts = [parse_counts(fields.cells[name]).values for name in ("prefix_tokens", _NEW)]
    differing = int((parts[0] + parts[1] != parse_counts(draft.cells["input_tokens"]).values).sum())
    if differing:
        draft.notes.append(
            f"{differing:,} rounds have a total that is not the sum of prefix and new tokens: the total is used"
        )
    return draft


def _with_moments(records: Iterable[Record], ledger: Ledger) -> Iterator[Record]:
    """Each round with the times of its arrival and of its end."""
    without_input: list[int] = []
    for line, record in records:
        try:
            arrival, end = _moments(record.get("timing_events"))
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        if arrival is None:
            without_input.append(line)
            continue
        yield line, record | {_FIELDS["arrival"]: arrival, _END: end}
    ledger.leave_out(without_input, "rounds without an event that starts them: their arrival is not known")


def _moments(events: Any) -> tuple[Any, Any]:
    """Time of the last input event before the first output event, and of the last output event."""
    if events is None:
        return None, None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise RowError(
            f"timing_events is {shown.kind(events)}: expected a list of events",
            "timing_events is not a list of events",
        )
    arrival = end = None
    for event in events:
        kind, time = event.get("event_type"), event.get("timestamp")
        if kind in _OUTPUT_EVENTS:
            end = time
        elif kind in _INPUT_EVENTS and end is None:
            arrival = time
    return arrival, end


FORMAT = Format("tracelab", "TraceLab rounds", has("provider", "session_id", "round_index", _NEW), read)

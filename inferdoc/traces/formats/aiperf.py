"""AIPerf ``profile_export.jsonl``: one request a line in order of completion, ``metadata`` and ``metrics``.

Epoch nanoseconds; every metric names its unit. ``inputs.json``, beside it or alone, holds the bodies: payload k of a
session is turn k. Input tokens: the server's usage is what the engine saw, the client's count leaves out the template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.columns import NANOSECONDS
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats import aiperf_inputs
from inferdoc.traces.formats.format import Format, Refusal, all_of, any_of, has
from inferdoc.traces.formats.requests import Requests, difference_note, mapping, measured, numbers
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered
from inferdoc.traces.records import Record

_NAMES = {
    "arrival": "request_start_ns",
    "input_tokens": "usage_prompt_tokens",
    "output_tokens": "usage_completion_tokens",
    "cached_tokens": "usage_prompt_cache_read_tokens",
    "ttft_s": "time_to_first_token",
    "e2e_s": "request_latency",
    "session": "x_correlation_id",
    "turn": "turn_index",
}
_UNITS = {**NANOSECONDS, "sec": 10**9, "seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    requests = Requests("aiperf", ledger)
    found = aiperf_inputs.Conversations()
    warm_up: list[int] = []
    repeated: list[int] = []
    seen: set[str] = set()
    counts: dict[str, list[tuple[Any, Any]]] = {"input": [], "output": []}
    places: list[tuple[str, Any]] = []
    exported = 0
    for line, record in records:
        if "data" in record:
            found.add(line, record, ledger)
            continue
        exported += 1
        metadata, metrics = mapping(record.get("metadata")), mapping(record.get("metrics"))
        if metadata.get("benchmark_phase") == "warmup":
            warm_up.append(line)
            continue
        identity = metadata.get("x_request_id")
        if isinstance(identity, str):
            if identity in seen:
                repeated.append(line)
                continue
            seen.add(identity)
        try:
            values = _values(record, metadata, metrics)
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        requests.add(line, values)
        places.append((str(metadata.get("conversation_id")), metadata.get("turn_index")))
        for side, (server, client) in _COUNTERS.items():
            counts[side].append((_value(metrics, server), _value(metrics, client)))
    if not exported:
        return aiperf_inputs.draft(found, ledger)
    ledger.leave_out(warm_up, "warm-up requests")
    ledger.leave_out(repeated, "the same request again (x_request_id)")
    notes = [note for side, pairs in counts.items() for note in _count_notes(side, pairs)]
    notes += _join(requests, places, found if len(found) else _beside(ledger.where))
    names = _NAMES | {
        f"{side}_tokens": _COUNTERS[side][1] for side, pairs in counts.items() if not any(pair[0] for pair in pairs)
    }
    return requests.draft(names=names, units={"arrival": "ns"}, notes=[*notes, *requests.chunk_notes()])


_COUNTERS = {
    "input": ("usage_prompt_tokens", "input_sequence_length"),
    "output": ("usage_completion_tokens", "output_sequence_length"),
}


def _count_notes(side: str, pairs: list[tuple[Any, Any]]) -> list[str]:
    """Which of both counters is used, by how much they differ, and where only the client's is there."""
    server, client = _COUNTERS[side]
    notes = difference_note(
        f"{side} lengths", f"the server's usage ({server})", f"AIPerf's tokenizer ({client})", pairs
    )
    alone = sum(bool(pair[1]) and not pair[0] for pair in pairs)
    if alone:
        notes.append(f"{side} lengths of {alone:,} requests are AIPerf's own count ({client}): the server gave none")
    return notes


def _values(record: Mapping[str, Any], metadata: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    turn = metadata.get("turn_index")
    values: dict[str, Any] = {
        "arrival": metadata.get("request_start_ns"),
        "session": metadata.get("x_correlation_id") or metadata.get("conversation_id"),
        "turn": turn + 1 if isinstance(turn, int) else turn,
        "error": record.get("error"),
    }
    if metadata.get("was_cancelled") is True:
        values["error"] = "cancelled"
    if values["error"]:
        return values
    server_input = _COUNTERS["input"][0]
    # A server without usage reports 0 or nothing; output lengths of the client already include reasoning.
    for role, side in (("input_tokens", "input"), ("output_tokens", "output")):
        server, client = (_value(metrics, name) for name in _COUNTERS[side])
        values[role] = server or client
    between = numbers(_seconds(metrics, "inter_chunk_latency"), "inter_chunk_latency")
    return values | {
        "cached_tokens": _value(metrics, "usage_prompt_cache_read_tokens") if _value(metrics, server_input) else None,
        "ttft_s": measured(_seconds(metrics, "time_to_first_token"), "time_to_first_token"),
        "e2e_s": measured(_seconds(metrics, "request_latency"), "request_latency"),
        "itl_s": [] if between is None and values["output_tokens"] == 1 else between,
    }


def _value(metrics: Mapping[str, Any], name: str) -> Any:
    return mapping(metrics.get(name)).get("value")


def _seconds(metrics: Mapping[str, Any], name: str) -> Any:
    """The metric's value in s, by the unit it names; what is no number stays as it is, for the next check."""
    value = _value(metrics, name)
    if value is None:
        return None
    unit = mapping(metrics.get(name)).get("unit")
    factor = _UNITS.get(unit) if isinstance(unit, str) else None
    if factor is None:
        raise RowError(
            f"{name} has the unit {shown.kind(unit)}: expected {', '.join(_UNITS)}", f"{name} in no known unit"
        )
    parts = 10**9 // factor
    checked = numbers(value if isinstance(value, list) else [value], name) or []
    return [part / parts for part in checked] if isinstance(value, list) else checked[0] / parts


def _beside(where: str) -> aiperf_inputs.Conversations | None:
    """The bodies of ``inputs.json`` in the folder of the export; ``None`` where there is none that can be read."""
    given = Path(where)
    path = (given if given.is_dir() else given.parent) / "inputs.json"
    if not given.exists() or not path.is_file():
        return None
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    found = aiperf_inputs.Conversations()
    if isinstance(record, dict) and aiperf_inputs.matches(record):
        found.add(1, record, Ledger(str(path), skip_bad_rows=True))
    return found if len(found) else None


def _join(
    requests: Requests, places: list[tuple[str, Any]], conversations: aiperf_inputs.Conversations | None
) -> list[str]:
    if conversations is None:
        return ["prompts are unknown: no inputs.json lies beside the export"]
    known = without_replies = 0
    for values, (conversation, turn) in zip(requests.values, places, strict=True):
        said = conversations.get(conversation, turn)
        if said is None or values["error"]:
            continue
        values["model"] = said.model
        if not said.whole:
            without_replies += 1
            continue
        known += 1
        if isinstance(said.prompt, Rendered):
            values["prompt_text"] = said.prompt.text
            requests.prompts.append(said.prompt)
        else:
            values["prompt_ids"] = said.prompt
    notes = [f"prompts of {known:,} of {len(requests):,} requests come from inputs.json"]
    if without_replies:
        notes.append(
            f"{without_replies:,} requests are later turns whose prompts contain replies that AIPerf does not record:"
            " their lengths are known, their text and what they share with earlier turns is not, so that hit rates are"
            " lower bounds"
        )
    return notes


def _matches(record: Mapping[str, Any]) -> bool:
    return "metrics" in record and "request_start_ns" in mapping(record.get("metadata"))


FORMATS = (
    Format("aiperf", "AIPerf profile export", _matches, read, arrivals_by_tool=True),
    Format("aiperf-inputs", "AIPerf inputs", aiperf_inputs.matches, read),
)
_ADVICE = "aggregates only; give the profile_export.jsonl that AIPerf writes beside it"
REFUSALS = (
    Refusal(
        "AIPerf summary",
        all_of(has("request_latency"), any_of(has("schema_version"), has("aiperf_version"))),
        _ADVICE,
    ),
    Refusal("AIPerf CSV", has("Metric", "avg"), _ADVICE, kind="table"),
)

"""Helicone's export of requests (JSON, JSON lines or CSV): times ISO-8601, durations in ms, bodies optional."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import EMBEDDINGS, Calls
from inferdoc.traces.formats.format import Format, all_of, has, has_any
from inferdoc.traces.formats.logged_bodies import output_text, prompt_text, usage_of
from inferdoc.traces.formats.values import decoded, first, positive
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

_SESSION = "helicone-session-id"
_NAMES = {
    "arrival": "request_created_at",
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "e2e_s": "delay_ms",
    "ttft_s": "time_to_first_token",
    "status": "response_status",
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    for line, record in records:
        request = decoded(record.get("request_body"))
        if "embed" in str(first(record, "request_model", "response_model", "request_path")).lower():
            calls.leave_out(line, EMBEDDINGS)
            continue
        calls.add(line, _row(record, request, line), identity=record.get("request_id"))
    return calls.draft("helicone", _NAMES, units={"e2e_s": "ms", "ttft_s": "ms"})


def _row(record: Mapping[str, Any], request: Any, line: int) -> dict[str, Any]:
    response = decoded(record.get("response_body"))
    counts = {
        "input_tokens": record.get("prompt_tokens"),
        "output_tokens": record.get("completion_tokens"),
        "cached_tokens": record.get("prompt_cache_read_tokens"),
    }
    return {
        "arrival": record.get("request_created_at"),
        "e2e_s": positive(record.get("delay_ms")),
        "ttft_s": positive(first(record, "time_to_first_token", "time_to_first_token_ms")),
        "status": record.get("response_status"),
        "model": first(record, "response_model", "request_model", "model"),
        "session": _session(decoded(first(record, "request_properties", "properties"))),
        "prompt_text": prompt_text(request, line=line) if isinstance(request, Mapping) else None,
        "output_text": output_text(response, line=line) if isinstance(response, Mapping) else None,
        **({} if counts["input_tokens"] is not None else usage_of(response)),
        **{role: value for role, value in counts.items() if value is not None},
    }


def _session(properties: Any) -> Any:
    if not isinstance(properties, Mapping):
        return None
    return next((value for name, value in properties.items() if str(name).lower() == _SESSION), None)


FORMAT = Format(
    "helicone",
    "Helicone export",
    all_of(has("request_created_at", "response_status"), has_any("delay_ms", "request_model")),
    read,
    also_tables=True,
)

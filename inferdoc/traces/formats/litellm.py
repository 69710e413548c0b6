"""LiteLLM's logs: ``StandardLoggingPayload`` objects, and rows of the table ``LiteLLM_SpendLogs`` (JSON or CSV).

The payload's times are epoch seconds, the table's ISO-8601. ``completionStartTime`` is the first chunk of a streamed
answer and equals ``endTime`` otherwise. ``prompt_tokens`` includes cached tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import EMBEDDINGS, Calls
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.formats.logged_bodies import output_text, prompt_text
from inferdoc.traces.formats.values import at, decoded, elapsed_s, first, instant, whole
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

FROM_CACHE = "answered from the gateway's cache: no load on an engine"
UNCOUNTED = "rows that say success but have neither tokens nor texts"
HEALTH = "health checks"
_OTHER_CALLS = (
    "embedding", "image", "speech", "transcription", "moderation", "rerank", "health", "file", "batch", "search", "ocr",
    "video",
)  # fmt: skip
_REDACTED = "redacted-by-litellm"
_NAMES = {
    "arrival": "startTime",
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "ttft_s": "completionStartTime - startTime",
    "e2e_s": "endTime - startTime",
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    retried = 0
    for line, record in records:
        reason = _reason(record)
        if reason is not None:
            calls.leave_out(line, reason)
            continue
        row = _row(record, line)
        retried += row["status"] == "error"
        if row["status"] != "error" and not whole(row["output_tokens"]) and not row["output_text"]:
            calls.leave_out(line, UNCOUNTED)
        else:
            calls.add(line, row, identity=first(record, "id", "request_id"))
    if retried:
        calls.notes.append(f"{retried:,} failed rows: a retry or a fallback is a row of its own")
    calls.only_shared_sessions("session or trace id")
    return calls.draft("litellm", _NAMES)


def _reason(record: Mapping[str, Any]) -> str | None:
    """Why a row is no request to an engine."""
    if any(part in str(record.get("call_type")).lower() for part in _OTHER_CALLS):
        return EMBEDDINGS
    if str(record.get("cache_hit")).lower() == "true":
        return FROM_CACHE
    tags = [record.get("request_tags"), at(decoded(record.get("metadata")), "tags")]
    return HEALTH if any("health" in str(tag).lower() for tag in tags if tag) else None


def _row(record: Mapping[str, Any], line: int) -> dict[str, Any]:
    start, end, begun = (record.get(name) for name in ("startTime", "endTime", "completionStartTime"))
    failed = str(record.get("status")).lower() in ("failure", "failed", "error") or bool(record.get("error_str"))
    response = decoded(record.get("response"))
    metadata = decoded(record.get("metadata"))
    usages = (at(response, "usage"), at(metadata, "usage_object"))
    cached = [at(usage, "prompt_tokens_details", "cached_tokens") for usage in usages]
    cached += [at(usage, "cache_read_input_tokens") for usage in usages]
    messages = record.get("messages")
    kept = messages not in (None, "", "{}", {}) and _REDACTED not in str(messages)
    return {
        "arrival": start,
        "input_tokens": record.get("prompt_tokens"),
        "output_tokens": record.get("completion_tokens"),
        "cached_tokens": next((count for count in cached if count is not None), None),
        "e2e_s": elapsed_s(start, end),
        "ttft_s": None if instant(begun) == instant(end) else elapsed_s(start, begun),
        "model": record.get("model"),
        "session": first(record, "session_id", "trace_id"),
        "status": "error" if failed else "ok",
        "prompt_text": prompt_text(messages, line=line) if kept else None,
        "output_text": output_text(response, line=line) if kept and response else None,
    }


FORMAT = Format(
    "litellm", "LiteLLM log", has("call_type", "startTime", "endTime", "prompt_tokens"), read, also_tables=True
)

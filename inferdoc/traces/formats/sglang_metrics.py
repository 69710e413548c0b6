"""SGLang's request metrics (``--export-metrics-to-file``): a JSON line for each finished request.

The line has what the engine tells of a request (``meta_info``) beside the request's parameters as a JSON string; keys
vary with the version. Times are epoch seconds, durations seconds; prompt tokens include cached ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import EMBEDDINGS, Calls
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.formats.values import at, decoded, elapsed_s, first, instant, positive
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

HEALTH = "health checks"
_HEALTH = "HEALTH_CHECK"
_CUT = " ... "
_CUT_AT = 1024
"""Where the log's level 2 cuts a text, which keeps 1,024 characters from either end."""
NAMES = {
    "arrival": "request_received_ts",
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "e2e_s": "e2e_latency",
    "queue_s": "queue_time",
    "ttft_s": "time to the first token",
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    derived = 0
    for line, record in records:
        reason = unusable(record)
        if reason is not None:
            calls.leave_out(line, reason)
            continue
        row = row_of(record)
        derived += record.get("request_received_ts") is None and row["arrival"] is not None
        parameters = decoded(record.get("request_parameters"))
        row |= prompt_of(parameters if isinstance(parameters, Mapping) else {})
        calls.add(line, row, identity=record.get("id"))
    if derived:
        calls.notes.append(f"arrivals of {derived:,} calls are the time of the response less e2e_latency")
    return calls.draft("sglang-metrics", NAMES, units={"arrival": "ns"})


def unusable(meta: Mapping[str, Any]) -> str | None:
    """Why what the engine tells of a request is no request of a user."""
    if str(meta.get("id", "")).startswith(_HEALTH):
        return HEALTH
    return EMBEDDINGS if "completion_tokens" not in meta and "e2e_latency" in meta else None


def row_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine tells of a request, by role; `arrival` in epoch ns."""
    received, latency = instant(meta.get("request_received_ts")), meta.get("e2e_latency")
    sent = instant(first(meta, "response_sent_to_client_ts", "request_finished_ts"))
    if received is None and sent is not None and isinstance(latency, int | float):
        received = sent - round(latency * 1e9)
    first_token = positive(first(meta, "ttft", "time_to_first_token", "first_token_latency"))
    if first_token is None:
        first_token = elapsed_s(meta.get("request_received_ts"), meta.get("prefill_finished_ts"))
    return {
        "arrival": received,
        "input_tokens": meta.get("prompt_tokens"),
        "output_tokens": meta.get("completion_tokens"),
        "cached_tokens": meta.get("cached_tokens"),
        "e2e_s": positive(latency),
        "queue_s": positive(meta.get("queue_time")),
        "ttft_s": first_token,
        "status": "aborted" if _finish(meta.get("finish_reason")) == "abort" else "ok",
    }


def prompt_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Text and token ids of a request's prompt, where the log has all of them."""
    ids, text = parameters.get("input_ids"), parameters.get("text")
    whole_ids = isinstance(ids, list) and bool(ids) and all(type(token) is int and 0 <= token < 2**31 for token in ids)
    whole_text = isinstance(text, str) and bool(text) and text[_CUT_AT : _CUT_AT + len(_CUT)] != _CUT
    return {"prompt_ids": ids if whole_ids else None, "prompt_text": text if whole_text else None}


def _finish(reason: Any) -> Any:
    reason = decoded(reason)
    return at(reason, "type") if isinstance(reason, Mapping) else reason


FORMAT = Format(
    "sglang-metrics", "SGLang request metrics", has("request_parameters", "prompt_tokens", "e2e_latency"), read
)

"""OpenRouter's generation records (JSON or CSV), one a call.

``tokens_*`` are counted with one tokenizer for all models, ``native_tokens_*`` with the model's own: the native counts
are used. ``latency`` is the time to the first token, ``generation_time`` what follows it, both in ms.
Source: https://openrouter.ai/docs/api-reference/get-a-generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.format import Format, Keys, Refusal, any_of, has, list_with
from inferdoc.traces.formats.values import first, positive
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

_NAMES = {
    "arrival": "created_at",
    "input_tokens": "native_tokens_prompt",
    "output_tokens": "native_tokens_completion",
    "cached_tokens": "native_tokens_cached",
    "ttft_s": "latency",
    "e2e_s": "latency + generation_time",
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    other_tokenizer = 0
    for line, found in records:
        inner = found.get("data")
        record = inner if isinstance(inner, Mapping) else found
        native = record.get("native_tokens_prompt") is not None
        other_tokenizer += not native
        calls.add(line, _row(record), identity=record.get("id"))
    if other_tokenizer:
        calls.notes.append(
            f"{other_tokenizer:,} calls have no native token counts: those of OpenRouter's common tokenizer are used"
        )
    calls.notes.append("latency is read as the time to the first token, and generation_time as what follows it")
    return calls.draft("openrouter", _NAMES, units={"ttft_s": "ms", "e2e_s": "ms"})


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    latency, generation = record.get("latency"), record.get("generation_time")
    cancelled = str(record.get("cancelled")).lower() == "true"
    failed = str(record.get("finish_reason")).lower() == "error"
    return {
        "arrival": record.get("created_at"),
        "input_tokens": first(record, "native_tokens_prompt", "tokens_prompt"),
        "output_tokens": first(record, "native_tokens_completion", "tokens_completion"),
        "cached_tokens": record.get("native_tokens_cached"),
        "ttft_s": positive(latency),
        "e2e_s": _sum(latency, generation),
        "model": record.get("model"),
        "session": record.get("session_id"),
        "status": "cancelled" if cancelled else "error" if failed else "ok",
    }


def _sum(latency: Any, generation: Any) -> Any:
    """Both together; one of them that is no number is passed on, so that it is found."""
    if latency is None or generation is None:
        return None
    try:
        return positive(float(latency) + float(generation))
    except (TypeError, ValueError):
        return f"{latency} + {generation}"


def _in_data(record: Keys) -> bool:
    return isinstance(record.get("data"), Mapping) and "native_tokens_prompt" in record["data"]


_AGGREGATES = has("model_permaslug", "requests")
_ADVICE = "aggregated by day and model; collect the generation records (GET /api/v1/generation?id=...) of each call"
FORMAT = Format(
    "openrouter",
    "OpenRouter generations",
    any_of(has("native_tokens_prompt"), has("tokens_prompt", "generation_time"), _in_data),
    read,
    also_tables=True,
)
REFUSALS: tuple[Refusal, ...] = (
    Refusal("OpenRouter activity", any_of(_AGGREGATES, list_with("data", "model_permaslug", "requests")), _ADVICE),
    Refusal("OpenRouter activity", _AGGREGATES, _ADVICE, kind="table"),
)

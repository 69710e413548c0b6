"""Databricks inference tables (rows of Delta or Parquet, JSON or CSV): bodies as JSON strings.

Two layouts: ``request_time`` and ``execution_duration_ms``, and the older ``timestamp_ms`` and ``execution_time_ms``.
A call for several prompts is one row. With a ``sampling_fraction`` below 1 only that share of the calls is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import EMBEDDINGS, Calls
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.formats.logged_bodies import output_text, prompt_text, usage_of
from inferdoc.traces.formats.values import at, decoded, first, positive
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

SEVERAL_PROMPTS = "calls for several prompts in one row: their lengths are only known together"
_NAMES = {
    "arrival": "request_time",
    "input_tokens": "usage.prompt_tokens",
    "output_tokens": "usage.completion_tokens",
    "e2e_s": "execution_duration_ms",
    "status": "status_code",
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    fractions: set[float] = set()
    for line, record in records:
        fractions |= _fraction(record.get("sampling_fraction"))
        request, response = decoded(record.get("request")), decoded(record.get("response"))
        if _is_embedding(request, response):
            calls.leave_out(line, EMBEDDINGS)
            continue
        if any(_is_batch(at(request, name)) for name in ("prompt", "inputs", "dataframe_records")):
            calls.leave_out(line, SEVERAL_PROMPTS)
            continue
        calls.add(line, _row(record, request, response, line), identity=record.get("databricks_request_id"))
    sampled = sorted(fraction for fraction in fractions if fraction < 1)
    if sampled:
        shown = f"{sampled[0]:g}" if len(fractions) == 1 else f"{sampled[0]:g} to {max(fractions):g}"
        calls.notes.append(
            f"the table is a sample (sampling_fraction {shown}): divide rates by it, and expect less reuse of prefixes"
            " and sessions with gaps"
        )
    units = {"e2e_s": "ms"}
    if all(row["arrival_is_ms"] for row in calls.rows):
        units["arrival"] = "ms"
    for row in calls.rows:
        del row["arrival_is_ms"]
    return calls.draft("databricks", _NAMES, units=units)


def _row(record: Mapping[str, Any], request: Any, response: Any, line: int) -> dict[str, Any]:
    return {
        "arrival": first(record, "request_time", "timestamp_ms"),
        "arrival_is_ms": record.get("request_time") is None and record.get("timestamp_ms") is not None,
        "e2e_s": positive(first(record, "execution_duration_ms", "execution_time_ms")),
        "status": record.get("status_code"),
        "model": at(response, "model") or record.get("served_entity_id"),
        "prompt_text": prompt_text(request, line=line) if isinstance(request, Mapping) else None,
        "output_text": output_text(response, line=line) if isinstance(response, Mapping) else None,
        **usage_of(response),
    }


def _is_embedding(request: Any, response: Any) -> bool:
    answers = at(response, "data")
    with_vectors = isinstance(answers, list) and bool(answers) and at(answers[0], "embedding") is not None
    return with_vectors or (
        isinstance(request, Mapping) and "input" in request and "embed" in str(at(response, "model"))
    )


def _is_batch(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1


def _fraction(value: Any) -> set[float]:
    try:
        return {float(value)} if value is not None else set()
    except (TypeError, ValueError):
        return set()


FORMAT = Format("databricks", "Databricks inference table", has("databricks_request_id"), read, also_tables=True)

"""LangSmith's export of runs (JSON, JSON lines or CSV): runs of type ``llm`` are calls, times ISO-8601 in UTC.

``session_id`` is the project, not a session: sessions are threads, which stand in the metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.format import Format, all_of, has, has_any
from inferdoc.traces.formats.logged_bodies import output_text, prompt_text
from inferdoc.traces.formats.values import at, decoded, elapsed_s, first, instant
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

OTHER_RUNS = "runs that are no model calls (chains, tools, retrievers, parsers)"
NESTED = "the same call again: a run that encloses another model call"
_THREADS = ("thread_id", "session_id", "conversation_id")
_NAMES = {
    "arrival": "start_time",
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "ttft_s": "first_token_time - start_time",
    "e2e_s": "end_time - start_time",
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    runs = list(records)
    found = {str(run["id"]): run for _, run in runs if run.get("id") is not None}
    enclosing = {outer for _, run in runs if _is_call(run) and (outer := _encloses(run, found)) is not None}
    for line, run in runs:
        if not _is_call(run):
            calls.leave_out(line, OTHER_RUNS)
        elif str(run.get("id")) in enclosing:
            calls.leave_out(line, NESTED)
        else:
            calls.add(line, _row(run, line), identity=run.get("id"))
    calls.only_shared_sessions("thread or trace id")
    return calls.draft("langsmith", _NAMES)


def _is_call(run: Mapping[str, Any]) -> bool:
    return str(run.get("run_type")).lower() == "llm"


def _encloses(run: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The nearest model call among a run's ancestors that goes on while the run starts."""
    start, seen, current = instant(run.get("start_time")), {str(run.get("id"))}, run
    while (parent := current.get("parent_run_id")) is not None and str(parent) in found and str(parent) not in seen:
        seen.add(str(parent))
        current = found[str(parent)]
        end = instant(current.get("end_time"))
        if _is_call(current) and (start is None or end is None or start < end):
            return str(parent)
    return None


def _row(run: Mapping[str, Any], line: int) -> dict[str, Any]:
    inputs, outputs = decoded(run.get("inputs")), decoded(run.get("outputs"))
    metadata = at(decoded(run.get("extra")), "metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    usage = first({"run": run.get("usage_metadata"), "outputs": at(outputs, "usage_metadata")}, "run", "outputs")
    cached = at(usage, "input_token_details", "cache_read")
    if cached is None:
        cached = at(decoded(run.get("prompt_token_details")), "cache_read")
    failed = bool(run.get("error")) or str(run.get("status")).lower() == "error"
    return {
        "arrival": run.get("start_time"),
        "input_tokens": first({"run": run.get("prompt_tokens"), "usage": at(usage, "input_tokens")}, "run", "usage"),
        "output_tokens": first(
            {"run": run.get("completion_tokens"), "usage": at(usage, "output_tokens")}, "run", "usage"
        ),
        "cached_tokens": cached,
        "ttft_s": elapsed_s(run.get("start_time"), run.get("first_token_time")),
        "e2e_s": elapsed_s(run.get("start_time"), run.get("end_time")),
        "model": first(metadata, "ls_model_name", "model_name"),
        "session": first(metadata, *_THREADS) or run.get("thread_id") or run.get("trace_id"),
        "status": "error" if failed else "ok",
        "prompt_text": prompt_text(inputs, line=line) if isinstance(inputs, Mapping) else None,
        "output_text": output_text(outputs, line=line) if isinstance(outputs, Mapping) else None,
    }


FORMAT = Format(
    "langsmith",
    "LangSmith runs",
    all_of(
        has("run_type", "start_time"), has_any("trace_id", "parent_run_id", "dotted_order", "inputs", "prompt_tokens")
    ),
    read,
    also_tables=True,
)

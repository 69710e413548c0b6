"""Langfuse exports: ``{"trace", "observations"}``, lists of observations from the API, or their rows (JSON or CSV).

Only observations of type GENERATION are calls. ``usageDetails`` has buckets with free names that are meant to exclude
each other; exporters that write the whole prompt under ``input`` beside the cached part of it show by their total.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.format import Format, any_of, has, list_with
from inferdoc.traces.formats.logged_bodies import output_text, prompt_text
from inferdoc.traces.formats.values import at, decoded, elapsed_s, first, instant, positive, whole
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record

OTHER_TYPES = "observations that are no generations (agents, spans, tools, events)"
NESTED = "the same call again: a generation that encloses another one"
_READS = ("cache_read", "cached")
_WRITES = ("cache_creation", "cache_write")
_NAMES = {
    "arrival": "startTime",
    "input_tokens": "usageDetails.input",
    "output_tokens": "usageDetails.output",
    "cached_tokens": "usageDetails, cached part",
    "ttft_s": "timeToFirstToken",
    "e2e_s": "latency",
}
Observation = tuple[int, Mapping[str, Any], Mapping[str, Any]]
"""Line, observation, and the trace that it is exported with."""


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    everything = list(_observations(records, ledger))
    found = {_key(observation): observation for _, observation, _ in everything}
    enclosing = {
        outer for _, one, _ in everything if _is_generation(one) and (outer := _encloses(one, found)) is not None
    }
    inclusive = on_top = 0
    for line, observation, trace in everything:
        if not _is_generation(observation):
            calls.leave_out(line, OTHER_TYPES)
            continue
        if _key(observation) in enclosing:
            calls.leave_out(line, NESTED)
            continue
        try:
            counts, cached_inside = _counts(observation)
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        inclusive += cached_inside is True
        on_top += cached_inside is False
        calls.add(
            line, _row(observation, trace, line) | counts, identity=observation.get("id") and list(_key(observation))
        )
    if inclusive:
        calls.notes.append(f"cached tokens of {inclusive:,} calls are a part of usageDetails.input, as its total shows")
    if on_top:
        calls.notes.append(
            f"cached tokens of {on_top:,} calls are added to usageDetails.input: Langfuse's buckets exclude each other"
        )
    calls.only_shared_sessions("session or trace id")
    return calls.draft("langfuse", _NAMES)


def _observations(records: Iterable[Record], ledger: Ledger) -> Iterator[Observation]:
    for line, record in records:
        inner = first(record, "observations", "data")
        trace = record.get("trace")
        for observation in inner if isinstance(inner, list) else [record]:
            if isinstance(observation, Mapping):
                yield line, observation, trace if isinstance(trace, Mapping) else {}
            else:
                ledger.refuse(line, "an observation is not an object", "observations of another form")


def _key(observation: Mapping[str, Any]) -> tuple[str, str]:
    return str(first(observation, "traceId", "trace_id")), str(observation.get("id"))


def _is_generation(observation: Mapping[str, Any]) -> bool:
    return str(observation.get("type")).upper() == "GENERATION"


def _encloses(
    observation: Mapping[str, Any], found: Mapping[tuple[str, str], Mapping[str, Any]]
) -> tuple[str, str] | None:
    """The nearest generation among an observation's ancestors that runs while it starts."""
    key, seen = _key(observation), {_key(observation)}
    start = instant(_start(observation))
    while True:
        parent = first(found[key], "parentObservationId", "parent_observation_id")
        key = (key[0], str(parent))
        if parent is None or key not in found or key in seen:
            return None
        seen.add(key)
        end = instant(_end(found[key]))
        if _is_generation(found[key]) and (start is None or end is None or start < end):
            return key


def _start(observation: Mapping[str, Any]) -> Any:
    return first(observation, "startTime", "start_time")


def _end(observation: Mapping[str, Any]) -> Any:
    return first(observation, "endTime", "end_time")


def _row(observation: Mapping[str, Any], trace: Mapping[str, Any], line: int) -> dict[str, Any]:
    start = _start(observation)
    first_token = positive(first(observation, "timeToFirstToken", "time_to_first_token"))
    if first_token is None:
        first_token = elapsed_s(start, first(observation, "completionStartTime", "completion_start_time"))
    tools = decoded(first(observation, "toolDefinitions", "tool_definitions"))
    return {
        "arrival": start,
        "ttft_s": first_token,
        "e2e_s": elapsed_s(start, _end(observation)) or positive(observation.get("latency")),
        "model": first(observation, "model", "providedModelName"),
        "session": first(observation, "sessionId", "session_id")
        or trace.get("sessionId")
        or first(observation, "traceId", "trace_id"),
        "status": "error" if str(observation.get("level")).upper() == "ERROR" else "ok",
        "prompt_text": prompt_text(observation.get("input"), line=line, tools=tools),
        "output_text": output_text(observation.get("output"), line=line),
    }


def _counts(observation: Mapping[str, Any]) -> tuple[dict[str, Any], bool | None]:
    """Token counts of the whole prompt and of the answer; whether the cached ones lie inside ``input``, ``None``
    without cached tokens.

    Raises:
        RowError: a count that is no whole number, beside cached tokens to add to it.
    """
    usage = decoded(first(observation, "usageDetails", "usage_details"))
    usage = usage if isinstance(usage, Mapping) else {}
    older = decoded(observation.get("usage"))
    given = first(usage, "input", "prompt_tokens", "input_tokens")
    answer = first(usage, "output", "completion_tokens", "output_tokens")
    if given is None:
        given = first(observation, "inputUsage", "promptTokens") or at(older, "input")
    if answer is None:
        answer = first(observation, "outputUsage", "completionTokens") or at(older, "output")
    read, written = (_bucket(usage, parts) for parts in (_READS, _WRITES))
    counts = {"input_tokens": given, "output_tokens": answer}
    if read is None and not written:
        return counts, None
    plain, out = whole(given), whole(answer)
    if plain is None or plain < 0:
        raise RowError(
            f"usageDetails.input is {shown.value(given)}: expected a whole number, not negative",
            "usageDetails.input is not a whole number",
        )
    cached = read or 0
    total = whole(first(usage, "total", "total_tokens"))
    inside = cached <= plain and out is not None and total == plain + out
    whole_prompt = plain if inside else plain + cached + (written or 0)
    counts |= {"input_tokens": whole_prompt, "cached_tokens": read}
    return counts, inside if cached or written else None


def _bucket(usage: Mapping[str, Any], parts: tuple[str, ...]) -> int | None:
    """The count of the first input bucket whose name has one of `parts`."""
    for name, value in usage.items():
        if any(part in name for part in parts) and "output" not in name and (count := whole(value)) is not None:
            return count
    return None


FORMAT = Format(
    "langfuse",
    "Langfuse export",
    any_of(
        has("trace", "observations"),
        has("type", "usageDetails"),
        has("type", "usage_details"),
        list_with("data", "type", "traceId", "usageDetails"),
    ),
    read,
    also_tables=True,
)

"""inference-perf ``per_request_lifecycle_metrics.json``: an array, one object a request, s of a monotonic clock.

``info`` held ``input_tokens``, ``output_tokens`` and ``output_token_times`` itself; since then they stand in
``request_metrics.text`` and ``response_metrics`` (inference_perf/apis/base.py). The server's usage comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.bodies import asked, decoded, usage_of
from inferdoc.traces.formats.format import Format, Refusal, has
from inferdoc.traces.formats.requests import Requests, difference_note, gaps, mapping, number, numbers
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered
from inferdoc.traces.records import Record

_NAMES = {"arrival": "start_time", "input_tokens": "input_tokens", "output_tokens": "output_tokens"}
_SIDES = ("input_tokens", "output_tokens")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    requests = Requests("inference-perf", ledger)
    counts: dict[str, list[tuple[Any, Any]]] = {side: [] for side in _SIDES}
    for line, record in records:
        info = mapping(record.get("info"))
        client, server = _client(info), usage_of({"usage": mapping(info.get("response_metrics")).get("server_usage")})
        try:
            values, prompt = _values(record, info, client, server, len(requests) + 1)
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        requests.add(line, values, prompt)
        for side in _SIDES:
            counts[side].append((server[side], client[side]))
    notes = [
        note
        for side, pairs in counts.items()
        for note in difference_note(
            f"{side.removesuffix('_tokens')} lengths", "the server's usage", "inference-perf's tokenizer", pairs
        )
    ]
    return requests.draft(names=_NAMES, units={"arrival": "s"}, notes=[*notes, *requests.chunk_notes()])


def _client(info: Mapping[str, Any]) -> dict[str, Any]:
    asked_for, answered = mapping(info.get("request_metrics")), mapping(info.get("response_metrics"))
    return {
        "input_tokens": mapping(asked_for.get("text")).get("input_tokens", info.get("input_tokens")),
        "output_tokens": answered.get("output_tokens", info.get("output_tokens")),
    }


def _values(
    record: Mapping[str, Any], info: Mapping[str, Any], client: Mapping[str, Any], server: Mapping[str, Any], row: int
) -> tuple[dict[str, Any], Rendered | None]:
    failure = record.get("error")
    values: dict[str, Any] = {"arrival": record.get("start_time"), "error": None if failure is None else "failed"}
    if failure is not None:
        return values, None
    # Without a usage of the server, cached tokens would be set against another tokenizer's count.
    for side in _SIDES:
        values[side] = server[side] or client[side]
    values["cached_tokens"] = server["cached_tokens"] if server["input_tokens"] else None
    start, end = number(record.get("start_time"), "start_time"), number(record.get("end_time"), "end_time")
    response = mapping(info.get("response_metrics"))
    times = numbers(response.get("output_token_times", info.get("output_token_times")), "output_token_times")
    if start is not None and end is not None:
        values["e2e_s"] = gaps([start, end], "end_time")[0]
    if times:
        values["itl_s"] = gaps(times, "output_token_times")
        if start is not None:
            values["ttft_s"] = gaps([start, times[0]], "output_token_times")[0]
    body = decoded(record.get("request"), "request")
    told, prompt = asked(body, row) if body is not None else ({}, None)
    return values | told, prompt


FORMAT = Format(
    "inference-perf",
    "inference-perf requests",
    has("start_time", "end_time", "request", "response", "info"),
    read,
    arrivals_by_tool=True,
)
REFUSALS = (
    Refusal(
        "inference-perf summary",
        has("load_summary", "successes"),
        "aggregates only; set report.request_lifecycle.per_request: true and give per_request_lifecycle_metrics.json",
    ),
)

"""GuideLLM ``benchmarks.json``, schema of 0.3 and of 0.8: several benchmarks in one file, each a run of its own.

Requests stand in ``requests.successful``, ``errored`` and ``incomplete``. Epoch times and latencies in s, ``*_ms`` in
ms. ``time_per_output_token_ms`` and ``inter_token_latency_ms`` are means of a request, so `itl_s` is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.errors import TraceError
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.bodies import asked, decoded
from inferdoc.traces.formats.format import Format, Refusal, has, list_with
from inferdoc.traces.formats.requests import Requests, mapping, measured
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered
from inferdoc.traces.records import Record

_NAMES = {
    "arrival": "request_start_time",
    "input_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "ttft_s": "time_to_first_token_ms",
    "e2e_s": "request_latency",
    "session": "conversation_id",
    "turn": "turn_index",
}
_KINDS = ("successful", "errored", "incomplete")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    """Every sampled request.

    Raises:
        TraceError: a report without samples of requests.
    """
    requests = Requests("guidellm", ledger)
    notes: list[str] = []
    incomplete: list[int] = []
    ran = run = samples = 0
    for line, record in records:
        benchmarks = record.get("benchmarks")
        for benchmark in benchmarks if isinstance(benchmarks, list) else [None]:
            lists = mapping(mapping(benchmark).get("requests"))
            samples_of = {kind: lists.get(kind) or [] for kind in _KINDS}
            if not lists or not all(isinstance(requests_of, list) for requests_of in samples_of.values()):
                ledger.refuse(line, "a benchmark without lists of requests", "a benchmark without lists of requests")
                continue
            made, found = _made(mapping(benchmark)), 0
            for kind, requests_of in samples_of.items():
                for request in requests_of:
                    found += 1
                    if kind == "incomplete":
                        incomplete.append(line)
                    else:
                        _add(requests, line, request, kind, run, ledger)
            run += 1
            ran += made or 0
            samples += found
            if made is not None and found < made:
                notes.append(
                    f"run {run}: the report holds {found:,} of the {made:,} requests that ran; times between arrivals"
                    " are those of the sample"
                )
    ledger.leave_out(incomplete, "incomplete requests: cut off at the end of the run")
    if run and not samples:
        raise TraceError(
            f"is a GuideLLM report with no samples of its requests ({ran:,} ran); run the benchmark again without"
            " --sample-requests 0 (older: --output-sampling), so that each request is saved",
            where=ledger.where,
        )
    notes.append("GuideLLM gives only the mean time between tokens of a request: itl_s is absent")
    return requests.draft(names=_NAMES, units={"arrival": "s"}, notes=notes)


def _made(benchmark: Mapping[str, Any]) -> int | None:
    """Requests that ran, by the scheduler's count."""
    for place in ("scheduler_metrics", "run_stats"):
        made = mapping(mapping(benchmark.get(place)).get("requests_made")).get("total")
        if isinstance(made, int):
            return made
    return None


def _add(requests: Requests, line: int, request: Any, kind: str, run: int, ledger: Ledger) -> None:
    try:
        if not isinstance(request, Mapping):
            raise RowError("a request that is no object", "a request that is no object")
        values, prompt = _values(request, kind, len(requests) + 1)
    except RowError as error:
        ledger.refuse(line, str(error), error.reason)
        return
    requests.add(line, values | {"segment": run}, prompt)


def _values(request: Mapping[str, Any], kind: str, row: int) -> tuple[dict[str, Any], Rendered | None]:
    info = mapping(request.get("info"))
    arrival = request.get("request_start_time")
    if arrival is None:  # 0.3
        arrival = request.get("start_time", mapping(request.get("scheduler_info")).get("request_start"))
    cached = request.get("cached_tokens")
    if cached is None:
        cached = mapping(request.get("input_metrics")).get("cached_tokens")
    turn = info.get("turn_index")
    values = {
        "arrival": arrival,
        "input_tokens": request.get("prompt_tokens"),
        "output_tokens": request.get("output_tokens"),
        "cached_tokens": cached,
        "session": info.get("conversation_id"),
        "turn": turn + 1 if isinstance(turn, int) else turn,
        "error": kind if kind != "successful" else None,
    }
    if kind != "successful":
        return values, None
    ttft = measured(request.get("time_to_first_token_ms"), "time_to_first_token_ms")
    values |= {
        "output_text": request.get("output"),
        "ttft_s": None if ttft is None else ttft / 1e3,
        "e2e_s": measured(request.get("request_latency"), "request_latency"),
    }
    arguments = decoded(request.get("request_args"), "request_args")
    body = mapping(arguments).get("body", arguments)
    if isinstance(body, Mapping):
        told, prompt = asked(body, row)
        return values | told, prompt
    given = request.get("prompt")
    return values, Rendered(given) if isinstance(given, str) else None


FORMAT = Format("guidellm", "GuideLLM benchmarks", list_with("benchmarks", "requests"), read, arrivals_by_tool=True)
REFUSALS = (
    Refusal(
        "GuideLLM CSV",
        has("Run Info"),
        "aggregates only (three header rows); give the benchmarks.json of the run (--output-path benchmarks.json)",
        kind="table",
    ),
)

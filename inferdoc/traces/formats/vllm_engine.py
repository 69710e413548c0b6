"""Requests that a vLLM engine timed (``requests.jsonl`` of LLMServingSim's benchmark).

``arrival_time`` is epoch seconds of the client's side, the ``*_ts`` are seconds of the engine's monotonic clock. All
times are of the monotonic clock, so that they add up: arrival = queued, queue = scheduled - queued, TTFT = first token
- queued, end to end = last token - queued. ``arrival_time`` is used only where no row has ``queued_ts``.
Format: https://github.com/casys-kaist/LLMServingSim (bench).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import polars as pl

from inferdoc.traces import shown
from inferdoc.traces.columns import parse_times
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.fields import gather
from inferdoc.traces.formats.format import Format, Refusal, any_of, has
from inferdoc.traces.formats.headers import header_has
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

_ARRIVAL = "arrival_time"
_FIELDS = {"arrival": "queued_ts", "input_tokens": "input_toks", "output_tokens": "output_toks"}
_STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_SPANS = {"queue_s": "scheduled_ts", "ttft_s": "first_token_ts", "e2e_s": "last_token_ts"}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    fields = gather(records, list(dict.fromkeys([_ARRIVAL, *_FIELDS.values(), *_STAMPS])), {}, ledger)
    good = pl.Series([True], dtype=pl.Boolean).new_from_index(0, len(fields.lines))
    times: dict[str, pl.Series] = {}
    for name in (_ARRIVAL, *_STAMPS):
        parsed, cells = parse_times(fields.cells[name], "s"), fields.cells[name]

        def unreadable(at: int, name: str = name, cells: pl.Series = cells) -> str:
            return f"{name} is {shown.value(cells[at])}: expected a time in s"

        ledger.refuse_where(parsed.bad & good, fields.lines, unreadable, f"{name} is not a time in s")
        good = good & ~parsed.bad
        times[name] = parsed.values
    for earlier, later in pairwise(_STAMPS):
        backwards = (times[later] < times[earlier]).fill_null(False)
        message = f"{later} is before {earlier}"

        def wrong_order(_: int, message: str = message) -> str:
            return message

        ledger.refuse_where(backwards & good, fields.lines, wrong_order, message)
        good = good & ~backwards
    spans = {role: ((times[name] - times["queued_ts"]) / 1e9).filter(good) for role, name in _SPANS.items()}
    queued = times["queued_ts"].filter(good)
    names = _FIELDS if queued.null_count() < len(queued) else _FIELDS | {"arrival": _ARRIVAL}
    return Draft(
        format="vllm-engine",
        lines=fields.lines.filter(good),
        cells={role: fields.cells[name].filter(good) for role, name in names.items()},
        names=dict(names),
        units={"arrival": "s"},
        ready=spans,
        notes=[
            "queue, first token and end are measured in the engine, from the moment a request was queued there",
            *_clock_notes(times[_ARRIVAL].filter(good), queued),
        ],
    )


def _clock_notes(arrived: pl.Series, queued: pl.Series) -> list[str]:
    """Which clock arrivals are of, and how far the other one is from it."""
    if queued.null_count() == len(queued):
        return ["no request has queued_ts: arrivals are arrival_time"] if len(queued) else []
    known = (arrived - queued).drop_nulls()
    if not len(known):
        return ["arrivals are queued_ts"]
    most = (known - known[0]).abs().max()
    return [
        "arrivals are queued_ts, of the clock of the other times; arrival_time, of another clock, differs from it by up"
        f" to {float(most) / 1e9:.2g} s, counted from the first request"
    ]


FORMAT = Format("vllm-engine", "vLLM engine dump", has("queued_ts", "first_token_ts", "last_token_ts"), read)
REFUSALS = (
    Refusal(
        "a table of engine gauges over time",
        header_has("prompt_throughput", "running", "waiting"),
        "aggregates only: gauges once a second, not requests; give the requests.jsonl of the same run",
        kind="table",
    ),
    Refusal(
        "a file of the settings of a benchmark run",
        any_of(
            has("engine_kwargs", "vllm_version"), has("kv_cache", "tick_seconds"), has("engine_kwargs", "dataset_hash")
        ),
        "it holds no requests; give the requests.jsonl of the same run",
    ),
)

"""``vllm bench serve --save-result --save-detailed``: one JSON object a run, lists with one entry a request.

Times in s; ``start_times`` are of a monotonic clock. A failed request has 0 tokens, ttft 0.0 and a text in ``errors``.
``queue_times`` are the client's wait for ``--max-concurrency`` (vllm/benchmarks/serve.py of 0.33), not the engine's
queue, so they are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format, Refusal, all_of, has, has_any
from inferdoc.traces.formats.requests import Requests, measured, numbers, total
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record

NEEDED = ("input_lens", "output_lens", "ttfts")
_OPTIONAL = ("itls", "latencies", "start_times", "generated_texts", "errors", "cached_tokens")
_NAMES = {
    "arrival": "start_times",
    "input_tokens": "input_lens",
    "output_tokens": "output_lens",
    "cached_tokens": "cached_tokens",
    "ttft_s": "ttfts",
    "e2e_s": "latencies",
    "error": "errors",
}
_MEANS = ("mean_e2el_ms", "mean_e2e_latency_ms")
_SAME_MEAN = 0.005
_LOAD = ("request_rate", "burstiness", "max_concurrency")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    return read_runs("vllm-bench", "--save-detailed", records, ledger)


def read_runs(format: str, option: str, records: Iterable[Record], ledger: Ledger) -> Draft:
    """Runs of vLLM's or SGLang's benchmark; each has a clock of its own. `option` is what makes it write the lists."""
    requests = Requests(format, ledger)
    notes: list[str] = []
    timeless = 0
    run = 0
    for line, record in records:
        try:
            rows = _rows(record, option)
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        timeless += "start_times" not in record
        for values in rows:
            requests.add(line, values | {"segment": run, "model": record.get("model_id")})
        run += 1
        notes += _run_notes(record, rows, run)
    if timeless:
        for values in requests.values:
            values["arrival"] = None
        notes.append(
            "no start times: requests are in the order in which they were sent, without arrival times"
            if timeless == run
            else f"{timeless:,} of {run:,} runs have no start times: arrival times are left out for all"
        )
    return requests.draft(
        names=_NAMES, units={"arrival": "s"}, notes=[*notes, *requests.chunk_notes()], independent_clocks=True
    )


def _rows(record: Mapping[str, Any], option: str) -> list[dict[str, Any]]:
    missing = [name for name in NEEDED if record.get(name) is None]
    if missing:
        raise RowError(
            f"a run without {', '.join(missing)}: run again with {option} for data of each request",
            f"a run of aggregates only, written without {option}",
        )
    lists = {name: record[name] for name in (*NEEDED, *_OPTIONAL) if record.get(name) is not None}
    for name, values in lists.items():
        if not isinstance(values, list):
            raise RowError(f"{name} is {shown.kind(values)}: expected a list", f"{name} is not a list")
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise RowError(f"lists of different lengths ({found})", "lists of different lengths")
    return [_row({name: values[at] for name, values in lists.items()}) for at in range(lengths["ttfts"])]


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    # A tool writes null for an error that did not happen; vLLM and SGLang write "".
    failed = bool(entry.get("errors")) or entry["output_lens"] == 0
    row = {
        "arrival": entry.get("start_times"),
        "input_tokens": entry["input_lens"],
        "output_tokens": entry["output_lens"],
        "cached_tokens": entry.get("cached_tokens"),
        "output_text": entry.get("generated_texts"),
        "error": entry.get("errors"),
    }
    if failed:
        return row
    ttft = measured(entry["ttfts"], "ttfts")
    between = numbers(entry.get("itls"), "itls")
    if not between and entry["output_lens"] != 1:
        between = None
    e2e = measured(entry.get("latencies"), "latencies")
    if e2e is None and ttft is not None and between is not None:
        e2e = ttft + sum(between)
    return row | {"ttft_s": ttft, "e2e_s": e2e, "itl_s": between}


def _run_notes(record: Mapping[str, Any], rows: list[dict[str, Any]], run: int) -> list[str]:
    """The load that the tool made, and totals of the file that its lists do not give."""
    load = ", ".join(f"{name} {_setting(record[name])}" for name in _LOAD if name in record)
    notes = [f"run {run}: {len(rows):,} requests, made by the benchmark ({load or 'load not recorded'})"]
    good = [row for row in rows if not row["error"] and row["output_tokens"]]
    unmeasured = sum(row.get("ttft_s") is None for row in good)
    if unmeasured:
        notes.append(
            f"run {run}: {unmeasured:,} good requests have a time to the first token of 0: read as not measured"
        )
    notes += _latency_notes(record, good, run)
    sums = {
        "completed": len(good),
        "total_input_tokens": total([row["input_tokens"] for row in good]),
        "total_output_tokens": total([row["output_tokens"] for row in good]),
    }
    notes += [
        f"run {run}: {name} is {shown.value(record[name])} in the file, {count:,} by its lists"
        for name, count in sums.items()
        if record.get(name) is not None and record[name] != count
    ]
    return notes


def _setting(value: Any) -> str:
    """A setting of the load; null, or the same as text, is what the tools write where there is no limit."""
    return "not limited" if str(value).lower() in ("none", "null") else shown.value(value).strip("'")


def _latency_notes(record: Mapping[str, Any], good: list[dict[str, Any]], run: int) -> list[str]:
    """Where the benchmark's own mean from start to end is not that of the latencies read: other ends of a request."""
    known = [row["e2e_s"] for row in good if row.get("e2e_s") is not None]
    own = next((record[name] for name in _MEANS if isinstance(record.get(name), int | float)), None)
    if not known or not own:
        return []
    mean = sum(known) / len(known) * 1e3
    if abs(mean / own - 1) <= _SAME_MEAN:
        return []
    return [
        f"run {run}: the time from start to end of a request has a mean of {mean:,.1f} ms here, {own:,.1f} ms in the"
        " benchmark's own summary: here a request ends with its last token"
    ]


def without_lists(*extra: str) -> Refusal:
    """The result of a benchmark without lists of requests. vLLM leaves ``latencies`` behind, so one is no proof."""
    sglang = "total_output_tokens_retokenized" in extra
    tool, option = ("SGLang", "--output-details") if sglang else ("vLLM", "--save-detailed")

    def matches(record: Mapping[str, Any]) -> bool:
        return not all(record.get(name) is not None for name in NEEDED)

    return Refusal(
        f"{tool} benchmark result",
        all_of(has_any("mean_ttft_ms", "request_throughput"), has("completed", *extra), matches),
        f"aggregates only; run the benchmark again with {option} for data of each request",
    )


FORMAT = Format(
    "vllm-bench",
    "vLLM benchmark with details",
    all_of(has(*NEEDED), lambda record: "total_output_tokens_retokenized" not in record),
    read,
    arrivals_by_tool=True,
)
REFUSALS = (without_lists(),)

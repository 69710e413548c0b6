"""OpenHands' evaluation output (``output.jsonl``): one run a line, its calls in ``metrics.token_usages``.

Prompt tokens include cached ones (the counts come from LiteLLM). Latencies have a list of their own, matched by
``response_id``; the time of a call follows from its entry in ``costs``, written when the answer is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.format import Format, Keys
from inferdoc.traces.formats.values import at, instant
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

NO_USAGE = "runs without token usage of their calls"
_NAMES = {
    "arrival": "costs.timestamp - latency",
    "input_tokens": "token_usages.prompt_tokens",
    "output_tokens": "token_usages.completion_tokens",
    "cached_tokens": "token_usages.cache_read_tokens",
    "e2e_s": "response_latencies.latency",
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    runs = 0
    for line, record in records:
        runs += 1
        turn = 0
        for metrics in _metrics(record):
            usages = _objects(metrics.get("token_usages"))
            latencies = {
                str(one.get("response_id")): one.get("latency") for one in _objects(metrics.get("response_latencies"))
            }
            costs = _objects(metrics.get("costs"))
            ends = [cost.get("timestamp") for cost in costs] if len(costs) == len(usages) else [None] * len(usages)
            for usage, end in zip(usages, ends, strict=True):
                turn += 1
                calls.add(line, _row(usage, latencies.get(str(usage.get("response_id"))), end, f"run {runs}", turn))
        if not turn:
            calls.leave_out(line, NO_USAGE)
    timed = sum(row["arrival"] is not None for row in calls.rows)
    if timed < len(calls):
        for row in calls.rows:
            row["arrival"] = None
    elif timed:
        calls.notes.append("arrival is the time at which the answer was accounted for, less the call's latency")
    summary = f"{runs:,} runs with {len(calls):,} calls; the texts of the prompts are not in the file"
    return calls.draft("openhands", _NAMES, units={"arrival": "ns"}, notes=(summary,))


def _metrics(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The metrics of a run: one object, or one for each use of a model."""
    metrics = record.get("metrics")
    by_use = at(record, "stats", "usage_to_metrics") or at(metrics, "usage_to_metrics")
    for found in by_use.values() if isinstance(by_use, Mapping) else [metrics]:
        if isinstance(found, Mapping):
            yield found


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _row(usage: Mapping[str, Any], latency: Any, end: Any, session: str, turn: int) -> dict[str, Any]:
    finished = instant(end)
    known = isinstance(latency, int | float) and latency > 0
    return {
        "arrival": finished - round(latency * 1e9) if finished is not None and known else None,
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "cached_tokens": usage.get("cache_read_tokens"),
        "e2e_s": latency if known else None,
        "model": usage.get("model"),
        "session": session,
        "turn": turn,
    }


def _matches(record: Keys) -> bool:
    return any("token_usages" in metrics for metrics in _metrics(record)) or {
        "instance_id",
        "history",
        "metrics",
    } <= set(record)


FORMAT = Format("openhands", "OpenHands runs", _matches, read)

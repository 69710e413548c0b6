"""Metrics of one run. A value that the run cannot support is ``None``; `why_missing` says why."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inferdoc.engine.engine import RunResult
from inferdoc.engine.request import Request
from inferdoc.evidence import Direction, Slo
from inferdoc.statistics import percentile, samples_needed


@dataclass(frozen=True)
class Metric:
    """What a number of a run is called, and which way is better."""

    name: str
    label: str
    unit: str
    direction: Direction
    quantile: float | None = None


METRICS = {
    metric.name: metric
    for metric in (
        Metric("throughput", "output tokens per second", "tokens/s", "higher"),
        Metric("ttft_p50", "TTFT, median", "s", "lower", 0.5),
        Metric("ttft_p95", "TTFT, 95th percentile", "s", "lower", 0.95),
        Metric("tpot_p50", "TPOT, median", "s", "lower", 0.5),
        Metric("tpot_p95", "TPOT, 95th percentile", "s", "lower", 0.95),
        Metric("tpot_mean", "TPOT, mean over all tokens", "s", "lower"),
        Metric("e2e_p50", "end-to-end latency, median", "s", "lower", 0.5),
        Metric("itl_max", "longest gap between tokens of running decodes", "s", "lower"),
        Metric("itl_steady", "gap between tokens of running decodes before a prompt joins, median", "s", "lower"),
        Metric("goodput", "requests per second within every SLO", "requests/s", "higher"),
        Metric("live_requests", "requests running at once, time-weighted", "requests", "higher"),
    )
}


def measure(run: RunResult, names: Sequence[str], slo: Sequence[Slo]) -> dict[str, float | None]:
    """The named metrics of a run."""
    samples = {
        "ttft": [r.ttft_s for r in run.requests if r.ttft_s is not None],
        "tpot": [r.tpot_s for r in run.requests if r.tpot_s is not None],
        "e2e": [r.e2e_s for r in run.requests if r.e2e_s is not None],
    }
    values: dict[str, float | None] = {}
    for name in names:
        metric = METRICS[name]
        if metric.quantile is not None:
            values[name] = percentile(samples[name.partition("_")[0]], metric.quantile)
        elif name == "tpot_mean":
            gaps = [gap for request in run.requests for gap in request.itl_s]
            values[name] = sum(gaps) / len(gaps) if gaps else None
        elif name == "throughput":
            values[name] = sum(len(r.output) for r in run.requests) / run.duration_s
        elif name == "live_requests":
            values[name] = sum(s.running * s.duration_s for s in run.steps) / sum(s.duration_s for s in run.steps)
        elif name == "goodput":
            values[name] = sum(_meets(r, slo) for r in run.requests) / run.duration_s
        elif name == "itl_max":
            values[name] = max((gap for r in run.requests for gap in r.itl_s), default=None)
    return values


def why_missing(name: str, requests: int) -> str:
    """Why a metric has no value."""
    quantile = METRICS[name].quantile
    if quantile is not None and requests < samples_needed(quantile):
        return f"too few requests in a run ({requests}; {name.partition('_')[2]} needs {samples_needed(quantile)})"
    return "no run gave a value"


def _meets(request: Request, slo: Sequence[Slo]) -> bool:
    """Whether one request is within every limit; TPOT and gaps of an answer of one token do not exist to be missed."""
    seen = {
        "ttft": request.ttft_s,
        "tpot": request.tpot_s,
        "e2e": request.e2e_s,
        "itl": max(request.itl_s, default=None),
    }
    return all((value := seen[limit.metric.partition("_")[0]]) is None or value <= limit.limit for limit in slo)


def enough_to_tell_overload(requests: int, max_num_seqs: int) -> bool:
    """Whether an open-loop run is long enough: with fewer than four batches a queue has no trend, only a start."""
    return requests >= 4 * max_num_seqs


def overloaded(run: RunResult) -> bool:
    """Whether the queue of an open-loop run still grew when the last request came.

    Over the last two thirds of the arrivals more than a tenth of them went to the queue and stayed (least-squares slope
    of the queue length against the arrivals), and over the last third more than half a batch waited on average. Waiting
    times then grow with the length of the run, and a percentile of them means nothing. On modelled runs of two public
    traces (32 to 96 requests) this says no at 0.5 and 0.7 of saturation, and yes at 2.0, in every case.
    """
    if not enough_to_tell_overload(len(run.requests), run.config.max_num_seqs):
        return False
    arrivals = sorted(request.arrival_s for request in run.requests)
    starts = [step.start_s for step in run.steps]
    queue = [run.steps[max(0, bisect_right(starts, arrival) - 1)].waiting for arrival in arrivals]
    late = queue[len(queue) // 3 :]
    slope = float(np.polyfit(np.arange(len(late)), late, 1)[0])
    end = late[len(late) // 2 :]
    return slope > 0.1 and sum(end) / len(end) > run.config.max_num_seqs / 2

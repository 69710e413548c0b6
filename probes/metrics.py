"""Metrics of one run. A value that the run cannot support is ``None``; `why_missing` says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferdoc.engine.engine import RunResult
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
        Metric("e2e_p50", "end-to-end latency, median", "s", "lower", 0.5),
        Metric("itl_max", "longest gap between tokens of running decodes", "s", "lower"),
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
        elif name == "throughput":
            values[name] = sum(len(r.output) for r in run.requests) / run.duration_s
        elif name == "live_requests":
            values[name] = sum(s.running * s.duration_s for s in run.steps) / sum(s.duration_s for s in run.steps)
        elif name == "goodput":
            values[name] = sum(_meets(r.ttft_s, r.tpot_s, r.e2e_s, slo) for r in run.requests) / run.duration_s
        elif name == "itl_max":
            values[name] = max(gap for r in run.requests for gap in r.itl_s)
    return values


def why_missing(name: str, requests: int) -> str:
    """Why a metric has no value."""
    quantile = METRICS[name].quantile
    if quantile is not None and requests < samples_needed(quantile):
        return f"too few requests in a run ({requests}; {name.partition('_')[2]} needs {samples_needed(quantile)})"
    return "no run gave a value"


def _meets(ttft: float | None, tpot: float | None, e2e: float | None, slo: Sequence[Slo]) -> bool:
    """Whether one request is within every limit; a limit on TPOT does not bind an answer of one token."""
    seen = {"ttft": ttft, "tpot": tpot, "itl": tpot, "e2e": e2e}
    return all((value := seen[limit.metric.partition("_")[0]]) is None or value <= limit.limit for limit in slo)


def overloaded(run: RunResult) -> bool:
    """Whether the queue of an open-loop run still grew when the last request came.

    The mean queue over the last third of the arrivals is more than 4/3 of that over the middle third (a level queue has
    1, one that grows steadily from nothing 5/3), and longer than the batch: waiting times then grow with the length of
    the run, and a percentile of them means nothing.
    """
    last = max(r.arrival_s for r in run.requests)

    def queue(begin: float, end: float) -> float:
        steps = [s for s in run.steps if begin <= s.start_s < end]
        seconds = sum(s.duration_s for s in steps)
        return sum(s.waiting * s.duration_s for s in steps) / seconds if seconds else 0.0

    late = queue(last * 2 / 3, last)
    return late > run.config.max_num_seqs and late > 4 / 3 * queue(last / 3, last * 2 / 3)

"""What a gated run measures: each metric's unit, direction and load. The direction is never the user's to choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferdoc.evidence import Direction
from inferdoc.gate.result import Kind


@dataclass(frozen=True)
class GateMetric:
    """One metric that a run of an arm has a value of.

    load: ``saturated`` (every request there at the start), ``open`` (both arms at one absolute arrival schedule), or
    ``arm`` (of the arm itself, whatever it serves). timed: made with a clock, so that no two runs agree exactly.
    """

    id: str
    label: str
    unit: str
    direction: Direction | None
    load: Literal["saturated", "open", "arm"]
    kind: Kind = "timing"
    timed: bool = False
    quantile: float | None = None

    @property
    def min_requests(self) -> int:
        """Requests of one repeat: ten beyond the quantile."""
        return 1 if self.quantile is None else round(10 / (1 - self.quantile))


def _latencies() -> list[GateMetric]:
    names = {"ttft": "TTFT", "tpot": "TPOT", "itl": "gap between tokens (ITL)", "e2e": "end-to-end latency"}
    return [
        GateMetric(
            f"{name}_p{round(q * 100)}", f"{label}, p{round(q * 100)}", "s", "lower", "open", timed=True, quantile=q
        )
        for name, label in names.items()
        for q in (0.5, 0.9, 0.95, 0.99)
    ]


RUN_METRICS: dict[str, GateMetric] = {
    metric.id: metric
    for metric in (
        GateMetric("output_tok_s", "output tokens per second", "tok/s", "higher", "saturated", timed=True),
        *_latencies(),
        GateMetric("itl_max", "longest gap between tokens", "s", "lower", "open", timed=True),
        GateMetric("goodput", "requests per second within every SLO", "requests/s", "higher", "open", timed=True),
        GateMetric(
            "live_requests", "requests running at once, time-weighted", "requests", "higher", "saturated", timed=True
        ),
        GateMetric("hit_rate", "prompt tokens served from the prefix cache", "share", "higher", "saturated"),
        GateMetric("preemptions", "preemptions in a run", "count", "lower", "saturated"),
        GateMetric("kv_tokens_peak", "K/V tokens in use, peak", "tokens", "lower", "saturated"),
        GateMetric("error_rate", "requests that did not complete", "share", "lower", "saturated"),
        GateMetric("output_tokens_total", "output tokens of a run", "tokens", None, "saturated", kind="exact"),
        GateMetric("outputs_identical", "requests with the baseline's tokens", "share", "higher", "saturated"),
        GateMetric("weight_bytes", "weights in memory", "B", "lower", "arm"),
        GateMetric("kv_bytes_per_token", "K/V bytes of a token", "B", "lower", "arm"),
        GateMetric("kv_capacity_tokens", "K/V tokens that fit the memory budget", "tokens", "higher", "arm"),
        GateMetric(
            "cost_per_million_tokens", "cost of a million output tokens", "currency", "lower", "saturated", timed=True
        ),
    )
}

EVIDENCE_DIRECTIONS: dict[str, Direction] = {
    "fit.weights_bytes": "lower",
    "fit.activation_peak_bytes": "lower",
    "fit.outside_framework_bytes": "lower",
    "fit.kv_bytes_per_token": "lower",
    "fit.kv_capacity_tokens": "higher",
    "fit.kv_headroom": "higher",
    "fit.devices_needed": "lower",
    "prefix.measured_hit_rate": "higher",
    "fragmentation.live_paged": "higher",
    "fragmentation.tail_waste": "lower",
    "fragmentation.preemptions_paged": "lower",
    "latency.schedule_share": "lower",
    "latency.ngram_acceptance": "higher",
    "latency.ngram_tokens_per_step": "higher",
    "disagg.replicas_needed": "lower",
}
"""Which way is better for those quantities of a diagnosis that do not say it themselves: for a diagnosis, a size or a
rate is a fact; for a gate it is what a change may make worse."""

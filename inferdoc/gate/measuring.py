"""The metrics of one run of an arm, by the ids of `registry.RUN_METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from inferdoc.engine.engine import RunResult
from inferdoc.engine.request import Request
from inferdoc.evidence import Slo
from inferdoc.gate.arms import ReadyArm
from inferdoc.gate.registry import RUN_METRICS
from inferdoc.probes.metrics import measure


@dataclass(frozen=True)
class ArmRun:
    """One repeat of an arm: the same requests all at once, then at the arrival times that both arms share."""

    saturated: RunResult
    open: RunResult | None
    """``None`` where no metric needs it."""


def needs_open_loop(ids: Iterable[str]) -> bool:
    """Whether a metric is taken at the open-loop load."""
    return any(id in RUN_METRICS and RUN_METRICS[id].load == "open" for id in ids)


_SAMPLES: dict[str, Callable[[Request], Sequence[float | None]]] = {
    "ttft": lambda request: [request.ttft_s],
    "tpot": lambda request: [request.tpot_s],
    "itl": lambda request: request.itl_s,
    "e2e": lambda request: [request.e2e_s],
}


def run_values(
    ids: Sequence[str], run: ArmRun, arm: ReadyArm, *, slo: Sequence[Slo], price_per_hour: float | None
) -> dict[str, float | None]:
    """The metrics of one repeat; ``None`` where the run has no value (no request of two tokens, for a TPOT)."""
    return {id: _value(id, run, arm, slo, price_per_hour) for id in ids if id != "outputs_identical"}


def _value(id: str, run: ArmRun, arm: ReadyArm, slo: Sequence[Slo], price: float | None) -> float | None:
    metric, saturated, context = RUN_METRICS[id], run.saturated, arm.context
    if metric.quantile is not None:
        assert run.open is not None
        of_request = _SAMPLES[id.partition("_")[0]]
        samples = [value for request in run.open.requests for value in of_request(request) if value is not None]
        return float(np.quantile(samples, metric.quantile)) if samples else None
    requests = saturated.requests
    tokens = sum(len(request.output) for request in requests)
    match id:
        case "output_tok_s":
            return tokens / saturated.duration_s
        case "cost_per_million_tokens":
            assert price is not None
            return price / 3600 * saturated.duration_s / tokens * 1e6
        case "goodput" | "itl_max":
            assert run.open is not None
            return measure(run.open, [id], slo)[id]
        case "live_requests":
            return measure(saturated, [id], slo)[id]
        case "hit_rate":
            return sum(request.num_cached for request in requests) / sum(request.prompt_length for request in requests)
        case "preemptions":
            return float(sum(request.preemptions for request in requests))
        case "kv_tokens_peak":
            return float(max(step.kv.written for step in saturated.steps))
        case "error_rate":
            return sum(not request.completed for request in requests) / len(requests)
        case "output_tokens_total":
            return float(tokens)
        case "weight_bytes":
            return float(context.loaded.weight_bytes_measured)
        case "kv_bytes_per_token":
            return float(context.runner.kv_bytes_per_token)
        case "kv_capacity_tokens":
            return float(context.kv_capacity_tokens)
    raise AssertionError(f"no way to measure {id}")


def identical_share(baseline: RunResult, candidate: RunResult) -> float:
    """Share of the requests with the same output tokens in both arms."""
    same = sum(a.output == b.output for a, b in zip(baseline.requests, candidate.requests, strict=True))
    return same / len(baseline.requests)

"""How many requests one repeat serves: what the percentiles need, and as many more as the time allows."""

from __future__ import annotations

from collections.abc import Sequence

from inferdoc.errors import PolicyError
from inferdoc.gate.arms import NAMES, Bench
from inferdoc.gate.measuring import needs_open_loop
from inferdoc.gate.policy import MetricPolicy, Policy
from inferdoc.gate.registry import RUN_METRICS
from inferdoc.probes.plan import LARGEST_SLICE, smallest_slice

_WARM_UP_PAIRS = 3
"""Warm-up runs of each arm that are planned for."""


def requests_to_run(bench: Bench, policy: Policy) -> int:
    """Requests of one repeat, and the slice set to as many.

    Raises:
        PolicyError: the trace, or ``[workload] requests``, has fewer than a metric needs.
    """
    available = min(len(bench.arm(name).context.trace) for name in NAMES)
    floor = max(smallest_slice(bench.arm(name).config) for name in NAMES)
    hungriest = max(policy.metrics, key=requests_needed, default=None)
    needed = requests_needed(hungriest) if hungriest else 1
    asked = policy.workload.requests
    limit = available if asked is None else min(asked, available)
    if hungriest is not None and needed > limit:
        who = f"the trace has {available}" if asked is None or asked > available else f"[workload] requests is {asked}"
        raise PolicyError(
            f"{hungriest.id} needs {needed} requests in one repeat (ten beyond the quantile) and {who}: give more "
            "requests, a lower percentile, or min_requests",
            where=policy.where(hungriest.line),
        )
    if asked is not None:
        bench.choose_slice(limit)
        return limit
    size = min(max(needed, floor), available)
    bench.choose_slice(size)
    factor = policy.workload.budget_s / predicted_seconds(bench, policy)
    larger = min(int(size * factor), LARGEST_SLICE, available)
    if larger > size:
        bench.choose_slice(larger)
        return larger
    return size


def requests_needed(metric: MetricPolicy) -> int:
    """Requests of one repeat that the metric's percentile takes."""
    known = RUN_METRICS.get(metric.id)
    return metric.min_requests or (known.min_requests if known else 1)


def predicted_seconds(bench: Bench, policy: Policy) -> float:
    """Time of the longest gate on the slice chosen: every pair, the confirmation, warm-up; on modelled step times."""
    open_loop = needs_open_loop(_ids(policy.metrics))
    pair = 0.0
    for name in NAMES:
        arm = bench.arm(name)
        saturated = arm.context.prediction().serve(arm.config).duration_s
        pair += saturated * (1 + (1 / policy.workload.load if open_loop else 0))
    design = policy.design
    return pair * (design.max_pairs + design.confirm + _WARM_UP_PAIRS)


def _ids(metrics: Sequence[MetricPolicy]) -> list[str]:
    return [metric.id for metric in metrics]

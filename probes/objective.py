"""Is time per token within its objective? Each objective is judged by the very metric that it names."""

from __future__ import annotations

from inferdoc.evidence import Basis, Quantity, Slo
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.metrics import METRICS

_OPEN_ARMS = (("prefix_caching.open", "off"), ("continuous_batching.open", "on"))
"""Open-loop runs of the base configuration: whichever pair has one as an arm."""


def per_token(slo: Slo) -> bool:
    """Whether the objective limits the time of a token."""
    return slo.metric.startswith(("tpot", "itl"))


def observe_objective(context: ProbeContext) -> None:
    """Record ``latency.tpot_at_load``, by the objective that is nearest to its limit or beyond it, and its share.

    Where a percentile has too few requests, the median is its lower bound: enough to say that it is missed, not that it
    is met.
    """
    objectives = [slo for slo in context.settings.slo if per_token(slo)]
    judged = [(slo, _at_load(context, slo.metric)) for slo in objectives]
    known = [(quantity.value / slo.limit, slo, quantity) for slo, quantity in judged if quantity and quantity.value]
    unknown = [slo for slo, quantity in judged if not (quantity and quantity.value)]
    median = _at_load(context, "tpot_p50")
    bounds = [
        (median.value / slo.limit, slo, median)
        for slo in unknown
        if slo.metric == "tpot_p95" and median and median.value and median.value >= slo.limit
    ]
    worst = max([*known, *bounds], key=lambda each: each[0], default=None)
    decided = worst is not None and (not unknown or worst[0] >= 1)
    note = "the median, a lower bound of what the objective names" if worst in bounds and decided else None
    _tpot(context, worst[2] if worst else median, note)
    slo, quantity = (worst[1], worst[2]) if worst is not None and decided else (None, None)
    interval = quantity.interval if quantity else None
    label = METRICS[slo.metric].label if slo else "time per token"
    context.found.add(
        "latency.slo_share",
        f"{label} at the open-loop load over its limit",
        worst[0] if worst is not None and decided else None,
        "ratio",
        Basis.MEASURED,
        interval=(interval.low / slo.limit, interval.high / slo.limit) if slo and interval else None,
        direction="lower",
        reason=None if decided else _why_not(context, objectives, unknown),
        note=note,
        roofline=quantity.roofline if quantity else None,
    )


def _why_not(context: ProbeContext, objectives: list[Slo], unknown: list[Slo]) -> str:
    if not objectives:
        return "no SLO on the time per token was given"
    for slo in unknown:
        for id, arm in _OPEN_ARMS:
            found = context.found.lookup(f"{id}.{slo.metric}.{arm}")
            if found is not None and found.reason:
                return f"{slo.metric}: {found.reason}"
    return "no open-loop run was made"


def _at_load(context: ProbeContext, metric: str) -> Quantity | None:
    """A metric of the base configuration at the open-loop load, with the roofline of the runs."""
    for id, arm in _OPEN_ARMS:
        found = context.found.lookup(f"{id}.{metric}.{arm}")
        if found is not None and found.value is not None:
            fraction = context.found.comparisons[id].roofline_fraction
            return found.model_copy(update={"label": METRICS[metric].label, "roofline": fraction and fraction.roofline})
    return None


def _tpot(context: ProbeContext, quantity: Quantity | None, note: str | None) -> None:
    interval = quantity.interval if quantity else None
    context.found.add(
        "latency.tpot_at_load",
        f"{quantity.label if quantity else METRICS['tpot_p50'].label} at the open-loop load",
        quantity.value if quantity else None,
        "s",
        Basis.MEASURED,
        interval=(interval.low, interval.high) if interval else None,
        n=quantity.n if quantity else None,
        direction="lower",
        reason=None if quantity else "no open-loop run was made",
        note=note,
        roofline=quantity.roofline if quantity else None,
    )

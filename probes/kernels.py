"""What fused attention, CUDA graphs and shared K/V heads do for this model: measured off and on, or from its shape."""

from __future__ import annotations

from statistics import median
from typing import Any

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.evidence import Basis, Question
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.metrics import measure
from inferdoc.probes.paired import Pair, Trial
from inferdoc.probes.plan import smallest_slice
from inferdoc.probes.roofline import Work, roofline
from inferdoc.statistics import median_interval


def comparisons(context: ProbeContext) -> list[Pair]:
    base = context.base
    pairs = []
    if base.attention_backend != "torch":
        pairs.append(
            _pair(
                context,
                "fused_attention",
                f"attention in one kernel ({base.attention_backend}) against operations of torch",
                # Graphs of attention in torch gather the longest sequence's K/V for every row, so neither arm has them.
                {"attention_backend": "torch", "enforce_eager": True},
                {"enforce_eager": True},
                # A kernel that is there is used anyway; what it gains may wait for the decisions that are open.
                late=True,
            )
        )
    if not base.enforce_eager:
        pairs.append(_pair(context, "cuda_graphs", "CUDA graphs", {"enforce_eager": True}, {}))
    return pairs


def _pair(
    context: ProbeContext, technique: str, label: str, off: dict[str, Any], on: dict[str, Any], *, late: bool = False
) -> Pair:
    return Pair(
        id=f"{technique}.saturated",
        question=Question.TOKEN_LATENCY,
        technique=technique,
        label=f"{label}, saturated",
        off=context.config(**off),
        on=context.config(**on),
        metrics=("throughput", "tpot_p50"),
        trial=run_head,
        load_label="saturated",
        late=late,
    )


def run_head(context: ProbeContext, pair: Pair, config: EngineConfig) -> Trial:
    """Serve the first requests of the slice, as many as the smallest slice has: neither arm is known to be fast."""
    head = context.slice[: smallest_slice(config)]
    run = context.engine(config).run([Request(i, r.prompt, r.output_length) for i, r in enumerate(head)])
    return Trial(values=measure(run, pair.metrics, context.settings.slo), run=run)


def observe(context: ProbeContext) -> None:
    _not_compared(context)
    _launches(context)
    _attention(context)
    _heads(context)


def _not_compared(context: ProbeContext) -> None:
    """Why a technique has no pair."""
    on_card = context.device.kind == "cuda"
    planned = {pair.technique for pair in comparisons(context)}
    reasons = {
        "fused_attention": "attention runs as operations of torch here: no fused kernel is available"
        if not on_card
        else "attention runs as operations of torch (--attention-backend)",
        "cuda_graphs": "steps are launched one operation at a time (--no-enforce-eager)"
        if on_card
        else "needs a CUDA card",
    }
    for technique, reason in reasons.items():
        if technique not in planned:
            id = f"{technique}.saturated.throughput.gain"
            context.found.add(id, f"{technique}: gain", None, "ratio", Basis.MEASURED, reason=reason)


def _launches(context: ProbeContext) -> None:
    """1 - 1/gain of graphs: the share of the time without them that they save."""
    gain = context.found.lookup("cuda_graphs.saturated.throughput.gain")
    value = gain.value if gain is not None else None
    interval = gain.interval if gain is not None else None
    context.found.add(
        "latency.launch_share",
        "share of the time that launching operation by operation adds",
        None if value is None else 1 - 1 / value,
        "share",
        Basis.MEASURED,
        interval=None if interval is None else (1 - 1 / interval.low, 1 - 1 / interval.high),
        method="from the paired gain of CUDA graphs",
        direction="lower",
        reason=None if value is not None else (gain.reason if gain is not None and gain.reason else "not run"),
    )


def _attention(context: ProbeContext) -> None:
    """What attending to the context adds to a decode step of the largest batch."""
    point, bare = context.sweep.decode[-1], context.sweep.without_context
    interval = median_interval(bare)
    work = Work(point.median, point.batch, point.batch, point.batch, point.batch * point.context)
    context.found.add(
        "latency.attention_share",
        f"attention's share of a decode step at batch {point.batch}, {point.context:,} tokens of context",
        max(0.0, 1 - median(bare)),
        "share",
        Basis.MEASURED,
        interval=(max(0.0, 1 - interval[1]), max(0.0, 1 - interval[0])) if interval else None,
        n=len(bare),
        direction="lower",
        note="the step against one whose rows attend to a single token each",
        roofline=roofline(context, [work]),
    )


def _heads(context: ProbeContext) -> None:
    """K/V with a head for each query head (MHA) over those of this model."""
    specs = context.runner.specs
    own = sum(spec.kv_heads * (spec.key_dim + spec.value_dim) for spec in specs)
    full = sum(context.query_heads * (spec.key_dim + spec.value_dim) for spec in specs)
    per_token = context.runner.kv_bytes_per_token
    fewest, most = min(spec.kv_heads for spec in specs), max(spec.kv_heads for spec in specs)
    heads = f"{most}" if fewest == most else f"{fewest} to {most}"
    context.found.add(
        "latency.kv_head_sharing",
        "K/V bytes a token with one K/V head for each query head, over this model's",
        full / own,
        "ratio",
        Basis.CONFIG,
        exact=True,
        note=f"{context.query_heads} query heads, {heads} K/V heads a layer",
    )
    context.found.add(
        "latency.mha_kv_bytes_per_token",
        "K/V bytes a token with one K/V head for each query head",
        per_token * full / own,
        "bytes",
        Basis.CONFIG,
        exact=True,
    )

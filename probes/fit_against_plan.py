"""Memory as measured beside what `inferdoc plan` estimates for the same budget, and what each technique frees of it."""

from __future__ import annotations

import numpy as np

from inferdoc.devices.cards import CardSpec
from inferdoc.errors import ModelError
from inferdoc.evidence import Basis
from inferdoc.models.planning import Plan, estimate
from inferdoc.models.sizing import element_bytes
from inferdoc.models.splitting import Split
from inferdoc.probes.compression import SPARSE, chosen_scheme
from inferdoc.probes.context import ProbeContext

_PLANNED = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""The plan's names of the types that weights are loaded in."""

_FAR_BELOW = 0.9
"""Of the room in the budget; a pool below it is limited by something else."""


def observe(context: ProbeContext) -> None:
    """Record the estimate term by term, then what each technique frees and how many requests that is."""
    _estimate(context)
    _frees(context)


def _estimate(context: ProbeContext) -> None:
    found, memory = context.found, context.memory
    step = memory.profile.step
    plan: Plan | None
    split: Split | None
    card = CardSpec(
        id="budget", name="memory budget", memory_bytes=context.budget_bytes, memory_source="budget", source="budget"
    )
    try:
        plan = estimate(
            context.spec,
            card,
            typical_tokens(context),
            gpus=1,
            dtype=_PLANNED[context.loaded.dtype] if context.spec.quantization is None else None,
            gpu_memory_utilization=1.0,
            step_tokens=step.tokens,
            step_sequences=step.sequences,
        )
        split, reason = plan.split, "; ".join(plan.notes) or "its layers and heads fit no single device"
    except ModelError as error:
        plan, split, reason = None, None, str(error)
    profile = memory.profile
    rows: list[tuple[str, str, int | None, int | None, str]] = [
        ("weights_bytes", "weights", split.weight_bytes if split else None, memory.weights, _WEIGHTS),
        (
            "activation_bytes",
            "activation peak",
            split.activation_bytes if split else None,
            profile.activation_peak,
            _ACTIVATIONS,
        ),
        (
            "outside_bytes",
            "memory outside the framework's tensors",
            split.outside_bytes if split else None,
            profile.outside_framework,
            _OUTSIDE,
        ),
        (
            "kv_tokens",
            "KV capacity",
            split.kv_tokens if split else None,
            context.kv_capacity_tokens,
            _why_kv(context, plan),
        ),
    ]
    for id, label, planned, measured, why in rows:
        unit = "tokens" if id == "kv_tokens" else "bytes"
        found.add(
            f"fit.plan_{id}",
            f"{label}, as inferdoc plan estimates it",
            planned,
            unit,
            Basis.MODELLED,
            exact=True,
            reason=None if planned is not None else reason,
            note=None if planned is None else _difference(planned, measured, unit, why),
        )


_WEIGHTS = "the checkpoint holds more or less than the configuration's shapes say"
_ACTIVATIONS = (
    "the plan models 16-bit activations of one layer, or of sampling; measured is the largest sum that this engine held"
)
_OUTSIDE = "the plan assumes a card's context and libraries; measured is what this process holds beside the weights"


def _why_kv(context: ProbeContext, plan: Plan | None) -> str:
    """What makes the capacity differ: bytes a token, a pool that something else limits, then the terms above."""
    planned, stored = plan.kv.bytes_per_token if plan else 0, context.runner.kv_bytes_per_token
    reasons = []
    if planned != stored:
        reasons.append(
            f"the plan sizes {planned:,} bytes a token, this engine stores {stored:,} ({context.loaded.dtype})"
        )
    if context.kv_capacity_tokens * stored < _FAR_BELOW * (context.memory.left + context.memory.kv_pool):
        reasons.append("--kv-blocks, or what is free, leaves less than the budget does")
    return "; ".join(reasons) or "the terms above leave more or less room"


def _difference(planned: float, measured: float | None, unit: str, why: str) -> str:
    if measured is None:
        return "not measured: the platform does not tell"
    if measured == planned:
        return f"measured {measured:,.0f} {unit}: the same"
    share = f" ({measured / planned - 1:+.1%})" if planned else ""
    return f"measured {measured:,.0f} {unit}, {measured - planned:+,.0f}{share}: {why}"


def typical_tokens(context: ProbeContext) -> int:
    """Prompt and output of the trace's median request."""
    rows = context.trace.rows
    return max(1, int(np.median((rows["input_tokens"] + rows["output_tokens"]).to_numpy())))


def _frees(context: ProbeContext) -> None:
    """Bytes freed, as measured where it was set up, and the typical requests whose K/V they hold."""
    weights, spec = context.loaded.weight_bytes_measured, context.spec
    a_token = context.runner.kv_bytes_per_token
    block = context.base.block_size
    request = -(-typical_tokens(context) // block) * block
    scheme = chosen_scheme(context) or "int8_weight_only"
    measured = context.found.quantities[f"fit.weights_{scheme}_bytes"].value
    by_recipe = spec.weight_bytes("int8")
    small = measured if measured is not None else by_recipe
    basis = Basis.MEASURED if measured is not None else Basis.CONFIG
    _freed(context, "quantization", scheme, weights - small, a_token * request, basis)

    sparse = context.found.quantities[f"fit.weights_{SPARSE}_bytes"].value
    basis = Basis.MEASURED
    if sparse is None or sparse >= weights:  # stored whole here: a card keeps half, and two bits to say which half
        size = element_bytes(context.loaded.dtype)
        sparse = weights - spec.linear_parameters * (size - (size / 2 + 2 / 8 / 2))
        basis = Basis.CONFIG
    _freed(context, "sparsity", "2:4 sparse weights", weights - sparse, a_token * request, basis)

    # State and what has no token of its own stays: only bytes a token shrink.
    narrow = a_token / context.runner.dtype.itemsize
    freed = context.kv_capacity_tokens * (a_token - narrow)
    _freed(context, "kv_quantization", "K/V in e4m3", freed, narrow * request, Basis.CONFIG, a_token / narrow)


def _freed(
    context: ProbeContext,
    technique: str,
    what: str,
    freed: float,
    request: float,
    basis: Basis,
    more: float | None = None,
) -> None:
    """
    Args:
        request: bytes of a typical request's K/V with the technique.
        more: KV capacity with it over without; by default what is freed goes to K/V of the present size.
    """
    found, freed = context.found, max(0.0, freed)
    found.add(f"fit.frees_{technique}_bytes", f"memory that {what} frees", freed, "bytes", basis, exact=True)
    found.add(
        f"fit.buys_{technique}_requests",
        f"requests of {typical_tokens(context):,} tokens more at once, in what {what} frees",
        float(freed // request),
        "requests",
        basis,
        exact=True,
        note="at the K/V bytes that this engine stores; whether the traffic asks for them is the headroom's to say",
    )
    held = context.kv_capacity_tokens * context.runner.kv_bytes_per_token
    found.add(
        f"fit.more_kv_{technique}",
        f"KV capacity with {what} over that without",
        1 + freed / held if more is None else more,
        "x",
        basis,
        exact=True,
    )

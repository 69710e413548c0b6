"""Weights and K/V in fewer bits: what this device runs of it and how, and the off/on pairs of what runs fused."""

from __future__ import annotations

import time
from typing import Any

from inferdoc.devices import asked_bytes, describe, is_out_of_memory, release
from inferdoc.engine.config import EngineConfig, WeightScheme
from inferdoc.engine.kernel_used import NOT_FUSED
from inferdoc.engine.request import Request
from inferdoc.errors import InputError, MeasurementError
from inferdoc.evidence import Basis, Objective, Question
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.metrics import measure
from inferdoc.probes.paired import Pair, Trial
from inferdoc.statistics import samples_needed

BITS: dict[WeightScheme, int] = {
    "fp8_dynamic": 8,
    "int8_dynamic": 8,
    "int8_weight_only": 8,
    "int4_weight_only": 4,
    "fp8_weight_only": 8,
}
"""Bits a weight of each scheme, likeliest to raise the throughput first: products of 8-bit numbers are the fastest in
full batches."""
FOR_LATENCY: tuple[WeightScheme, ...] = ("fp8_dynamic", "int8_weight_only", "int4_weight_only", "int8_dynamic")
"""Likeliest to shorten a step of few tokens first: activations that need no rounding."""
SPARSE: WeightScheme = "sparse_24"
IN_PLACE = ("cpu", "triton")
"""Attention backends that read e4m3 pages as they are; the other makes floating-point numbers of them first."""
METRICS: dict[str, tuple[str, ...]] = {"saturated": ("throughput", "ttft_p50"), "alone": ("tpot_p50",)}
"""By load: what the pairs are compared in."""
_SURVEY_SHARE = 0.05
"""Of the budget, for setting up every scheme once."""
_ALONE_REQUESTS = samples_needed(0.5)
_ALONE_TOKENS = 17
"""Of each output when requests run one at a time: 16 gaps, so that a run takes moments."""


def survey(context: ProbeContext) -> None:
    """Set up every scheme once: bytes, kernels, and why not where it cannot be. The base configuration is left."""
    ends = time.perf_counter() + _SURVEY_SHARE * context.settings.budget_s
    for scheme in (*BITS, SPARSE):
        context.progress(f"quantizing: {scheme}")
        late = time.perf_counter() > ends
        reason = "not within the time that the budget leaves for it" if late else _set_up(context, weights=scheme)
        _record(context, scheme, reason)
    context.runner.configure(context.base)
    chosen = chosen_scheme(context)
    context.found.add(
        "fit.quantization_scheme",
        chosen or "quantized weights",
        BITS[chosen] if chosen else None,
        "bits",
        Basis.CONFIG,
        exact=True,
        reason=None if chosen else _why_none(context),
    )
    for technique, load in _unmeasured(context):
        reason = _why_not(context, technique)
        for metric in METRICS[load]:
            id = f"{technique}.{load}.{metric}.gain"
            context.found.add(id, f"{technique}, {load}: gain", None, "ratio", Basis.MEASURED, reason=reason)


def chosen_scheme(context: ProbeContext) -> WeightScheme | None:
    """The scheme whose speed is measured: of those with a fused kernel the likeliest for what the user asks."""
    for_latency = context.settings.objective is Objective.LATENCY or any(
        slo.metric.startswith(("tpot", "itl")) for slo in context.settings.slo
    )
    order = FOR_LATENCY if for_latency else tuple(BITS)
    return next((scheme for scheme in order if _fused(context, scheme)), None)


def comparisons(context: ProbeContext) -> list[Pair]:
    """The pairs of the schemes that this device multiplies without making floating-point numbers of them first."""
    pairs: list[Pair] = []
    if scheme := chosen_scheme(context):
        pairs += _both_loads(context, "quantization", f"{scheme} weights", weights=scheme)
    if _fused(context, SPARSE):
        label = "2:4 sparse weights (one-shot magnitude, untrained)"
        pairs += _both_loads(context, "sparsity", label, weights=SPARSE)
    if context.base.attention_backend in IN_PLACE:
        pairs.append(_pair(context, "kv_quantization", "saturated", "K/V in e4m3", kv_cache_dtype="fp8"))
    return pairs


def run_alone(context: ProbeContext, pair: Pair, config: EngineConfig) -> Trial:
    """The first requests of the slice one after another, a few tokens of each: the speed of decoding at batch 1."""
    requests = [
        Request(i, each.prompt[: config.max_model_len - _ALONE_TOKENS], _ALONE_TOKENS)
        for i, each in enumerate(context.slice[:_ALONE_REQUESTS])
    ]
    run = context.engine(config).run(requests)
    return Trial(values=measure(run, pair.metrics, context.settings.slo), run=run)


def _set_up(context: ProbeContext, **changes: Any) -> str | None:
    """Configure the runner so; why it cannot be, where it cannot."""
    # Graphs and compilation are for the pairs to set up: sizes and kernels do not depend on them.
    try:
        context.runner.configure(context.config(enforce_eager=True, compile=False, **changes))
        return None
    except (MeasurementError, InputError) as error:
        return str(error)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        asked = asked_bytes(error)
    release()  # the error and the frames that it held are gone by now
    return f"{describe(asked, context.device)}; both copies of the weights are kept, and a smaller --kv-blocks frees it"


def _record(context: ProbeContext, scheme: WeightScheme, reason: str | None) -> None:
    """The bytes under a scheme, and the share of its layers that a fused kernel multiplies."""
    runner, found = context.runner, context.found
    kernels = runner.weight_kernels if reason is None else ()
    layers = sum(kernel.layers for kernel in kernels)
    fused = sum(kernel.layers for kernel in kernels if kernel.fused)
    notes = "; ".join(runner.notes) if reason is None else None
    found.add(
        f"fit.weights_{scheme}_bytes",
        f"weights, {scheme}",
        runner.weight_bytes if reason is None else None,
        "bytes",
        Basis.MEASURED,
        exact=True,
        reason=reason,
        note=notes or None,
    )
    ran = ", ".join(f"{kernel.name} ({kernel.layers})" for kernel in kernels)
    found.add(
        f"fit.fused_{scheme}",
        f"layers that a fused kernel multiplies, {scheme}",
        fused / layers if layers else None,
        "share",
        Basis.MEASURED,
        exact=True,
        reason=None if layers else reason or "no layer is quantized",
        note=(ran if fused == layers else f"{ran}: {NOT_FUSED}, so its speed is not measured") if layers else None,
    )


def _fused(context: ProbeContext, scheme: WeightScheme) -> bool:
    found = context.found.quantities.get(f"fit.fused_{scheme}")
    return found is not None and found.value == 1.0


def _unmeasured(context: ProbeContext) -> list[tuple[str, str]]:
    """Technique and load of the pairs that are not run."""
    run = {pair.id for pair in comparisons(context)}
    loads = {"quantization": METRICS, "sparsity": METRICS, "kv_quantization": ("saturated",)}
    return [(name, load) for name, of in loads.items() for load in of if f"{name}.{load}" not in run]


def _why_not(context: ProbeContext, technique: str) -> str:
    if technique == "quantization":
        return _why_none(context)
    if technique == "sparsity":
        return context.found.quantities[f"fit.fused_{SPARSE}"].reason or NOT_FUSED
    return f"{NOT_FUSED}: attention_backend {context.base.attention_backend} converts e4m3 pages before it reads them"


def _why_none(context: ProbeContext) -> str:
    """Why no scheme's speed is measured: each reason with the schemes that it holds for."""
    reasons: dict[str, list[str]] = {}
    for scheme in BITS:
        reasons.setdefault(context.found.quantities[f"fit.fused_{scheme}"].reason or NOT_FUSED, []).append(scheme)
    return "; ".join(f"{reason} ({', '.join(schemes)})" for reason, schemes in reasons.items())


def _both_loads(context: ProbeContext, technique: str, label: str, **on: Any) -> list[Pair]:
    return [_pair(context, technique, load, label, **on) for load in METRICS]


def _pair(context: ProbeContext, technique: str, load: str, label: str, **on: Any) -> Pair:
    alone = load == "alone"
    limit = {"max_num_seqs": 1} if alone else {}
    return Pair(
        id=f"{technique}.{load}",
        # Time per token is question 5's, and so are its runs when that one is asked alone.
        question=Question.TOKEN_LATENCY if alone else Question.HARDWARE_FIT,
        technique=technique,
        label=f"{label}, {'one request at a time' if alone else 'saturated'}",
        off=context.config(**limit),
        on=context.config(**limit, **on),
        metrics=METRICS[load],
        trial=run_alone if alone else None,
        load_label=f"one request at a time, {_ALONE_TOKENS} tokens of each output" if alone else None,
        late=True,
    )

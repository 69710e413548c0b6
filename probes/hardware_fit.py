"""Question 1: does the model fit, with room for KV?

Memory is a budget. What is left of it after weights, activations and what lives outside the framework is KV capacity;
the trace's own KV demand over time says whether that is enough.
"""

from __future__ import annotations

import math

import numpy as np

from inferdoc.evidence import Basis, Question
from inferdoc.models import ModelSpec
from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.probes.paired import Pair
from inferdoc.traces import Trace

QUESTION = Question.HARDWARE_FIT


def comparisons(context: ProbeContext) -> list[Pair]:
    return []


def observe(context: ProbeContext) -> None:
    found, spec = context.found, context.spec
    weights = context.loaded.weight_bytes_measured
    per_token = context.runner.kv_bytes_per_token
    found.add(
        "fit.budget_bytes",
        "memory budget",
        context.budget_bytes,
        "bytes",
        Basis.MEASURED,
        exact=True,
        note=context.device.memory_label,
    )
    found.add("fit.weights_bytes", f"weights in {context.loaded.dtype}", weights, "bytes", Basis.MEASURED, exact=True)
    found.add(
        "fit.weights_fraction",
        "weights' share of the memory budget",
        weights / context.budget_bytes,
        "share",
        Basis.MEASURED,
        exact=True,
    )
    unknown = "the platform does not tell"
    memory = context.memory
    found.add(
        "fit.activation_peak_bytes",
        f"activation peak at {memory.step_tokens} tokens a step",
        memory.activation_peak,
        "bytes",
        Basis.MEASURED,
        reason=unknown if memory.activation_peak is None else None,
    )
    found.add(
        "fit.outside_framework_bytes",
        "process memory outside the framework's tensors",
        memory.outside_framework,
        "bytes",
        Basis.MEASURED,
        reason=unknown if memory.outside_framework is None else None,
    )
    found.add(
        "fit.kv_bytes_per_token",
        f"KV bytes a token, as this engine stores it ({context.loaded.dtype})",
        per_token,
        "bytes",
        Basis.MEASURED,
        exact=True,
        note=_storage_note(spec, context),
    )
    found.add("fit.kv_capacity_tokens", "KV capacity", context.kv_capacity_tokens, "tokens", Basis.MEASURED, exact=True)
    _sizes(found, spec)
    longest = longest_request(context.trace)
    found.add("fit.longest_request_tokens", "longest request of the trace", longest, "tokens", Basis.TRACE, exact=True)
    found.add(
        "fit.fits",
        "the model fits with the longest request's KV",
        float(context.kv_capacity_tokens >= longest),
        "yes or no",
        Basis.MEASURED,
        exact=True,
    )
    _devices(found, spec, context.budget_bytes, context.loaded.dtype, longest)
    demand = kv_demand(context)
    no_arrivals = "the trace has no arrival times"
    for name, label, quantile in (("p50", "median", 50), ("p99", "99th percentile", 99)):
        found.add(
            f"fit.kv_demand_{name}_tokens",
            f"KV demand over time, {label}",
            float(_weighted_percentile(*demand, quantile)) if demand else None,
            "tokens",
            Basis.MODELLED,
            reason=None if demand else no_arrivals,
            note=f"no queueing; step times fitted here, hold-out error {context.sweep.times.relative_error:.0%}",
        )
    p99 = found.quantities["fit.kv_demand_p99_tokens"].value
    found.add(
        "fit.kv_headroom",
        "KV capacity over the 99th percentile of demand",
        context.kv_capacity_tokens / p99 if p99 else None,
        "x",
        Basis.MODELLED,
        reason=None if p99 else no_arrivals,
    )
    _student(context)


def observe_without_model(
    found: Collector, spec: ModelSpec, trace: Trace, *, budget_bytes: int, dtypes: list[str]
) -> None:
    """Question 1 where not even the smallest of `dtypes` fits: sizes alone, worked out from the configuration."""
    weights = spec.weight_bytes(dtypes[0])
    found.add("fit.budget_bytes", "memory budget", budget_bytes, "bytes", Basis.MEASURED, exact=True)
    found.add("fit.weights_bytes", f"weights in {dtypes[0]}", weights, "bytes", Basis.CONFIG, exact=True)
    found.add(
        "fit.weights_fraction",
        "weights' share of the memory budget",
        weights / budget_bytes,
        "share",
        Basis.CONFIG,
        exact=True,
        note="tried: " + ", ".join(f"{d} ({spec.weight_bytes(d) / 2**30:.2f} GiB)" for d in dtypes),
    )
    found.add(
        "fit.kv_bytes_per_token",
        "KV bytes a token",
        spec.kv_bytes_per_token(dtype=dtypes[0]),
        "bytes",
        Basis.CONFIG,
        exact=True,
    )
    _sizes(found, spec)
    lengths = (trace.rows["input_tokens"] + trace.rows["output_tokens"]).drop_nulls().to_numpy()
    lengths = lengths[lengths <= (spec.context_length or np.inf)]
    longest = int(lengths.max()) if len(lengths) else None
    found.add(
        "fit.longest_request_tokens",
        "longest request of the trace within the model's context",
        longest,
        "tokens",
        Basis.TRACE,
        exact=True,
        reason=None if longest is not None else "the trace is text, and the model that would count it was not loaded",
    )
    found.add("fit.fits", "the model fits with the longest request's KV", 0.0, "yes or no", Basis.CONFIG, exact=True)
    _devices(found, spec, budget_bytes, dtypes[0], longest or 1)


def longest_request(trace: Trace) -> int:
    """Tokens of the longest prompt with its output."""
    return int((trace.rows["input_tokens"] + trace.rows["output_tokens"]).to_numpy().max())


def devices_needed(spec: ModelSpec, budget_bytes: int, dtype: str, tokens: int) -> int | None:
    """Smallest power of two of devices whose share of weights and of one request's KV fits the budget of one device.

    ``None`` where no number up to 1,024 is enough: KV heads are copied, not split, once there are more devices.
    """
    for count in (1 << i for i in range(11)):
        shared = spec.weight_bytes(dtype) / count + spec.kv_bytes(tokens, dtype=dtype, tensor_parallel=count)
        if shared <= budget_bytes:
            return count
    return None


def _devices(found: Collector, spec: ModelSpec, budget_bytes: int, dtype: str, tokens: int) -> None:
    count = devices_needed(spec, budget_bytes, dtype, tokens)
    found.add(
        "fit.devices_needed",
        f"devices of this size for weights and the KV of {tokens:,} tokens",
        count,
        "devices",
        Basis.MODELLED,
        exact=True,
        reason=None if count else "not even 1,024 devices of this size hold it",
        note="tensor parallelism: weights split evenly, KV heads split while there are enough",
    )


def kv_demand(context: ProbeContext) -> tuple[np.ndarray, np.ndarray] | None:
    """Tokens of KV wanted at each moment of the trace, and for how many seconds.

    Each request holds its prompt and output from its arrival until it would be done: its prompt at the fitted cost of a
    token, then its output at the fitted step time of a full batch, without queueing. An upper estimate, since the
    output's K/V come one by one.
    """
    rows = context.trace.rows
    if rows["arrival_s"].null_count():
        return None
    arrivals = rows["arrival_s"].to_numpy()
    inputs, outputs = rows["input_tokens"].to_numpy(), rows["output_tokens"].to_numpy()
    seconds = inputs * context.sweep.times.token + outputs * context.sweep.decode[-1].median
    times = np.concatenate([arrivals, arrivals + seconds])
    changes = np.concatenate([inputs + outputs, -(inputs + outputs)])
    order = np.argsort(times, kind="stable")
    levels = np.cumsum(changes[order])[:-1]
    return levels, np.diff(times[order])


def _weighted_percentile(levels: np.ndarray, seconds: np.ndarray, quantile: float) -> float:
    order = np.argsort(levels)
    share = np.cumsum(seconds[order]) / seconds.sum()
    return float(levels[order][min(int(np.searchsorted(share, quantile / 100)), len(order) - 1)])


def _sizes(found: Collector, spec: ModelSpec) -> None:
    for dtype in ("int8", "int4"):
        found.add(
            f"fit.weights_{dtype}_bytes",
            f"weights in {dtype}",
            spec.weight_bytes(dtype),
            "bytes",
            Basis.CONFIG,
            exact=True,
            note="linear layers only; embeddings and head stay at 16 bit",
        )
    found.add(
        "fit.kv_fp8_bytes_per_token",
        "KV bytes a token in FP8",
        spec.kv_bytes_per_token(dtype="fp8"),
        "bytes",
        Basis.CONFIG,
        exact=True,
    )


def _storage_note(spec: ModelSpec, context: ProbeContext) -> str | None:
    by_formula = spec.kv_bytes_per_token(dtype=context.loaded.dtype)
    if by_formula == context.runner.kv_bytes_per_token:
        return None
    return f"the configuration gives {by_formula} B: this engine stores every layer's keys and values whole"


def _student(context: ProbeContext) -> None:
    """Distillation, sized: parameters whose read alone would take the TPOT limit at this device's bandwidth."""
    limits = [slo.limit for slo in context.settings.slo if slo.metric.startswith(("tpot", "itl"))]
    bandwidth = context.bandwidth.bytes_per_s
    reason = None
    if not limits:
        reason = "no SLO on TPOT was given"
    elif context.bandwidth.cache_resident or bandwidth is None:
        reason = "cache-resident: memory bandwidth does not set the step time"
    size = None
    if reason is None and bandwidth is not None:
        fraction = context.roofline_fraction(
            context.sweep.decode[0].median, context_tokens=context.sweep.decode[0].context
        )
        size = math.floor(
            min(limits)
            * bandwidth
            * (fraction or 1.0)
            / (context.loaded.weight_bytes_measured / context.spec.parameters)
        )
    context.found.add(
        "fit.student_parameters",
        "largest model whose step would meet the TPOT limit at this engine's bandwidth",
        size,
        "parameters",
        Basis.MODELLED,
        reason=reason,
    )

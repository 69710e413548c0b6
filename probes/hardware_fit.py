"""Question 1: does the model fit, with room for KV?

Memory is a budget. What is left of it after weights, activations and what lives outside the framework is KV capacity;
the trace's own KV demand over time says whether that is enough.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from inferdoc.evidence import Basis, Question
from inferdoc.models import ModelSpec
from inferdoc.probes import compression, fit_against_plan, student
from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.probes.paired import Pair
from inferdoc.traces import SCHEMA, Trace
from inferdoc.traces.demand import analyse_demand
from inferdoc.traces.service import Floats, Ints
from inferdoc.traces.time_weighted import OverTime

QUESTION = Question.HARDWARE_FIT
_UNTOLD = "the platform does not tell"


def comparisons(context: ProbeContext) -> list[Pair]:
    return compression.comparisons(context)


def observe(context: ProbeContext) -> None:
    found, spec = context.found, context.spec
    weights = context.loaded.weight_bytes_measured
    per_token = context.runner.kv_bytes_per_token
    found.add(
        "fit.budget_bytes",
        "memory budget",
        context.budget_bytes,
        "bytes",
        Basis.CONFIG if context.settings.memory_given else Basis.MEASURED,
        exact=True,
        note="as given" if context.settings.memory_given else context.device.memory_label,
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
    _terms(context)
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
    _draft(context)
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
    observe_demand(context)
    student.size(context)
    compression.survey(context)
    fit_against_plan.observe(context)


def _draft(context: ProbeContext) -> None:
    """What a draft model takes from the KV capacity, which is stated with it."""
    given = context.draft is not None
    context.found.add(
        "fit.draft_takes_tokens",
        "KV capacity that the draft model takes, its weights included",
        context.memory.draft // context.runner.kv_bytes_per_token if given else None,
        "tokens",
        Basis.MEASURED,
        exact=True,
        reason=None if given else "there is no draft model",
    )


def _terms(context: ProbeContext) -> None:
    """The rest of the memory budget, term by term: with weights they add up to it."""
    memory = context.memory
    profile = memory.profile
    rows = min(profile.step.sequences, profile.step.tokens)
    for id, label, value, missing in (
        (
            "fit.activation_peak_bytes",
            f"activation peak in a step of {profile.step.tokens:,} tokens, logits included",
            profile.activation_peak,
            _UNTOLD,
        ),
        ("fit.logits_bytes", f"logits of {rows} sequences, in the activation peak", profile.logits, None),
        ("fit.graphs_bytes", "CUDA graphs", memory.graphs, "no graphs were captured"),
        (
            "fit.outside_framework_bytes",
            "process memory outside the framework's tensors",
            profile.outside_framework,
            _UNTOLD,
        ),
        (
            "fit.draft_bytes",
            "the draft model's weights and KV",
            memory.draft if context.draft else None,
            "there is no draft model",
        ),
        ("fit.kv_pool_bytes", f"KV pool of {context.base.num_kv_blocks:,} blocks", memory.kv_pool, None),
    ):
        reason = missing if value is None else None
        context.found.add(id, label, value, "bytes", Basis.MEASURED, exact=True, reason=reason)
    context.found.add(
        "fit.memory_left_bytes",
        "memory budget left over",
        memory.left,
        "bytes",
        Basis.MEASURED,
        exact=True,
        note="; ".join(
            filter(None, ["the budget less weights, activations, graphs, outside, draft model and pool", memory.note])
        ),
    )


def observe_demand(context: ProbeContext) -> None:
    """KV demand over the trace's time against capacity, with the fit's hold-out error as its interval."""
    found, error = context.found, context.sweep.times.relative_error
    demand, reason = kv_demand(context)
    method = "plus or minus the fit's hold-out error"

    def add(id: str, label: str, value: float | None, unit: str, why: str | None) -> None:
        interval = (value * (1 - error), value * (1 + error)) if value else None
        note = "no queueing: each request starts when it arrives"
        found.add(id, label, value, unit, Basis.MODELLED, interval=interval, method=method, reason=why, note=note)

    values = {50: demand.p50 if demand else None, 99: demand.p99 if demand else None}
    add("fit.kv_demand_p50_tokens", "KV demand over time, median", values[50], "tokens", reason)
    add("fit.kv_demand_p99_tokens", "KV demand over time, 99th percentile", values[99], "tokens", reason)
    for id, q, label in (("fit.kv_headroom_p50", 50, "median"), ("fit.kv_headroom", 99, "99th percentile")):
        wanted = values[q]
        why = None if wanted else reason or f"the trace asks for no KV at {q}% of its time"
        add(
            id,
            f"KV capacity over the {label} of demand",
            context.kv_capacity_tokens / wanted if wanted else None,
            "x",
            why,
        )


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
    student.size_to_fit(found, spec, budget_bytes=budget_bytes, dtype=dtypes[0], tokens=longest or 1)


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


def kv_demand(context: ProbeContext) -> tuple[OverTime | None, str | None]:
    """Tokens of KV wanted over the trace's time, or why that is not known.

    By the step times fitted here, not by those that the trace may record of another server: the prompt at the fitted
    cost of a token, then the output at the fitted step time of a full batch, without queueing.
    """
    times, step = context.sweep.times, context.sweep.decode[-1].median

    def service(prompts: Ints, outputs: Ints) -> tuple[Floats, Floats]:
        return prompts.astype(np.float64) * times.token, np.maximum(outputs - 1, 0).astype(np.float64) * step

    recorded = (pl.lit(None, SCHEMA[name]).alias(name) for name in ("ttft_s", "e2e_s", "queue_s"))
    trace = replace(context.trace, rows=context.trace.rows.with_columns(*recorded))
    found = analyse_demand(trace, service=service)
    whole = found.whole
    if whole is None:
        return None, found.reason or "the trace has several clocks"
    return whole.live_tokens, whole.reason


def _sizes(found: Collector, spec: ModelSpec) -> None:
    """What smaller types would take, worked out from the configuration."""
    full, kv = spec.weight_bytes("bfloat16"), spec.kv_bytes_per_token(dtype="bfloat16")
    note = "linear layers only; embeddings and head stay at 16 bit"
    sizes = {dtype: spec.weight_bytes(dtype) for dtype in ("int8", "int4")}
    for dtype, size in sizes.items():
        id = f"fit.weights_{dtype}_bytes"
        found.add(id, f"weights in {dtype}", size, "bytes", Basis.CONFIG, exact=True, note=note)
    fp8 = spec.kv_bytes_per_token(dtype="fp8")
    found.add("fit.kv_fp8_bytes_per_token", "KV bytes a token in FP8", fp8, "bytes", Basis.CONFIG, exact=True)
    for id, label, value in (
        ("fit.int8_weight_saving", "weight memory that INT8 saves against 16 bit", 1 - sizes["int8"] / full),
        ("fit.kv_fp8_saving", "KV memory that FP8 saves against 16 bit", 1 - fp8 / kv if kv else None),
    ):
        found.add(
            id, label, value, "share", Basis.CONFIG, exact=True, reason=None if value is not None else "no KV at all"
        )


def _storage_note(spec: ModelSpec, context: ProbeContext) -> str | None:
    by_formula = spec.kv_bytes_per_token(dtype=context.loaded.dtype)
    if by_formula == context.runner.kv_bytes_per_token:
        return None
    return f"the configuration gives {by_formula} B: this engine stores every layer's keys and values whole"

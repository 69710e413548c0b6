"""Question 6: is the scale such that prefill and decode should part?

How much a long prompt stretches the gaps between tokens of running decodes, with and without chunked prefill; and how
many replicas the trace's load takes in all, from step times. Below one replica there is nothing to part.
"""

from __future__ import annotations

import numpy as np

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import RunResult
from inferdoc.engine.request import Request
from inferdoc.evidence import Basis, Question
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.paired import Pair, Trial

QUESTION = Question.DISAGGREGATION
SETTLE_STEPS = 4
"""Decode steps before the long prompt arrives; their gaps are the steady state."""


def comparisons(context: ProbeContext) -> list[Pair]:
    if long_prompt(context) <= context.base.max_num_batched_tokens:
        return []
    return [
        Pair(
            id="chunked_prefill.interference",
            question=QUESTION,
            technique="chunked_prefill",
            label="chunked prefill beside running decodes",
            off=context.config(enable_chunked_prefill=False),
            on=context.base,
            metrics=("itl_max", "ttft_p50", "itl_steady"),
            trial=interfere,
            load_label="a long prompt joins a running batch",
            notes=(
                f"a prompt of {long_prompt(context):,} tokens arrives beside {context.base.max_num_seqs - 1} running "
                "decodes; TTFT is that prompt's",
            ),
        )
    ]


def long_prompt(context: ProbeContext) -> int:
    """The trace's longest prompt that leaves room for one token."""
    return min(int(context.trace.rows["input_tokens"].max()), context.base.max_model_len - 1)  # type: ignore[arg-type]


def interfere(context: ProbeContext, pair: Pair, config: EngineConfig) -> Trial:
    """One run: a batch decodes, a long prompt joins; the longest gap between tokens of the others is the stall."""
    rng = np.random.default_rng([context.settings.seed, 3])
    vocabulary = context.spec.vocab_size
    long = long_prompt(context)
    most_steps = 2 * SETTLE_STEPS + -(-long // max(1, config.max_num_batched_tokens - config.max_num_seqs)) + 8
    decoding = [
        Request(i, rng.integers(0, vocabulary, 16).tolist(), most_steps + 2) for i in range(config.max_num_seqs - 1)
    ]
    engine = context.engine(config)
    start = engine.now()
    for request in decoding:
        engine.scheduler.add(request)
    for _ in range(SETTLE_STEPS + 1):
        engine.step(start)
    late = Request(len(decoding), rng.integers(0, vocabulary, long).tolist(), 1, engine.now() - start)
    engine.scheduler.add(late)
    while not late.finished:
        engine.step(start)
    for _ in range(2):
        engine.step(start)
    steady = [gap for request in decoding for gap in request.itl_s[:SETTLE_STEPS]]
    stalled = [gap for request in decoding for gap in request.itl_s[SETTLE_STEPS:]]
    run = RunResult(config, [*decoding, late], engine.steps, engine.now() - start)
    values = {"itl_max": max(stalled), "ttft_p50": late.ttft_s, "itl_steady": float(np.median(steady))}
    return Trial(values=values, run=run)


def observe(context: ProbeContext) -> None:
    found = context.found
    comparison = found.comparisons.get("chunked_prefill.interference")
    chunking_idle = long_prompt(context) <= context.base.max_num_batched_tokens
    missing = (
        f"no prompt is longer than max_num_batched_tokens ({context.base.max_num_batched_tokens})"
        if chunking_idle
        else "not run"
    )
    metrics = comparison.metrics if comparison else None
    fraction = comparison.roofline_fraction if comparison else None
    limit = fraction.roofline if fraction else None
    for id, label, quantity in (
        (
            "disagg.itl_stall_unchunked",
            "longest gap of running decodes while a long prompt runs whole",
            metrics and metrics["itl_max"].off_estimate,
        ),
        (
            "disagg.itl_stall_chunked",
            "longest gap of running decodes while a long prompt runs in chunks",
            metrics and metrics["itl_max"].on_estimate,
        ),
        (
            "disagg.itl_steady",
            "gap between tokens of running decodes without a prompt beside them",
            metrics and metrics["itl_steady"].on_estimate,
        ),
    ):
        known = quantity if quantity and quantity.value is not None else None
        interval = known.interval if known else None
        found.add(
            id,
            label,
            known.value if known else None,
            "s",
            Basis.MEASURED,
            n=known.n if known else None,
            direction="lower",
            interval=(interval.low, interval.high) if interval else None,
            reason=None if known else (quantity.reason if quantity else missing),
            roofline=limit if known else None,
        )
    steady = found.quantities["disagg.itl_steady"].value
    stall = found.quantities["disagg.itl_stall_chunked"].value
    found.add(
        "disagg.stall_ratio_chunked",
        "longest gap in chunks over the steady gap",
        stall / steady if stall and steady else None,
        "x",
        Basis.MEASURED,
        direction="lower",
        reason=None if stall and steady else missing,
        roofline=limit if stall and steady else None,
    )
    # A limit on the longest gap; where there is none, the one on the mean gap.
    limits = [slo.limit for slo in context.settings.slo if slo.metric == "itl_max"] or [
        slo.limit for slo in context.settings.slo if slo.metric.startswith("tpot")
    ]
    reason = None if limits and stall else (missing if limits else "no SLO on ITL or TPOT was given")
    found.add(
        "disagg.itl_slo_margin",
        "ITL limit over the longest gap in chunks",
        min(limits) / stall if limits and stall else None,
        "x",
        Basis.MEASURED,
        direction="higher",
        reason=reason,
        roofline=limit if limits and stall else None,
    )
    _load(context)


def _load(context: ProbeContext) -> None:
    """Device seconds that the trace offers each second, from fitted step times; decodes in full batches."""
    found, times = context.found, context.sweep.times
    rows = context.trace.rows
    inputs, outputs = float(rows["input_tokens"].sum()), float(rows["output_tokens"].sum())
    found.add(
        "disagg.input_output_ratio",
        "input tokens over output tokens",
        inputs / outputs,
        "ratio",
        Basis.TRACE,
        exact=True,
    )
    duration = context.trace.duration_s
    full = context.sweep.decode[-1]
    share = context.trace.replicas  # the trace is one replica's; the load of all of them is so many times it
    steps = inputs / context.base.max_num_batched_tokens
    prefill = share * (inputs * times.token + steps * times.base) / duration if duration else None
    decode = share * outputs * full.median / full.batch / duration if duration else None
    reason = None if duration else "the trace has no arrival times"
    error = times.relative_error
    note = (
        f"mean load of the whole trace, a peak takes more; step times fitted here; decodes in batches of {full.batch}"
    )
    needed = prefill + decode if prefill is not None and decode is not None else None
    for id, label, value, unit in (
        ("disagg.prefill_s_per_s", "prefill seconds offered each second", prefill, "ratio"),
        ("disagg.decode_s_per_s", "decode seconds offered each second", decode, "ratio"),
        ("disagg.replicas_needed", "replicas of this device that the trace's mean load takes", needed, "replicas"),
    ):
        found.add(
            id,
            label,
            value,
            unit,
            Basis.MODELLED,
            interval=(value * (1 - error), value * (1 + error)) if value is not None else None,
            method="plus or minus the fit's hold-out error",
            reason=reason,
            note=note,
        )

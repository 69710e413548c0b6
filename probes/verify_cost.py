"""What checking drafted tokens costs by batch size, and what a stated acceptance would make of it."""

from __future__ import annotations

from inferdoc.engine.spec_decode.acceptance import speedup
from inferdoc.evidence import Basis, Line, Question, Roofline, Series
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.roofline import Work, roofline
from inferdoc.statistics import median_interval

_STATED = tuple(round(0.1 * i, 1) for i in range(10))
"""Chances of a drafted token to be accepted, given those before it, that the curve is drawn for."""


def observe_verify_cost(context: ProbeContext) -> None:
    """T(B, k + 1) / T(B, 1): a speculative step at that batch must emit more tokens a row than that."""
    sweep, k = context.sweep, context.settings.num_speculative_tokens
    known = (1, k) in sweep.verify
    interval = median_interval(sweep.verify[1, k]) if known else None
    context.found.add(
        "latency.ngram_breakeven",
        f"tokens a step that checking {k} drafted tokens must emit to pay at batch 1",
        sweep.verify_ratio(1, k) if known else None,
        "tokens",
        Basis.MEASURED,
        interval=interval,
        n=len(sweep.verify[1, k]) if known else None,
        direction="lower",
        reason=None if known else "the context is too short",
        note="drafting itself counted as free" if known else None,
        roofline=check_limit(context, 1, k) if known else None,
    )
    lines = []
    for point in sweep.decode:
        lengths = [k for batch, k in sorted(sweep.verify) if batch == point.batch]
        ratios = [sweep.verify_ratio(point.batch, k) for k in lengths]
        if lengths:
            limits = [check_limit(context, point.batch, k) for k in lengths]
            lines.append(Line(name=f"batch {point.batch}", x=[float(k) for k in lengths], y=[*ratios], roofline=limits))
    if lines:
        context.found.series.append(
            Series(
                id="latency.verify_cost",
                question=Question.TOKEN_LATENCY,
                title="Cost of checking drafted tokens, by batch size",
                kind="line",
                x_label="drafted tokens a row",
                x_unit="tokens",
                y_label="step time over a plain step",
                y_unit="ratio",
                lines=lines,
            )
        )


def observe_stated_acceptance(context: ProbeContext) -> None:
    """Speed-up of decode steps if each drafted token were accepted with a stated chance, and drafting took no time."""
    sweep, k = context.sweep, context.settings.num_speculative_tokens
    lines = [
        Line(
            name=f"batch {point.batch}",
            x=list(_STATED),
            y=[speedup(alpha, k, 0.0, sweep.verify_ratio(point.batch, k)) for alpha in _STATED],
        )
        for point in sweep.decode
        if (point.batch, k) in sweep.verify
    ]
    if lines:
        context.found.series.append(
            Series(
                id="latency.stated_acceptance",
                question=Question.TOKEN_LATENCY,
                title=f"Speed-up of decode steps by a stated (synthetic) acceptance, {k} drafted, drafting free",
                kind="line",
                x_label="chance that a drafted token is accepted",
                x_unit="share",
                y_label="speed-up",
                y_unit="ratio",
                lines=lines,
            )
        )


def check_limit(context: ProbeContext, batch: int, drafted: int) -> Roofline:
    """The roofline of a step that checks so many drafted tokens of each row."""
    point = context.sweep.decode_at(batch)
    seconds = point.median * (context.sweep.verify_ratio(batch, drafted) if drafted else 1.0)
    tokens = batch * (drafted + 1)
    return roofline(context, [Work(seconds, tokens, tokens, batch, batch * point.context)])

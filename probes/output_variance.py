"""Question 3: do output lengths vary? What static batches would waste, and static against continuous batching."""

from __future__ import annotations

import numpy as np

from inferdoc.engine.engine import RunResult
from inferdoc.evidence import Basis, Line, Question, Series
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.paired import Pair, off_and_on
from inferdoc.statistics import percentile, samples_needed
from inferdoc.traces.batch_waste import static_waste

QUESTION = Question.OUTPUT_VARIANCE


def comparisons(context: ProbeContext) -> list[Pair]:
    return off_and_on(
        QUESTION,
        "continuous_batching",
        "continuous batching",
        off=context.config(batching="static"),
        on=context.base,
        slo=context.settings.slo,
    )


def observe_lengths(context: ProbeContext) -> None:
    """How output lengths vary, and what static batches would waste on it."""
    found = context.found
    outputs = context.trace.rows["output_tokens"].to_numpy()
    cv = float(outputs.std() / outputs.mean())
    found.add(
        "variance.output_cv",
        "coefficient of variation of output lengths",
        cv,
        "ratio",
        Basis.TRACE,
        exact=True,
        n=len(outputs),
    )
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        value = percentile(outputs.tolist(), quantile)
        found.add(
            f"variance.output_{name}_tokens",
            f"output length, {name}",
            value,
            "tokens",
            Basis.TRACE,
            n=len(outputs),
            reason=None if value is not None else f"{len(outputs)} requests; {name} needs {samples_needed(quantile)}",
        )
    size = context.base.max_num_seqs
    found.add(
        "variance.static_waste",
        f"slot steps that static batches of {size} waste",
        static_waste(outputs, size),
        "share",
        Basis.TRACE,
        exact=True,
    )


def observe(context: ProbeContext) -> None:
    observe_lengths(context)
    found, outputs = context.found, context.trace.rows["output_tokens"].to_numpy()
    sizes = [2**i for i in range(1, 9)]
    found.series.append(
        Series(
            id="variance.static_waste_by_batch",
            question=QUESTION,
            title="Slot steps wasted by static batches",
            kind="line",
            x_label="batch size",
            x_unit="requests",
            y_label="wasted share",
            y_unit="share",
            x_log=True,
            lines=[
                Line(name="in arrival order", x=[float(s) for s in sizes], y=[static_waste(outputs, s) for s in sizes])
            ],
        )
    )
    found.series.append(_histogram(outputs))
    run = context.runs.get("continuous_batching.open", {}).get("off")
    share = queue_behind_long_share(run) if run else None
    found.add(
        "variance.queue_behind_long_share",
        "share of queueing in a static batch spent behind rows that were done",
        share,
        "share",
        Basis.MEASURED,
        exact=True,
        reason=None
        if share is not None
        else ("nothing queued" if run else "static batching was not run in an open loop"),
    )


def queue_behind_long_share(run: RunResult) -> float | None:
    """Of the time that requests queued, the share during which the running batch held finished rows."""
    queued = sum(step.waiting * step.duration_s for step in run.steps)
    behind = sum(step.waiting * step.duration_s for step in run.steps if step.padded_rows)
    return behind / queued if queued else None


def _histogram(outputs: np.ndarray) -> Series:
    edges = np.unique(np.geomspace(1, max(2, outputs.max() + 1), 25).astype(int))
    counts, edges = np.histogram(outputs, bins=edges)
    return Series(
        id="variance.output_lengths",
        question=QUESTION,
        title="Output lengths of the trace",
        kind="bar",
        x_label="output tokens, from",
        x_unit="tokens",
        y_label="requests",
        y_unit="requests",
        x_log=True,
        lines=[Line(name="requests", x=[float(e) for e in edges[:-1]], y=[float(c) for c in counts])],
    )

"""Question 5: is per-token latency the limit? Step time by batch, roofline share, kernels and drafts off and on."""

from __future__ import annotations

from collections.abc import Sequence

from inferdoc.evidence import Basis, Line, Question, Roofline, Series
from inferdoc.probes import kernels, speculation
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.objective import observe_objective, per_token
from inferdoc.probes.paired import Pair
from inferdoc.probes.roofline import NO_MBU, NO_RATE, Work, roofline
from inferdoc.probes.sweep import SweepPoint
from inferdoc.statistics import median_interval

QUESTION = Question.TOKEN_LATENCY


def comparisons(context: ProbeContext) -> list[Pair]:
    return speculation.comparisons(context) + kernels.comparisons(context)


def observe(context: ProbeContext) -> None:
    found, sweep = context.found, context.sweep
    first, last = sweep.decode[0], sweep.decode[-1]
    _tpot(context, "latency.tpot_b1", f"TPOT at batch 1, {first.context:,} tokens of context", first)
    _tpot(context, "latency.tpot_full_batch", f"TPOT of decodes alone at batch {last.batch}", last)
    observe_objective(context)
    limits = [slo.limit for slo in context.settings.slo if per_token(slo)]
    within = [point.batch for point in sweep.decode if limits and point.median <= min(limits)]
    found.add(
        "latency.batch_in_slo",
        "largest measured batch whose decodes alone are within the limit on the time per token",
        float(max(within, default=0)) if limits else None,
        "requests",
        Basis.MEASURED,
        exact=True,
        reason=None if limits else "no SLO on the time per token was given",
    )
    scheduling = sum(step.schedule_s for step in sweep.steps) / sum(step.duration_s for step in sweep.steps)
    found.add(
        "latency.schedule_share",
        "scheduler's share of the steps timed",
        scheduling,
        "share",
        Basis.MEASURED,
        exact=True,
        n=len(sweep.steps),
        roofline=roofline(context, [Work.of(step) for step in sweep.steps]),
    )
    found.add(
        "latency.bandwidth",
        "memory bandwidth of the device, read",
        context.bandwidth.bytes_per_s,
        "bytes/s",
        Basis.MEASURED,
        reason=None if context.bandwidth.bytes_per_s else "could not be measured",
        note="the working set fits the last-level cache" if context.bandwidth.cache_resident else None,
    )
    found.add(
        "latency.matrix_rate",
        f"matrix rate of the device in {context.loaded.dtype}",
        context.matmul.flops_per_s if context.matmul else None,
        "FLOP/s",
        Basis.MEASURED,
        reason=None if context.matmul else "could not be measured",
    )
    for name, point in (("b1", first), ("max_batch", last)):
        limit = _limit(context, point)
        for id, label, value, missing in (
            ("latency.roofline", "share of the memory-bandwidth roofline (MBU)", limit.memory, NO_MBU),
            ("latency.compute", "share of the compute roofline", limit.compute, NO_RATE),
        ):
            found.add(
                f"{id}_{name}",
                f"{label} at batch {point.batch}",
                value,
                "share",
                Basis.MEASURED,
                direction="higher",
                reason=None if value is not None else missing,
            )
    kv = last.batch * last.context * context.runner.kv_bytes_per_token
    found.add(
        "latency.kv_share_of_step_bytes",
        f"K/V share of the bytes a decode step reads at batch {last.batch}",
        kv / (kv + context.loaded.weight_bytes_measured),
        "share",
        Basis.MODELLED,
        exact=True,
    )
    kernels.observe(context)
    speculation.observe(context)
    found.series.append(
        Series(
            id="latency.tpot_by_batch",
            question=QUESTION,
            title="TPOT by batch size",
            kind="line",
            x_label="batch size",
            x_unit="requests",
            y_label="TPOT",
            y_unit="s",
            x_log=True,
            lines=[_line(context, "decode step", sweep.decode)],
        )
    )


def _limit(context: ProbeContext, point: SweepPoint) -> Roofline:
    """The roofline of a point's median step."""
    rows = point.batch
    return roofline(context, [Work(point.median, rows, rows, rows, rows * point.context)])


def _tpot(context: ProbeContext, id: str, label: str, point: SweepPoint) -> None:
    context.found.add(
        id,
        label,
        point.median,
        "s",
        Basis.MEASURED,
        interval=median_interval(point.seconds),
        n=len(point.seconds),
        direction="lower",
        roofline=_limit(context, point),
    )


def _line(context: ProbeContext, name: str, points: Sequence[SweepPoint]) -> Line:
    intervals = [median_interval(p.seconds) or (p.median, p.median) for p in points]
    return Line(
        name=name,
        x=[float(p.batch) for p in points],
        y=[p.median for p in points],
        low=[low for low, _ in intervals],
        high=[high for _, high in intervals],
        roofline=[_limit(context, point) for point in points],
    )

"""Question 5: is per-token latency the limit? Step time by batch, its share of the roofline, what drafts would need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferdoc.evidence import Basis, Line, Quantity, Question, Roofline, Series
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.paired import Pair
from inferdoc.probes.roofline import NO_MBU, NO_RATE, Work, roofline
from inferdoc.probes.sweep import SweepPoint
from inferdoc.statistics import median_interval

QUESTION = Question.TOKEN_LATENCY
DRAFTED = 4
"""Tokens that the n-gram drafter proposes at each step."""
NGRAM = (2, 4)
"""Shortest and longest suffix looked up."""


def comparisons(context: ProbeContext) -> list[Pair]:
    return []


def observe(context: ProbeContext) -> None:
    found, sweep = context.found, context.sweep
    first, last = sweep.decode[0], sweep.decode[-1]
    _tpot(context, "latency.tpot_b1", f"TPOT at batch 1, {first.context:,} tokens of context", first)
    _tpot(context, "latency.tpot_full_batch", f"TPOT of decodes alone at batch {last.batch}", last)
    limits = [slo.limit for slo in context.settings.slo if slo.metric.startswith("tpot")]
    no_slo = "no SLO on TPOT was given"
    at_load = _tpot_at_load(context)
    share = at_load.value / min(limits) if limits and at_load.value else None
    found.add(
        "latency.slo_share",
        "TPOT at the open-loop load over its limit",
        share,
        "ratio",
        Basis.MEASURED,
        interval=(at_load.interval.low / min(limits), at_load.interval.high / min(limits))
        if share and at_load.interval
        else None,
        direction="lower",
        reason=None if share else (at_load.reason if limits else no_slo),
        roofline=at_load.roofline,
    )
    within = [point.batch for point in sweep.decode if limits and point.median <= min(limits)]
    found.add(
        "latency.batch_in_slo",
        "largest measured batch whose decodes alone are within the TPOT limit",
        float(max(within, default=0)) if limits else None,
        "requests",
        Basis.MEASURED,
        exact=True,
        reason=None if limits else no_slo,
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
    found.add(
        "latency.launch_share",
        "device idle share of a decode step",
        None,
        "share",
        Basis.MEASURED,
        reason="needs CUDA events" if context.device.kind == "cpu" else "not yet supported",
    )
    found.add(
        "latency.attention_share",
        "attention's share of a decode step",
        None,
        "share",
        Basis.MEASURED,
        reason="not yet supported",
    )
    _verification(context)
    _ngram(context)
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


def _tpot_at_load(context: ProbeContext) -> Quantity:
    """Median TPOT in the open-loop runs of the base configuration: whichever pair has one as an arm."""
    arms = (("prefix_caching.open", "off"), ("continuous_batching.open", "on"))
    estimates = [q for id, arm in arms if (q := context.found.lookup(f"{id}.tpot_p50.{arm}")) and q.value is not None]
    known = estimates[0] if estimates else None
    interval = known.interval if known else None
    comparison = context.found.comparisons[known.id.rpartition(".tpot_p50.")[0]] if known else None
    fraction = comparison.roofline_fraction if comparison else None
    context.found.add(
        "latency.tpot_at_load",
        "TPOT at the open-loop load, median",
        known.value if known else None,
        "s",
        Basis.MEASURED,
        interval=(interval.low, interval.high) if interval else None,
        n=known.n if known else None,
        direction="lower",
        reason=None if known else "no open-loop run was made",
        roofline=fraction.roofline if fraction else None,
    )
    return context.found.quantities["latency.tpot_at_load"]


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


def _verification(context: ProbeContext) -> None:
    """Cost of checking k drafted tokens over a plain step, at batch 1: a speculative step must emit more than that."""
    plain = context.sweep.decode[0]
    times = {k: sorted(seconds)[len(seconds) // 2] for k, seconds in sorted(context.sweep.verify.items())}
    costs = {k: seconds / plain.median for k, seconds in times.items()}
    limits = {k: roofline(context, [Work(times[k], k + 1, 1, 1, plain.context)]) for k in times}
    cost = costs.get(DRAFTED)
    context.found.add(
        "latency.ngram_breakeven",
        f"tokens a step that checking {DRAFTED} drafted tokens must emit to pay at batch 1",
        cost,
        "tokens",
        Basis.MEASURED,
        direction="lower",
        reason=None if cost is not None else "the context is too short",
        note="one row of logits; drafting itself counted as free",
        roofline=limits.get(DRAFTED),
    )
    context.found.series.append(
        Series(
            id="latency.verify_cost",
            question=QUESTION,
            title="Cost of verifying drafted tokens, batch 1",
            kind="line",
            x_label="drafted tokens",
            x_unit="tokens",
            y_label="step time over a plain step",
            y_unit="ratio",
            lines=[
                Line(
                    name="batch 1",
                    x=[float(k) for k in costs],
                    y=list(costs.values()),
                    roofline=list(limits.values()),
                )
            ],
        )
    )


@dataclass(frozen=True)
class Acceptance:
    """Teacher-forced n-gram speculation over recorded outputs. Only emitted tokens count."""

    proposed: int = 0
    accepted: int = 0
    steps: int = 0
    emitted: int = 0

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.proposed + other.proposed,
            self.accepted + other.accepted,
            self.steps + other.steps,
            self.emitted + other.emitted,
        )


def ngram_acceptance(
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    drafted: int = DRAFTED,
    shortest: int = NGRAM[0],
    longest: int = NGRAM[1],
) -> Acceptance:
    """Draft from the first earlier occurrence of the longest suffix; accept while the recorded token is the same.

    A step emits the accepted tokens and the target's own next one; the end of the output cuts a step short.
    """
    tokens = list(prompt)
    seen: dict[tuple[int, ...], int] = {}
    indexed = 0
    total = Acceptance()
    at = 0
    while at < len(output):
        for end in range(indexed + 1, len(tokens)):
            # n-grams that end before the last token: the suffix itself must not be its own match.
            for n in range(shortest, longest + 1):
                if end >= n:
                    seen.setdefault(tuple(tokens[end - n : end]), end)
        indexed = max(indexed, len(tokens) - 1)
        found = next(
            (
                seen[key]
                for n in range(longest, shortest - 1, -1)
                if len(tokens) >= n and (key := tuple(tokens[-n:])) in seen
            ),
            None,
        )
        draft = tokens[found : found + drafted] if found is not None else []
        left = len(output) - at
        accepted = 0
        while accepted < min(len(draft), left) and draft[accepted] == output[at + accepted]:
            accepted += 1
        emitted = min(accepted + 1, left)
        total += Acceptance(len(draft), accepted, 1, emitted)
        tokens.extend(output[at : at + emitted])
        at += emitted
    return total


def _ngram(context: ProbeContext) -> None:
    found, rows = context.found, context.trace.rows
    reason = None
    if not context.real_outputs:
        reason = "outputs are not real (no trained weights, or no text)"
    elif rows["output_ids"].null_count() == len(rows):
        reason = "the trace records no outputs"
    total = Acceptance()
    repeated = grams = 0
    sample = 0
    if reason is None:
        for prompt, output in zip(rows["prompt_ids"].to_list(), rows["output_ids"].to_list(), strict=True):
            if not output:
                continue
            sample += 1
            total += ngram_acceptance(prompt, output)
            four = [tuple(output[i : i + 4]) for i in range(len(output) - 3)]
            grams += len(four)
            repeated += len(four) - len(set(four))
    note = f"n-grams of {NGRAM[0]} to {NGRAM[1]}, {DRAFTED} drafted, replayed on the recorded outputs"
    found.add(
        "latency.ngram_acceptance",
        "n-gram drafts accepted / proposed",
        total.accepted / total.proposed if total.proposed else None,
        "share",
        Basis.TRACE,
        exact=True,
        n=sample or None,
        note=note,
        reason=reason or (None if total.proposed else "no n-gram ever repeated: nothing was proposed"),
    )
    found.add(
        "latency.ngram_tokens_per_step",
        "tokens a step with n-gram drafts, the target's own included",
        total.emitted / total.steps if total.steps else None,
        "tokens",
        Basis.TRACE,
        exact=True,
        n=sample or None,
        note=note,
        reason=reason or (None if total.steps else "the trace records no outputs"),
    )
    found.add(
        "latency.repeated_4grams",
        "repeated 4-grams in recorded outputs",
        repeated / grams if grams else None,
        "share",
        Basis.TRACE,
        exact=True,
        n=sample or None,
        reason=reason or (None if grams else "outputs are shorter than 4 tokens"),
    )

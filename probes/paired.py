"""A technique off and on: the same requests, in ABBA order, one value a run, an interval over the pairs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Literal

from inferdoc.devices import asked_bytes, describe, is_out_of_memory, release
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import RunResult
from inferdoc.errors import BudgetEndedError, MeasurementError
from inferdoc.evidence import Basis, Comparison, Interval, Outputs, PairedMetric, Quantity, Question, Slo
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.metrics import METRICS, enough_to_tell_overload, measure, overloaded, why_missing
from inferdoc.probes.roofline import of_runs
from inferdoc.statistics import (
    METHOD,
    MIN_PAIRS,
    hodges_lehmann,
    log_gains,
    median_interval,
    pairs_to_decide,
    signed_rank_interval,
)

Arm = Literal["off", "on"]
WORTHWHILE = 1.05
"""The gain that the estimate of "how much longer to measure" wants to resolve; what pays is for the rules to say."""


MOST_PAIRS = 200
"""Beyond this nobody waits for the answer, so no number of seconds is named."""


@dataclass(frozen=True)
class Trial:
    """What one run of one arm gave."""

    values: dict[str, float | None]
    run: RunResult
    overloaded: bool = False


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A planned comparison. `off` and `on` differ in exactly one field."""

    id: str
    question: Question
    technique: str
    label: str
    off: EngineConfig
    on: EngineConfig
    metrics: tuple[str, ...]
    load: Literal["saturated", "open"] = "saturated"
    notes: tuple[str, ...] = ()
    trial: Callable[[ProbeContext, Pair, EngineConfig], Trial] | None = None
    """How one run is made; ``None``: the slice of the trace at `load`."""
    load_label: str | None = None
    """What the load of an own trial is called."""
    late: bool = False
    """It runs after all others, on the time that they leave, whatever its question."""

    def __post_init__(self) -> None:
        assert len(self.off.difference(self.on)) == 1, f"{self.id}: arms must differ in one field"
        assert self.off.kv_tokens == self.on.kv_tokens, f"{self.id}: arms must have equal KV capacity"

    @property
    def compresses(self) -> bool:
        """Whether weights or K/V are in fewer bits when on."""
        return bool({"weights", "kv_cache_dtype"} & set(self.off.difference(self.on)))


def off_and_on(
    question: Question,
    technique: str,
    label: str,
    *,
    off: EngineConfig,
    on: EngineConfig,
    slo: Sequence[Slo],
    notes: tuple[str, ...] = (),
) -> list[Pair]:
    """The two loads of a technique: saturated for throughput, open loop for latency and the objectives."""
    asked = ["goodput"] if slo else []
    asked += ["itl_max"] if any(objective.metric == "itl_max" for objective in slo) else []
    latencies = ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "e2e_p50", *asked)
    common = partial(Pair, question=question, technique=technique, off=off, on=on, notes=notes)
    return [
        common(
            id=f"{technique}.saturated", label=f"{label}, saturated", metrics=("throughput", "ttft_p50", "ttft_p95")
        ),
        common(
            id=f"{technique}.open",
            label=f"{label}, open loop",
            metrics=latencies,
            load="open",
        ),
    ]


@dataclass
class Measured:
    """Runs so far. Kept outside the loop so that an interruption loses nothing."""

    trials: dict[Arm, list[Trial]] = field(default_factory=lambda: {"off": [], "on": []})
    order: list[Arm] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    arm: Arm = "off"
    """That runs now, or ran last."""

    @property
    def pairs(self) -> int:
        return min(len(self.trials["off"]), len(self.trials["on"]))


def compare(context: ProbeContext, pair: Pair, pairs: int) -> Comparison:
    """Run a comparison and record it; stops early, with fewer pairs, where the budget ends.

    An arm that fails (out of memory, requests that cannot run) becomes the comparison's `failure`, and the memory that
    it held is given back.
    """
    measured = Measured()
    failure, asked, exhausted = None, None, False
    try:
        _run_pairs(context, pair, pairs, measured)
    except BudgetEndedError:
        context.progress("the budget ended")
    except MeasurementError as error:
        failure = str(error)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        asked, exhausted = asked_bytes(error), True
    finally:
        if exhausted:  # the error and the frames that it held are gone by now
            release()
            failure = f"{measured.arm} arm: {describe(asked, context.device)}"
        comparison = summarise(context, pair, measured, failure)
        context.found.comparisons[pair.id] = comparison
    return comparison


def _run_pairs(context: ProbeContext, pair: Pair, pairs: int, measured: Measured) -> None:
    trial = pair.trial or run_slice
    warm_up: tuple[Arm, Arm] = ("off", "on")
    for arm in warm_up:
        context.progress(f"{pair.label}: warm-up")
        measured.arm = arm
        trial(context, pair, pair.off if arm == "off" else pair.on)
    for index in range(pairs):
        estimate = sum(measured.seconds) / max(1, measured.pairs)
        if index and context.left_s < estimate:
            return
        order: tuple[Arm, Arm] = ("off", "on") if index % 2 == 0 else ("on", "off")
        began = time.perf_counter()
        for arm in order:
            context.progress(f"{pair.label}: pair {index + 1} of {pairs}, {arm}")
            config = pair.off if arm == "off" else pair.on
            measured.arm = arm
            measured.trials[arm].append(trial(context, pair, config))
            context.runs.setdefault(pair.id, {})[arm] = measured.trials[arm][-1].run
            context.between_runs()
            measured.order.append(arm)
        measured.seconds.append(time.perf_counter() - began)
        if pair.load == "saturated" and pair.trial is None:
            rates = [len(t.run.requests) / t.run.duration_s for t in measured.trials["off"]]
            context.saturation[pair.technique] = median(rates)


def run_slice(context: ProbeContext, pair: Pair, config: EngineConfig) -> Trial:
    """Serve the slice once under `config`."""
    arrivals = None
    if pair.load == "open":
        rate = context.saturation.get(pair.technique)
        if rate is None:
            raise MeasurementError("the off arm's saturation was not measured, so there is no rate to load it with")
        arrivals = context.open_arrivals(rate * context.settings.load)
    run = context.serve(config, arrivals)
    return Trial(
        values=measure(run, pair.metrics, context.settings.slo),
        run=run,
        overloaded=pair.load == "open" and overloaded(run),
    )


def summarise(context: ProbeContext, pair: Pair, measured: Measured, failure: str | None) -> Comparison:
    """The comparison as evidence: a value for each run, the paired effects, what kept it from more."""
    off, on = measured.trials["off"], measured.trials["on"]
    first = off[0].run if off else None
    arms_overloaded: list[Arm] = [
        arm for arm in ("off", "on") if 2 * sum(t.overloaded for t in measured.trials[arm]) > len(measured.trials[arm])
    ]
    notes = list(pair.notes)
    if pair.load == "open" and first and not enough_to_tell_overload(len(first.requests), pair.off.max_num_seqs):
        notes.append(
            f"too few requests to tell an overload ({len(first.requests)}; {4 * pair.off.max_num_seqs} needed)"
        )
    # The bytes that a step reads are worked out for native weights and K/V, so compressed arms do not count.
    limited = off if pair.compresses else off + on
    limit = of_runs(context, [trial.run for trial in limited])
    return Comparison(
        id=pair.id,
        question=pair.question,
        technique=pair.technique,
        label=pair.label,
        changed=_changed(pair),
        off_config=pair.off.describe(),
        on_config=pair.on.describe(),
        load=_load(context, pair),
        requests=len(first.requests) if first else 0,
        kv_tokens=pair.off.kv_tokens,
        order=measured.order,
        pairs=measured.pairs,
        metrics={name: _metric(pair, name, measured, arms_overloaded) for name in pair.metrics},
        outputs=_outputs(off[0].run, on[0].run) if off and on else None,
        roofline_fraction=Quantity(
            id="roofline_fraction",
            label="share of the roofline (the slower of memory and compute) over all steps",
            value=limit.fraction,
            unit="share",
            basis=Basis.MEASURED,
            n=sum(len(trial.run.steps) for trial in limited),
            reason=limit.reason,
            note=limit.note,
            roofline=limit,
        ),
        engine_limited=limit.engine_limited,
        overloaded=arms_overloaded,
        failure=failure,
        notes=notes,
    )


def _changed(pair: Pair) -> str:
    (name,) = pair.off.difference(pair.on)
    return f"{name}: {getattr(pair.off, name)} -> {getattr(pair.on, name)}"


def _load(context: ProbeContext, pair: Pair) -> str:
    if pair.load_label is not None:
        return pair.load_label
    if pair.load == "saturated":
        return "saturated"
    if context.settings.replicas is not None:
        return f"open loop, recorded arrivals of one of {context.settings.replicas} replicas"
    rate = context.saturation.get(pair.technique, 0.0) * context.settings.load
    return f"open loop at {context.settings.load:.2f} of the off arm's saturation ({rate:.2f} requests/s)"


def _metric(pair: Pair, name: str, measured: Measured, arms_overloaded: Sequence[Arm]) -> PairedMetric:
    metric = METRICS[name]
    values = {arm: [t.values.get(name) for t in trials[: measured.pairs]] for arm, trials in measured.trials.items()}
    timed_by_arrival = name not in ("throughput", "live_requests", "itl_max")
    reasons: dict[Arm, str | None] = {
        arm: "overloaded: the queue still grew at the end" if arm in arms_overloaded and timed_by_arrival else None
        for arm in ("off", "on")
    }
    return PairedMetric(
        metric=name,
        label=metric.label,
        unit=metric.unit,
        direction=metric.direction,
        off=values["off"],
        on=values["on"],
        off_estimate=_estimate(pair, name, "off", values["off"], reasons["off"], measured),
        on_estimate=_estimate(pair, name, "on", values["on"], reasons["on"], measured),
        gain=_gain(pair, name, values["off"], values["on"], reasons["off"] or reasons["on"], measured),
    )


def _estimate(
    pair: Pair, name: str, arm: Arm, values: Sequence[float | None], reason: str | None, measured: Measured
) -> Quantity:
    metric = METRICS[name]
    known = [value for value in values if value is not None]
    requests = len(measured.trials[arm][0].run.requests) if measured.trials[arm] else 0
    if reason is None and not known:
        reason = why_missing(name, requests) if values else "not run"
    interval = median_interval(known) if reason is None else None
    return Quantity(
        id=f"{pair.id}.{name}.{arm}",
        label=f"{metric.label}, {arm}",
        value=median(known) if reason is None else None,
        unit=metric.unit,
        basis=Basis.MEASURED,
        interval=Interval(low=interval[0], high=interval[1], method="order statistics of the median over runs")
        if interval
        else None,
        n=len(known),
        direction=metric.direction,
        reason=reason,
    )


def _gain(
    pair: Pair,
    name: str,
    off: Sequence[float | None],
    on: Sequence[float | None],
    reason: str | None,
    measured: Measured,
) -> Quantity:
    metric = METRICS[name]
    higher = metric.direction == "higher"
    both = [(a, b) for a, b in zip(off, on, strict=True) if a and b and a > 0 and b > 0]
    pair_seconds = sum(measured.seconds) / len(measured.seconds) if measured.seconds else None
    if reason is None and len(both) < len(off):
        reason = _why_no_ratio(name, off, on, len(measured.trials["off"][0].run.requests))
    if reason is None and not both:
        reason = "no pair was run"
    value, interval, note = None, None, None
    if reason is None:
        ratios = log_gains([a for a, _ in both], [b for _, b in both], higher_is_better=higher)
        value = math.exp(hodges_lehmann(ratios))
        bounds = signed_rank_interval(ratios)
        needed: int | None = MIN_PAIRS
        if bounds is None:
            note = f"{len(both)} of the {MIN_PAIRS} pairs that a 95% interval needs"
        else:
            low, high = math.exp(bounds[0]), math.exp(bounds[1])
            interval = Interval(low=low, high=high, method=METHOD)
            # The normal approximation can ask for less than there is, where the exact interval still straddles.
            more = max(pairs_to_decide(ratios, WORTHWHILE) or 0, len(both) + 2)
            needed = more if low < WORTHWHILE < high else None
            if needed and needed > MOST_PAIRS:
                note = f"more than {MOST_PAIRS} pairs would be needed to tell it from {WORTHWHILE:g}"
                needed = None
            elif needed:
                note = f"about {needed} pairs would tell it from {WORTHWHILE:g}"
        if note and needed and pair_seconds:
            note += f": some {(needed - len(both)) * pair_seconds:.0f} s more"
    return Quantity(
        id=f"{pair.id}.{name}.gain",
        label=f"{pair.label}: gain in {metric.label}",
        value=value,
        unit="ratio",
        basis=Basis.MEASURED,
        interval=interval,
        n=len(both),
        direction="higher",
        reason=reason,
        note=note,
    )


def _why_no_ratio(name: str, off: Sequence[float | None], on: Sequence[float | None], requests: int) -> str:
    for arm, values in (("off", off), ("on", on)):
        if zeros := sum(value == 0 for value in values):
            return f"the {arm} arm is 0 in {zeros} of {len(values)} runs, so there is no ratio"
    missing = sum(a is None or b is None for a, b in zip(off, on, strict=True))
    if missing == len(off):
        return why_missing(name, requests)
    return f"{missing} of {len(off)} pairs lack a value: {why_missing(name, requests)}"


def _outputs(off: RunResult, on: RunResult) -> Outputs:
    """Greedy outputs of the first run of each arm, token by token, of the requests that both of them completed."""
    both = [(a, b) for a, b in zip(off.requests, on.requests, strict=True) if a.completed and b.completed]
    different = [(a, b) for a, b in both if a.output != b.output]
    first = None
    if different:
        a, b = different[0]
        at = next(i for i, (x, y) in enumerate(zip(a.output, b.output, strict=True)) if x != y)
        first = f"request {a.id}, output token {at + 1}"
    return Outputs(requests=len(both), identical=len(both) - len(different), first_difference=first)

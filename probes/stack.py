"""What each recommended technique adds to those before it. Gains do not add, so the stack is measured as a stack."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inferdoc.devices import asked_bytes, describe, is_out_of_memory, release
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import RunResult
from inferdoc.errors import BudgetEndedError, InputError, MeasurementError
from inferdoc.evidence import Basis, Objective
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.kv_fragmentation import contiguous_baseline
from inferdoc.probes.metrics import METRICS, measure, why_missing
from inferdoc.probes.roofline import of_runs
from inferdoc.statistics import METHOD, paired_gain

SWITCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "continuous_batching": ({"batching": "static"}, {"batching": "continuous"}),
    "paged_attention": ({"reservation": "max-model-len"}, {"reservation": "paged"}),
    "chunked_prefill": ({"enable_chunked_prefill": False}, {"enable_chunked_prefill": True}),
    "prefix_caching": ({"enable_prefix_caching": False}, {"enable_prefix_caching": True}),
}
"""Techniques that the engine can switch: configuration off and on."""


_Value = tuple[float, RunResult]
"""The metric of one run, and the run."""


def stackable(techniques: Sequence[str]) -> list[str]:
    """Those that the engine can switch, in the same order."""
    return [technique for technique in techniques if technique in SWITCHES]


def measure_stack(context: ProbeContext, techniques: Sequence[str]) -> None:
    """Add techniques that the engine can switch, one by one, and record what each adds as ``stack.<technique>.adds``.

    All arms run in each round, in one order and then in the other, so that drift hits them alike. The load is
    saturated; the metric is throughput, or the median TTFT where latency is the objective. Whatever goes wrong becomes
    the reason of the quantities: what was measured before stays.
    """
    # A prefix cache needs paged blocks, so paging comes before it whatever the ranks.
    techniques = sorted(
        techniques, key=lambda technique: technique == "prefix_caching" and "paged_attention" in techniques
    )
    metric = "ttft_p50" if context.settings.objective is Objective.LATENCY else "throughput"
    rounds: list[list[_Value]] = []
    reason, asked, exhausted = None, None, False
    try:
        _run_rounds(context, _arms(context, techniques), metric, rounds)
    except BudgetEndedError:
        pass
    except (InputError, MeasurementError) as error:
        reason = f"the stack failed: {error}"
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        asked, exhausted = asked_bytes(error), True
    if exhausted:  # the error and the frames that it held are gone by now
        release()
        reason = f"the stack failed: {describe(asked, context.device)}"
    if reason is None and len(rounds) < context.pairs:
        reason = f"{len(rounds)} of the {context.pairs} rounds fit the budget"
    for index, technique in enumerate(techniques):
        pairs = [(values[index], values[index + 1]) for values in rounds]
        _record(context, technique, metric, techniques[:index], pairs, reason)


def _arms(context: ProbeContext, techniques: Sequence[str]) -> list[EngineConfig]:
    """All techniques off, then one more of them on at a time."""
    off = {field: value for technique in techniques for field, value in SWITCHES[technique][0].items()}
    if "paged_attention" in techniques:
        off["reservation"] = contiguous_baseline(context.base)
    arms = [context.config(**off)]
    for technique in techniques:
        arms.append(replace(arms[-1], **SWITCHES[technique][1]))
    return arms


def _run_rounds(context: ProbeContext, arms: Sequence[EngineConfig], metric: str, rounds: list[list[_Value]]) -> None:
    """Fill `rounds` with one value for each arm; the first round warms up and is not kept."""
    for index in range(-1, context.pairs):
        began = time.perf_counter()
        values: dict[int, _Value] = {}
        for position in range(len(arms))[:: 1 if index % 2 == 0 else -1]:
            context.progress(f"stack: round {index + 1} of {context.pairs}, {position} techniques on")
            run = context.serve(arms[position])
            value = measure(run, [metric], [])[metric]
            if value is None:
                raise MeasurementError(why_missing(metric, len(context.slice)))
            values[position] = (value, run)
            context.between_runs()
        if index >= 0:
            rounds.append([values[position] for position in range(len(arms))])
        if context.left_s < time.perf_counter() - began:
            return


def _record(
    context: ProbeContext,
    technique: str,
    metric: str,
    before: Sequence[str],
    values: Sequence[tuple[_Value, _Value]],
    reason: str | None,
) -> None:
    gain = None
    if reason is None:
        higher = METRICS[metric].direction == "higher"
        gain = paired_gain([a for (a, _), _ in values], [b for _, (b, _) in values], higher_is_better=higher)
    context.found.add(
        f"stack.{technique}.adds",
        METRICS[metric].label,
        gain[0] if gain else None,
        "ratio",
        Basis.MEASURED,
        interval=gain[1:] if gain else None,
        method=METHOD,
        n=len(values),
        direction="higher",
        reason=reason,
        note=f"beside {', '.join(before)}" if before else "beside none of the others",
        roofline=of_runs(context, [run for pair in values for _, run in pair]) if gain else None,
    )

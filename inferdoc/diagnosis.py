"""The whole flow in one place: workload -> device -> model -> sweep -> plan -> off/on pairs -> evidence.

The rules read the evidence afterwards; nothing here concludes anything.
"""

from __future__ import annotations

import platform
import time
import uuid
from datetime import UTC, datetime
from typing import Literal

from inferdoc import __version__
from inferdoc.devices import Watch, environment, find_device
from inferdoc.errors import InputError
from inferdoc.evidence import (
    Check,
    Evidence,
    PlanStep,
    ProbeResult,
    Question,
    Run,
    Subject,
    Tool,
    Validity,
    Workload,
)
from inferdoc.models import ModelSpec, read_spec
from inferdoc.preparation import Options, dtypes_to_try, longest_allowed, prepare, read_workload
from inferdoc.probes import all_probes
from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.probes.hardware_fit import observe_without_model
from inferdoc.probes.paired import compare
from inferdoc.probes.plan import Plan, make_plan
from inferdoc.progress import Progress
from inferdoc.traces import Trace, fit_context

__all__ = ["Options", "collect_evidence"]


def collect_evidence(options: Options, progress: Progress) -> Evidence:
    """Measure. An interruption after the first measurement gives partial evidence instead of an exception.

    Raises:
        InputError: bad trace, model, device or option; or a budget too small to measure anything.
        KeyboardInterrupt: before anything was measured.
    """
    began = time.perf_counter()
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    device = find_device(options.device)
    trace = read_workload(options)
    progress.say(understood(trace.workload()))
    spec = read_spec(options.model_location, gguf_file=options.gguf_file, trust_remote_code=options.trust_remote_code)
    budget = options.memory_bytes or device.usable_bytes
    if budget is None:
        raise InputError("the free memory of the device is not known; give --memory, for example --memory 16GiB")
    found = Collector()
    dtypes = dtypes_to_try(options, spec, device)
    context: ProbeContext | None = None
    plan, interrupted = Plan([], []), False
    with Watch(device) as watch:
        for dtype in dtypes:
            if spec.weight_bytes(dtype) < budget:
                context = prepare(
                    options,
                    dtype,
                    trace,
                    device,
                    budget_bytes=budget,
                    deadline=began + options.budget_s,
                    found=found,
                    progress=progress,
                )
            if context is not None:
                break
        if context is None:
            lengths = fit_context(trace.runnable(), longest_allowed(options, spec))
            observe_without_model(found, spec, lengths, budget_bytes=budget, dtypes=dtypes)
        else:
            trace = context.trace
            plan, interrupted = _measure(context, progress, began)
    progress.close()
    return Evidence(
        tool=Tool(version=__version__, python=platform.python_version()),
        run=Run(
            id=uuid.uuid4().hex[:12],
            started_at=started_at,
            duration_s=time.perf_counter() - began,
            command=options.command,
            seed=options.seed,
            objective=options.objective,
            budget_s=options.budget_s,
            slo=list(options.slo),
            status="partial" if interrupted else "complete",
            errors=["interrupted: what had been measured by then is here"] if interrupted else [],
        ),
        subject=_subject(options, context.spec if context else spec, context),
        environment=environment(device),
        workload=_workload(trace, context),
        validity=_validity(watch.checks(), found),
        plan=plan.steps,
        probes=_probe_results(found, plan, context),
        quantities=found.quantities,
        comparisons=found.comparisons,
        series=found.series,
    )


def _measure(context: ProbeContext, progress: Progress, began: float) -> tuple[Plan, bool]:
    """Plan the pairs, run them in the order of the questions, and let each probe work out the rest.

    Returns:
        The plan, and whether it was interrupted.
    """
    probes = all_probes()
    probes[0].observe(context)
    plan = make_plan(context, [pair for probe in probes for pair in probe.comparisons(context)])
    if plan.steps and not plan.run:
        setup = time.perf_counter() - began
        estimates = [step.estimated_s for step in plan.steps]
        raise InputError(
            f"--budget {context.settings.budget_s:.0f}s is too small: setting up took {setup:.0f} s, and the smallest "
            f"comparison takes about {min(estimates):.0f} s; --budget {1.2 * (setup + min(estimates)):.0f}s would "
            f"answer something, {1.2 * (setup + sum(estimates)):.0f}s everything"
        )
    progress.say(
        f"{len(plan.run)} of {len(plan.steps)} comparisons fit the budget, {len(context.slice)} requests a run"
    )
    interrupted = False
    try:
        _run_pairs(context, plan, progress)
    except KeyboardInterrupt:
        interrupted = True
    for probe in probes[1:]:
        probe.observe(context)
    return plan, interrupted


def _run_pairs(context: ProbeContext, plan: Plan, progress: Progress) -> None:
    steps = {step.id: step for step in plan.steps}
    for step in plan.steps:
        step.dropped = step.dropped or "interrupted"
    for pair in plan.run:
        step = steps[pair.id]
        if context.left_s <= 0:
            step.dropped = f"the budget ended: it would need about {step.estimated_s:.0f} s more"
            continue
        progress.stage(f"{pair.label} ({context.settings.pairs} pairs, about {step.estimated_s:.0f} s)")
        start = time.perf_counter()
        try:
            compare(context, pair, context.settings.pairs)
            step.dropped = None
        finally:
            step.actual_s = time.perf_counter() - start


def understood(workload: Workload) -> str:
    """One paragraph that says how the trace was read."""
    facts = [f"trace: {workload.source} read as {workload.format} ({workload.content})"]
    facts.append(f"{workload.requests:,} requests")
    if workload.duration_s is not None:
        facts.append(f"over {workload.duration_s:,.1f} s (times in {workload.time_unit})")
    if workload.rate_per_s is not None:
        facts.append(f"{workload.rate_per_s:.3g} requests/s")
    if workload.block_size is not None:
        facts.append(f"blocks of {workload.block_size} tokens")
    lines = [", ".join(facts)]
    for row in workload.left_out:
        where = f" (first: line {row.first_line})" if row.first_line is not None else ""
        lines.append(f"  left out: {row.rows:,} x {row.reason}{where}")
    lines += [f"  note: {note}" for note in workload.notes]
    return "\n".join(lines)


def _subject(options: Options, spec: ModelSpec, context: ProbeContext | None) -> Subject:
    notes = list(spec.notes)
    if context is None:
        notes.append("not loaded: it does not fit the memory budget")
    return Subject(
        model=options.model if options.model == "embedded" else spec.name,
        architecture=spec.architecture,
        parameters=spec.parameters,
        dtype=context.loaded.dtype if context else spec.dtype,
        load_format=options.load_format,
        engine="inferdoc engine, torch attention, eager",
        engine_config=context.base.describe() if context else {},
        context_length=longest_allowed(options, spec),
        real_outputs=context.real_outputs if context else False,
        notes=notes,
    )


def _workload(trace: Trace, context: ProbeContext | None) -> Workload:
    workload = trace.workload()
    part = context.slice_trace if context else None
    if part is None:
        return workload
    first = int(part.rows["row"][0])
    return workload.model_copy(
        update={
            "slice_requests": len(part),
            "slice_window": f"{len(part)} requests from row {first} on"
            + (f", the densest {part.duration_s:.1f} s" if part.duration_s is not None else ""),
        }
    )


def _validity(checks: list[Check], found: Collector) -> Validity:
    """The run's own health: the machine's, and whether every measurement did its work."""
    failures = [f"{c.label}: {c.failure}" for c in found.comparisons.values() if c.failure]
    checks.append(Check(name="measurements", passed=not failures, text="; ".join(failures) or "no measurement failed"))
    different = [c.label for c in found.comparisons.values() if c.outputs and c.outputs.identical < c.outputs.requests]
    checks.append(
        Check(
            name="outputs",
            passed=not different,
            text=f"outputs of off and on differ: {', '.join(different)}"
            if different
            else "greedy outputs of off and on are the same tokens",
        )
    )
    return Validity(status="valid" if all(c.passed is not False for c in checks) else "degraded", checks=checks)


def _probe_results(found: Collector, plan: Plan, context: ProbeContext | None) -> list[ProbeResult]:
    """What became of each question."""
    results = []
    for question in Question:
        steps: list[PlanStep] = [step for step in plan.steps if step.question is question]
        dropped = [f"{step.label}: {step.dropped}" for step in steps if step.dropped]
        measured = any(c.question is question and c.pairs for c in found.comparisons.values())
        status: Literal["measured", "partial", "not measured"] = "measured"
        reason = None
        if question is Question.HARDWARE_FIT:
            pass
        elif context is None:
            status, reason = "not measured", "does not fit"
        elif question is Question.PREFIX_REDUNDANCY and context.trace.content == "lengths only":
            status, reason = "not measured", "the trace has no prefixes"
        elif dropped:
            status, reason = "partial" if measured else "not measured", "; ".join(dropped)
        results.append(
            ProbeResult(
                question=question,
                status=status,
                reason=reason,
                seconds=sum(step.actual_s or 0.0 for step in steps),
            )
        )
    return results

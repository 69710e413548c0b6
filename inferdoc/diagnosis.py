"""The whole flow in one place: workload -> device -> model -> sweep -> plan -> off/on pairs -> evidence.

The rules read the evidence afterwards; nothing here concludes anything.
"""

from __future__ import annotations

import gc
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from inferdoc import __version__
from inferdoc.devices import Device, Watch, environment, find_device, release
from inferdoc.draft_model import check_draft_model
from inferdoc.engine.config import EngineConfig
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
    TraceWindow,
    Validity,
    Workload,
)
from inferdoc.models import ModelSpec, find_source, model_revision, read_spec
from inferdoc.options import Options, check_options, dtypes_to_try, longest_allowed
from inferdoc.preparation import TooLargeError, prepare, read_workload
from inferdoc.probes import all_probes
from inferdoc.probes.compression_quality import ASKED_SHARE, SHARE, measure_losses
from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.probes.hardware_fit import observe_without_model
from inferdoc.probes.paired import compare
from inferdoc.probes.plan import Plan, make_plan
from inferdoc.probes.stack import measure_stack, stackable
from inferdoc.probes.version import probe_version
from inferdoc.probes.windows import observe_windows
from inferdoc.progress import Progress
from inferdoc.student import check_student, measure_student
from inferdoc.traces import Trace
from inferdoc.traces.windows import split_windows

__all__ = ["INTERRUPTED", "Options", "collect_evidence", "evidence_of_context", "this_tool"]


COMPRESSED = ("weights:", "kv_cache_dtype:")
"""How a comparison's `changed` begins where one arm keeps numbers in fewer bits."""
INTERRUPTED = "interrupted: what had been measured by then is here"

Rank = Callable[[Evidence], list[str]]
"""The techniques that evidence recommends, best first."""


def collect_evidence(options: Options, progress: Progress, rank: Rank) -> Evidence:
    """Measure. An interruption after the first measurement gives partial evidence instead of an exception.

    Args:
        rank: asked once the pairs are run; what it recommends is then measured as a stack.

    Raises:
        InputError: bad trace, model, device or option; or a budget too small to measure anything.
        KeyboardInterrupt: before anything was measured.
    """
    device = find_device(options.device)
    check_options(options, device)
    check_draft_model(options)
    check_student(options)
    trace = read_workload(options)
    progress.say(understood(trace.workload()))
    spec = read_spec(options.model_location, gguf_file=options.gguf_file, trust_remote_code=options.trust_remote_code)
    budget = options.memory_bytes or device.usable_bytes
    if budget is None:
        raise InputError("the free memory of the device is not known; give --memory, for example --memory 16GiB")
    dtypes = dtypes_to_try(options, spec, device)
    session = _Session(options, device, spec, trace, dtypes, _revision(options))
    with session.watch:
        session.context = _prepare_first_that_fits(session, budget, progress)
        if session.context is None:
            observe_without_model(session.found, spec, trace, budget_bytes=budget, dtypes=dtypes)
        else:
            _measure(session, session.context, progress, rank)
    progress.close()
    return session.evidence()


def this_tool() -> Tool:
    """What measures."""
    return Tool(version=__version__, python=platform.python_version(), probes=probe_version())


def evidence_of_context(options: Options, context: ProbeContext, config: EngineConfig, watch: Watch) -> Evidence:
    """What the probes have found in a context that was prepared elsewhere, under `config`; no plan, no stack."""
    session = _Session(options, context.device, context.spec, context.trace, [], _revision(options))
    session.found, session.context, session.watch = context.found, replace(context, base=config), watch
    return session.evidence()


def _prepare_first_that_fits(session: _Session, budget: int, progress: Progress) -> ProbeContext | None:
    """The model in the first of the types to try that memory holds; ``None`` where the budget holds none.

    Raises:
        TooLargeError: the last type, too, failed for memory that the budget promised.
    """
    options = session.options
    fitting = [dtype for dtype in session.dtypes if session.spec.weight_bytes(dtype) < budget]
    notes: list[str] = []
    for dtype in fitting:
        context = None
        try:
            context = prepare(
                options,
                dtype,
                session.trace,
                session.device,
                budget_bytes=budget,
                deadline=session.began + options.budget_s,
                found=session.found,
                progress=progress,
                between_runs=session.watch.sample,
            )
        except TooLargeError as error:
            if dtype == fitting[-1]:
                raise
            notes.append(f"not in {dtype}: {error}")
        if context is not None:
            return replace(context, engine_notes=(*notes, *context.engine_notes))
        # Here that model is in no frame any more; it goes before the next one comes.
        gc.unfreeze()
        release()
    return None


@dataclass
class _Session:
    """One diagnosis on its way: what is known so far, and evidence made of it at any time."""

    options: Options
    device: Device
    spec: ModelSpec
    trace: Trace
    dtypes: list[str]
    """Types of the weights to try, in order."""
    revision: str | None = None
    """Of the weights, read before the run."""
    found: Collector = field(default_factory=Collector)
    plan: Plan = field(default_factory=lambda: Plan([], []))
    context: ProbeContext | None = None
    errors: list[str] = field(default_factory=list)
    """What kept the run from being complete."""
    load: str | None = None
    """How the trace's load changes."""
    windows: list[TraceWindow] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.device)

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.began

    def evidence(self) -> Evidence:
        options, context, found = self.options, self.context, self.found
        return Evidence(
            tool=this_tool(),
            run=Run(
                id=uuid.uuid4().hex[:12],
                started_at=self.started_at,
                duration_s=self.elapsed_s,
                command=options.command,
                seed=options.seed,
                objective=options.objective,
                budget_s=options.budget_s,
                slo=list(options.slo),
                max_quality_loss=options.max_quality_loss,
                status="partial" if self.errors else "complete",
                errors=self.errors,
            ),
            subject=_subject(options, context.spec if context else self.spec, context, self.revision),
            environment=environment(self.device),
            workload=_workload(context.trace if context else self.trace, context).model_copy(
                update={"load": self.load, "windows": self.windows}
            ),
            validity=_validity(self.watch.checks(), found),
            plan=self.plan.steps,
            probes=_probe_results(self.plan, found, context, options.questions),
            quantities=found.quantities,
            comparisons=found.comparisons,
            quality=found.quality,
            series=found.series,
        )


def _measure(session: _Session, context: ProbeContext, progress: Progress, rank: Rank) -> None:
    """Plan the pairs, run them in the order of the questions, work out the rest, then measure the stack.

    Once something is measured nothing may lose it: what goes wrong afterwards is written down and the rest goes on.
    """
    probes = all_probes()
    windows = split_windows(context.trace)
    if windows.peak is not None:
        context.peak = windows.peak.window.first_request, windows.peak.window.requests
    session.load = windows.text
    probes[0].observe(context)
    session.windows = observe_windows(context, windows)
    if not session.options.questions or {1, 5} & set(session.options.questions):
        progress.stage("measuring what fewer bits cost in quality")
        measure_losses(context, ASKED_SHARE if session.options.questions else SHARE)
    if session.options.student is not None:
        measure_student(session.options, context, progress)
    pairs = sorted((pair for probe in probes for pair in probe.comparisons(context)), key=lambda pair: pair.late)
    if session.options.questions:
        pairs = [pair for pair in pairs if pair.question.number in session.options.questions]
    plan = make_plan(context, pairs)
    session.plan = plan
    if plan.steps and not plan.run:
        setup = session.elapsed_s
        estimates = [step.estimated_s for step in plan.steps]
        raise InputError(
            f"--budget {context.settings.budget_s:.0f}s is too small: setting up took {setup:.0f} s, and the smallest "
            f"comparison takes about {min(estimates):.0f} s; --budget {1.2 * (setup + min(estimates)):.0f}s would "
            f"answer something, {1.2 * (setup + sum(estimates)):.0f}s everything"
        )
    progress.say(
        f"{sum(step.dropped is None for step in plan.steps)} of {len(plan.steps)} comparisons fit the budget, "
        f"{len(context.slice)} requests a run"
    )
    try:
        _run_pairs(context, plan, progress)
    except KeyboardInterrupt:
        session.errors.append(INTERRUPTED)
    for probe in probes[1:]:
        try:
            probe.observe(context)
        except Exception as error:
            session.errors.append(f"{probe.QUESTION.value}: {type(error).__name__}: {error}")
    if session.errors:
        return
    try:
        if len(steps := stackable(rank(session.evidence()))) > 1:
            progress.stage(f"measuring as a stack: {', then '.join(steps)}")
            measure_stack(context, steps)
    except KeyboardInterrupt:
        session.errors.append(INTERRUPTED)


def _run_pairs(context: ProbeContext, plan: Plan, progress: Progress) -> None:
    steps = {step.id: step for step in plan.steps}
    for step in plan.steps:
        step.dropped = step.dropped or "interrupted"
    for pair in plan.run:
        step = steps[pair.id]
        if context.left_s <= 0:
            step.dropped = f"the budget ended: it would need about {step.estimated_s:.0f} s more"
            continue
        progress.stage(f"{pair.label} ({context.pairs} pairs, about {step.estimated_s:.0f} s)")
        start = time.perf_counter()
        try:
            comparison = compare(context, pair, context.pairs)
            missing = context.pairs - comparison.pairs
            step.dropped = None
            if missing and not comparison.failure:
                seconds = missing * step.estimated_s / context.pairs
                step.dropped = f"only {comparison.pairs} pairs fit the budget: about {seconds:.0f} s more are needed"
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


def _subject(options: Options, spec: ModelSpec, context: ProbeContext | None, revision: str | None) -> Subject:
    notes = list(spec.notes)
    if context is None:
        notes.append("not loaded: it does not fit the memory budget")
    else:
        notes += context.engine_notes
    return Subject(
        model=options.model if options.model == "embedded" else spec.name,
        revision=revision,
        architecture=spec.architecture,
        parameters=spec.parameters,
        dtype=context.loaded.dtype if context else spec.dtype,
        load_format=options.load_format,
        engine=_engine(context.base) if context else "inferdoc engine, not run",
        engine_config=context.base.describe() if context else {},
        context_length=longest_allowed(options, spec),
        real_outputs=context.real_outputs if context else False,
        notes=notes,
    )


def _revision(options: Options) -> str | None:
    source = find_source(options.model_location, gguf_file=options.gguf_file)
    return model_revision(source, load_format=options.load_format, seed=options.seed)


def _engine(base: EngineConfig) -> str:
    """How both arms of every comparison compute a step."""
    parts = ["inferdoc engine", f"{base.attention_backend} attention"]
    parts.append("eager" if base.enforce_eager else "CUDA graphs")
    return ", ".join(parts + ["fused operations"] * base.enable_fusion + ["compiled"] * base.compile)


def _workload(trace: Trace, context: ProbeContext | None) -> Workload:
    workload = trace.workload()
    part = context.slice_trace if context else None
    if part is None:
        return workload
    first = int(part.rows["row"][0])
    return workload.model_copy(
        update={
            "slice_requests": len(part),
            "slice_window": f"{len(part)} consecutive requests from row {first} on, whose lengths are most like "
            + ("the peak's" if context is not None and context.peak else "the whole trace's"),
        }
    )


def _validity(checks: list[Check], found: Collector) -> Validity:
    """The run's own health: the machine's, and whether every measurement did its work."""
    failures = [f"{c.label}: {c.failure}" for c in found.comparisons.values() if c.failure]
    checks.append(Check(name="measurements", passed=not failures, text="; ".join(failures) or "no measurement failed"))
    different = [
        c.label
        for c in found.comparisons.values()
        # Fewer bits are another model, whose outputs differ by right: its quality is measured. Another kernel rounds.
        if c.outputs
        and c.outputs.identical < c.outputs.requests
        and not c.changed.startswith((*COMPRESSED, "attention_backend:"))
    ]
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


def _probe_results(
    plan: Plan, found: Collector, context: ProbeContext | None, asked: tuple[int, ...]
) -> list[ProbeResult]:
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
        elif asked and question.number not in asked and question is not Question.TOKEN_LATENCY:
            status, reason = "not measured", f"not asked for (--question {' '.join(str(n) for n in asked)})"
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

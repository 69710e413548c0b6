"""``inferdoc gate record``: one arm's session into a stored baseline, for teams that can't pair."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from inferdoc.diagnosis import evidence_of_context
from inferdoc.errors import PolicyError
from inferdoc.evidence import Interval, read_evidence
from inferdoc.gate.arms import Name
from inferdoc.gate.baselines import baseline_path, read_baseline, record
from inferdoc.gate.measuring import needs_open_loop
from inferdoc.gate.paired_run import PairedRun, check_measurable, metric_series
from inferdoc.gate.policy import ArmPolicy, Policy
from inferdoc.gate.sessions import Measured, Session, session_of
from inferdoc.progress import Progress
from inferdoc.rules import diagnose, load_pack
from inferdoc.statistics import median_interval


def record_session(
    policy: Policy,
    name: Name,
    *,
    evidence: Path | None,
    into: Path | None,
    output: Path,
    progress: Progress,
    command: str,
) -> tuple[Path, int]:
    """Add a session: of stored evidence, else of a run of the arm's ``[design] pairs`` repeats.

    Returns:
        The file, and how many sessions it holds.

    Raises:
        InputError: bad input, as for a gate; or the file is damaged.
        InvalidRunError: the run is not clean.
    """
    if evidence is not None:
        measured = read_evidence(evidence)
        session = session_of(measured, diagnose(measured, load_pack()))
    else:
        session = _run(policy, name, output, progress, command)
    path = into or baseline_path(policy, session)
    record(path, session, policy.baseline.history_max)
    return path, len(read_baseline(path).sessions)


def _run(policy: Policy, name: Name, output: Path, progress: Progress, command: str) -> Session:
    check_measurable(policy)
    if needs_open_loop(metric.id for metric in policy.metrics) and policy.workload.rate is None:
        raise PolicyError(
            "latencies of stored sessions need one arrival rate for all of them: give [workload] rate, in requests/s",
            where=policy.path,
        )
    arm = policy.arms.get(name, ArmPolicy())
    alone = policy.model_copy(update={"arms": {"baseline": arm, "candidate": arm}})
    run = PairedRun(alone, output, progress, command, commands=[name])
    began = time.perf_counter()
    with run.watch:
        run.prepare()
        progress.stage("warming up")
        run.pairing.warm_up(["baseline"])
        values = run.pairing.repeat("baseline", policy.design.pairs)
    ready = run.bench.arm("baseline")
    session = session_of(evidence_of_context(ready.plan.options, ready.context, ready.config, run.watch), None)
    progress.say(f"{len(values)} repeats in {time.perf_counter() - began:.0f} s")
    return session.model_copy(update={"measurements": _measurements(alone, values, run.pairing.open_label)})


def _measurements(
    policy: Policy, repeats: list[dict[str, float | None]], open_label: str | None
) -> dict[str, Measured]:
    measured = {}
    for series in metric_series(policy):
        id = series.metric.id
        values = [repeat[id] for repeat in repeats]
        known = [value for value in values if value is not None]
        interval = median_interval(known)
        measured[id] = Measured(
            id=id,
            label=series.label,
            unit=series.unit,
            direction=series.direction,
            kind=series.kind,
            values=values,
            value=median(known) if known else None,
            interval=Interval(low=interval[0], high=interval[1], method="order statistics of the median over runs")
            if interval
            else None,
            n=len(known),
            reason=None if known else "no run gave a value",
            load=open_label if needs_open_loop([id]) else "all requests at once",
            rate=policy.workload.rate if needs_open_loop([id]) else None,
        )
    return measured

"""``inferdoc gate calibrate``: the baseline arm against itself, in the design of the gate."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

from inferdoc import __version__
from inferdoc.errors import InputError
from inferdoc.files import write_whole
from inferdoc.gate.calibration import Calibration, Noise, noise_of
from inferdoc.gate.judging import judge
from inferdoc.gate.paired_run import PairedRun, check_measurable, metric_series
from inferdoc.gate.policy import ArmPolicy, MetricPolicy, Policy
from inferdoc.gate.procedure import Values
from inferdoc.gate.result import MetricVerdict
from inferdoc.progress import Progress


def calibrate(
    policy: Policy, sessions: int, output: Path, progress: Progress, command: str
) -> tuple[Path, Calibration]:
    """Run `sessions` times the policy's first look with both arms the baseline, and store the noise.

    Raises:
        InputError: as for a gate.
        InvalidRunError: the machine was disturbed too often, or the arm failed.
    """
    check_measurable(policy)
    baseline = policy.arms.get("baseline", ArmPolicy())
    twice = policy.model_copy(update={"arms": {"baseline": baseline, "candidate": baseline}})
    run = PairedRun(twice, output, progress, command, commands=["baseline"])
    with run.watch:
        run.prepare()
        pairing = run.pairing
        progress.stage("warming up")
        pairing.warm_up()
        drawn: list[Values] = []
        for session in range(sessions):
            progress.say(f"A/A session {session + 1} of {sessions}")
            drawn.append(pairing.draw(policy.design.pairs, False))
    base = run.sessions["baseline"]
    calibration = Calibration(
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tool_version=__version__,
        environment=base.environment.fingerprint,
        workload=base.workload.fingerprint,
        requests=run.requests,
        sessions=sessions,
        pairs=policy.design.pairs,
        noise={metric.id: noise for metric in policy.metrics if (noise := _noise(metric, policy, drawn)) is not None},
    )
    path = run.calibration_file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (calibration.model_dump_json(by_alias=True, indent=1) + "\n").encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    return path, calibration


def _noise(metric: MetricPolicy, policy: Policy, drawn: list[Values]) -> Noise | None:
    """``None`` where no pair has two positive values, so that there is no ratio."""
    ratios = [
        math.log(b / a) for values in drawn for a, b in zip(*values[metric.id], strict=True) if a and b and a > 0 < b
    ]
    if not ratios:
        return None
    alarms = None
    if metric.max_regression is not None:
        alone = policy.model_copy(update={"metrics": (metric,)})
        alarms = sum(
            result.verdict is MetricVerdict.REGRESSED
            for values in drawn
            for result in judge(
                metric_series(alone, values),
                statistics=policy.statistics,
                alpha_of_look=policy.statistics.alpha,
                paired=True,
            )
        )
    design = policy.design
    return noise_of(ratios, pairs=design.pairs, max_pairs=design.max_pairs, limit=metric.max_regression, alarms=alarms)

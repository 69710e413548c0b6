"""``inferdoc gate calibrate``: the baseline arm against itself, in the design of the gate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from inferdoc import __version__
from inferdoc.errors import InputError
from inferdoc.files import write_whole
from inferdoc.gate.calibration import Calibration, Noise, noise_of
from inferdoc.gate.judging import judge
from inferdoc.gate.paired_run import PairedRun, check_measurable, metric_series
from inferdoc.gate.policy import ArmPolicy, Policy
from inferdoc.gate.procedure import Values, alpha_of_look
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
        noise=noise_by_metric(policy, drawn),
    )
    path = run.calibration_file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (calibration.model_dump_json(by_alias=True, indent=1) + "\n").encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    return path, calibration


def noise_by_metric(policy: Policy, drawn: Sequence[Values]) -> dict[str, Noise]:
    """Noise of each metric whose pairs have two positive values, from the pairs of every session.

    Each session is judged as the gate's first look judges: with the whole policy's family and its share of alpha.
    """
    alpha = alpha_of_look(policy.design, policy.statistics)
    flagged = Counter(
        result.metric
        for values in drawn
        for result in judge(
            metric_series(policy, values), statistics=policy.statistics, alpha_of_look=alpha, paired=True
        )
        if result.rule == "regression" and result.verdict is MetricVerdict.REGRESSED
    )
    limits = {metric.id: metric.max_regression for metric in policy.metrics if metric.max_regression is not None}
    noise = {}
    for id in dict.fromkeys(metric.id for metric in policy.metrics):
        ratios = [
            math.log(b) - math.log(a)
            for values in drawn
            for a, b in zip(*values[id], strict=True)
            if a and b and a > 0 < b
        ]
        if ratios:
            noise[id] = noise_of(
                ratios,
                pairs=policy.design.pairs,
                max_pairs=policy.design.max_pairs,
                limit=limits.get(id),
                alarms=flagged[id] if id in limits else None,
            )
    return noise

"""A/A runs: how much each metric moves when nothing changed, how often the gate would have failed, what limits hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from inferdoc.errors import InputError, PolicyError
from inferdoc.evidence import Contract, Schema
from inferdoc.gate.policy import Policy
from inferdoc.rank_tests import detectable

SCHEMA = Schema(name="inferdoc.calibration", version="1.0")
PATH = ".inferdoc/calibration/{workload}/{env}.json"
ASSUMED_SD = 0.024
"""Of one repeat, where nothing was calibrated: six identical decode runs of vLLM on one card had a standard deviation
of 2.4% (0xBakeer/qwen38-flash-next-spark#6)."""


class Noise(Contract):
    """One metric of unchanged code."""

    sd: float
    """Of the log ratio of a pair, about 0: the true difference of an A/A pair."""
    pairs: int
    false_alarms: int | None
    """Sessions that the gate's first look would have flagged, with the policy's other metrics and without confirmation;
    ``None``: the metric has no relative limit."""
    limit: float | None
    detectable: float
    """Smallest relative change that the policy's most pairs show with 80% power."""
    suggested: float
    """Limit for the policy's first look."""


class Calibration(Contract):
    schema_: Annotated[Schema, Field(alias="schema")] = SCHEMA
    recorded_at: str
    tool_version: str
    environment: str
    """Fingerprint."""
    workload: str
    """Fingerprint."""
    requests: int
    sessions: int
    pairs: int
    """Of one session."""
    noise: dict[str, Noise]

    model_config = ConfigDict(populate_by_name=True)


def calibration_path(folder: Path, workload: str, environment: str) -> Path:
    """Beside the baselines: by workload and machine."""
    return folder / PATH.format(workload=workload[:12], env=environment[:12])


def read_calibration(path: Path) -> Calibration | None:
    """What was calibrated, ``None`` where nothing was.

    Raises:
        InputError: the file is damaged, or of another schema.
    """
    if not path.exists():
        return None
    again = "remove it and run `inferdoc gate calibrate`"
    try:
        found = Calibration.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise InputError(f"{path}: not a calibration ({reason}); {again}") from None
    if found.schema_.name != SCHEMA.name or found.schema_.version.partition(".")[0] != "1":
        raise InputError(f"{path}: schema {found.schema_.name} {found.schema_.version}, not {SCHEMA.name} 1.x; {again}")
    return found


def noise_of(ratios: Sequence[float], *, pairs: int, max_pairs: int, limit: float | None, alarms: int | None) -> Noise:
    """Noise from the log ratios of all A/A pairs.

    Args:
        pairs, max_pairs: of the policy's two looks.
    """
    sd = math.sqrt(sum(ratio * ratio for ratio in ratios) / len(ratios))
    return Noise(
        sd=sd,
        pairs=len(ratios),
        false_alarms=alarms,
        limit=limit,
        detectable=detectable(sd, max_pairs),
        suggested=max(0.01, math.ceil(detectable(sd, pairs) * 200) / 200),
    )


def refuse_limits_below_noise(policy: Policy, calibration: Calibration) -> None:
    """Raises:
    PolicyError: a limit that may fail is below what the policy's most pairs can show on this machine.
    """
    for metric in policy.metrics:
        noise = calibration.noise.get(metric.id)
        if metric.role != "fail" or metric.max_regression is None or noise is None:
            continue
        shown = detectable(noise.sd, policy.design.max_pairs)
        if metric.max_regression < shown:
            raise PolicyError(
                f"{metric.id}: max_regression {metric.max_regression:.3g} is below the noise: "
                f"{policy.design.max_pairs} pairs show {shown:.1%} here ({noise.pairs} A/A pairs on "
                f"{calibration.recorded_at[:10]}); set at least {noise.suggested:.1%}, more max_pairs, or more "
                "[workload] requests",
                where=policy.where(metric.line),
            )


def detectability(policy: Policy, calibration: Calibration | None) -> list[str]:
    """What the design can show, a line for each metric with a limit; before anything is run."""
    first, most = policy.design.pairs, policy.design.max_pairs
    lines = []
    for metric in policy.metrics:
        if metric.max_regression is None:
            continue
        noise = calibration.noise.get(metric.id) if calibration else None
        sd = noise.sd if noise else ASSUMED_SD * math.sqrt(2)
        basis = f"calibrated, {noise.pairs} A/A pairs" if noise else f"assumed: {ASSUMED_SD:.1%} a repeat"
        shown, later = detectable(sd, first), detectable(sd, most)
        below = "" if metric.max_regression >= later else "; the limit is below it"
        second = f", {most} pairs {later:.1%}" if most > first else ""
        lines.append(
            f"{metric.id}: {first} pairs show {shown:.1%}{second} "
            f"(80% power; {basis}); limit {metric.max_regression:.1%}{below}"
        )
    return lines

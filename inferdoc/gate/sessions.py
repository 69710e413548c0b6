"""One measured run as the gate keeps it: what it was run on, every measurement by its id, what was concluded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from inferdoc.evidence import (
    Comparison,
    Contract,
    Diagnosis,
    Direction,
    Environment,
    Evidence,
    Finding,
    Interval,
    Objective,
    PairedMetric,
    Quantity,
    QuestionAnswer,
    Recommendation,
    Slo,
    Subject,
    Tool,
    Validity,
    Workload,
)
from inferdoc.gate.registry import EVIDENCE_DIRECTIONS
from inferdoc.gate.result import Kind


class Measured(Contract):
    """One measurement of a session. `value` is ``None`` exactly when `reason` says why."""

    id: str
    """As `Evidence.lookup` names it."""
    label: str
    unit: str
    direction: Direction | None = None
    """Which way is better; ``None`` where neither is."""
    kind: Kind
    values: list[float | None]
    """One for each repeat."""
    value: float | None = None
    """Median of the repeats, or the quantity's own value."""
    interval: Interval | None = None
    n: int | None = None
    reason: str | None = None
    load: str | None = None
    """What it was measured under, where it depends on one."""
    rate: float | None = None
    """Requests per second of an open loop, where the policy gave it: the same in every session that may be compared."""


class Conclusions(Contract):
    """The part of a diagnosis that two sessions are compared by."""

    answers: list[QuestionAnswer]
    findings: list[Finding]
    recommendations: list[Recommendation]

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> Conclusions:
        return cls(answers=diagnosis.answers, findings=diagnosis.findings, recommendations=diagnosis.recommendations)


class Session(Contract):
    """One run, complete enough to be compared years later without its evidence."""

    started_at: str
    run_id: str
    tool: Tool
    subject: Subject
    environment: Environment
    workload: Workload
    validity: Validity
    status: Literal["complete", "partial", "failed"]
    failures: list[str]
    """Measurements that failed, each with its reason."""
    seed: int | None = None
    """Of the arrival times of an open-loop load."""
    objective: Objective | None = None
    slo: list[Slo]
    """Both decide what a diagnosis recommends."""
    measurements: dict[str, Measured]
    diagnosis: Conclusions | None = None

    @property
    def name(self) -> str:
        """``run 3f9c2a of 2026-03-02T10:14:07Z``."""
        return f"run {self.run_id} of {self.started_at}"


def session_of(evidence: Evidence, diagnosis: Diagnosis | None) -> Session:
    """All plain quantities, and every metric of every comparison as ``<comparison>.<metric>.off|on|gain``."""
    measured = [_plain(id, quantity) for id, quantity in evidence.quantities.items()]
    for id, comparison in evidence.comparisons.items():
        measured += _of_comparison(id, comparison)
    return Session(
        started_at=evidence.run.started_at,
        run_id=evidence.run.id,
        tool=evidence.tool,
        subject=evidence.subject,
        environment=evidence.environment,
        workload=evidence.workload,
        validity=evidence.validity,
        status=evidence.run.status,
        failures=[f"{c.label}: {c.failure}" for c in evidence.comparisons.values() if c.failure],
        seed=evidence.run.seed,
        objective=evidence.run.objective,
        slo=evidence.run.slo,
        measurements={item.id: item for item in measured},
        diagnosis=Conclusions.of(diagnosis) if diagnosis is not None else None,
    )


def _plain(id: str, quantity: Quantity) -> Measured:
    return _measured(
        id,
        quantity,
        values=[quantity.value],
        direction=quantity.direction or EVIDENCE_DIRECTIONS.get(id),
        kind="exact" if quantity.exact else "timing",
    )


def _of_comparison(id: str, comparison: Comparison) -> Iterator[Measured]:
    for name, metric in comparison.metrics.items():
        yield from _of_metric(f"{id}.{name}", metric, comparison.load)


def _of_metric(prefix: str, metric: PairedMetric, load: str) -> Iterator[Measured]:
    yield _measured(f"{prefix}.off", metric.off_estimate, values=metric.off, direction=metric.direction, load=load)
    yield _measured(f"{prefix}.on", metric.on_estimate, values=metric.on, direction=metric.direction, load=load)
    gain = metric.gain.model_copy(update={"unit": "x"})  # a gain is a factor, whatever its writer called the unit
    yield _measured(f"{prefix}.gain", gain, values=[gain.value], direction="higher", load=load)


def _measured(
    id: str,
    quantity: Quantity,
    *,
    values: list[float | None],
    direction: Direction | None,
    kind: Kind = "timing",
    load: str | None = None,
) -> Measured:
    return Measured(
        id=id,
        label=quantity.label,
        unit=quantity.unit,
        direction=direction,
        kind=kind,
        values=values,
        value=quantity.value,
        interval=quantity.interval,
        n=quantity.n,
        reason=quantity.reason,
        load=load,
    )

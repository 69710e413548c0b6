"""What a gate found (``gate.json``): every number behind the exit code, with the line of the policy that asked for it.

This module imports pydantic only, so that a report of a stored result needs nothing else.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from inferdoc.errors import InputError
from inferdoc.evidence import Check, Contract, Direction, EnvironmentField, Fact, Interval, Question, Schema, Tool

SCHEMA = Schema(name="inferdoc.gate", version="1.0")

Role = Literal["fail", "warn", "info"]
Kind = Literal["timing", "exact"]
FieldGroup = Literal["must_match", "may_vary", "warn"]
ChangeKind = Literal["worse", "appeared", "disappeared", "turned off", "turned on", "no longer known", "changed"]


class MetricVerdict(StrEnum):
    """Of one metric under one limit."""

    PASS = "pass"
    """A regression as large as the limit is ruled out, or a budget is kept."""
    IMPROVED = "improved"
    """Passed, and the whole interval is better than no change."""
    REGRESSED = "regressed"
    """Worse than the limit and the floor, beyond what noise explains; or an exact count differs."""
    BROKEN = "broken"
    """An absolute budget is not kept."""
    INCONCLUSIVE = "inconclusive"
    ADVISORY = "advisory"
    """Shown, never failing: a difference of stored results without pairing, or one without a limit."""

    @property
    def fails(self) -> bool:
        """Whether it fails the gate, where the metric's role is to."""
        return self in (MetricVerdict.REGRESSED, MetricVerdict.BROKEN)


class GateVerdict(StrEnum):
    PASSED = "passed"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"
    """Unlike machines, models or workloads, no baseline, or no metric compared."""
    INVALID = "invalid"
    """A measurement failed."""
    INTERRUPTED = "interrupted"
    RECORDED = "recorded"
    """There was no baseline, and the policy says to record one."""


class Confirmation(Contract):
    """A flagged metric on fresh pairs. Both the first test and this one must fail."""

    pairs: int
    ratio: float | None
    p: float | None
    confirmed: bool


class MetricResult(Contract):
    """One metric under one limit of the policy.

    Ratios are candidate over baseline, whatever the metric's direction; `direction` says which way is better.
    """

    metric: str
    label: str
    unit: str
    direction: Direction | None
    role: Role
    kind: Kind
    rule: Literal["regression", "budget", "exact"]
    baseline_values: list[float | None] = []
    """One for each repeat (run, or session of a history), paired by position in a paired design."""
    candidate_values: list[float | None] = []
    baseline: float | None = None
    """Median of the repeats."""
    candidate: float | None = None
    n: int = 0
    """Pairs that both have a value; of a history, sessions of the candidate."""
    ratio: float | None = None
    """Hodges-Lehmann on the log scale; 0 where it fell to zero, ``None`` where it rose from there."""
    interval: Interval | None = None
    """Of `ratio`, two-sided, by inverting the exact test; ``None`` where an end has no finite ratio."""
    p: float | None = None
    """One-sided, that the candidate is worse, or beyond its budget."""
    p_adjusted: float | None = None
    limit: float | None = None
    """Largest allowed relative change for the worse, for example 0.05."""
    floor: float | None = None
    """Absolute change, in `unit`, that a regression must also reach."""
    max_value: float | None = None
    min_value: float | None = None
    min_detectable: float | None = None
    """Relative change for the worse that this many pairs show with 80% power at the spread seen."""
    pairs_needed: int | None = None
    """Pairs (or sessions) that would decide an inconclusive metric."""
    confirmation: Confirmation | None = None
    verdict: MetricVerdict
    reason: str | None = None
    """One clause, where the numbers alone do not say why."""
    policy_line: int | None = None


class FieldComparison(Contract):
    """One field of the two environments, models or workloads."""

    field: str
    group: FieldGroup
    baseline: EnvironmentField
    candidate: EnvironmentField
    outcome: Literal["same", "differs", "unknown"]
    """``unknown``: at least one side is not known, so that it can't be told."""
    refuses: bool
    """Whether this alone makes the two not comparable."""


class Comparability(Contract):
    status: Literal["comparable", "not comparable"]
    fields: list[FieldComparison] = []
    """Only those that differ, are not known, or were declared as varying."""
    did_not_vary: list[str] = []
    """Declared in ``may_vary`` and the same on both sides."""
    reasons: list[str] = []
    """Why not comparable; each says how to mend it."""


class DiagnosisChange(Contract):
    """One answer, or one recommendation, that differs between the two diagnoses."""

    question: Question
    technique: str
    title: str
    kind: ChangeKind
    before: str
    """Conclusion of the baseline, or how the technique was set."""
    after: str
    before_evidence: list[Fact] = []
    after_evidence: list[Fact] = []
    text: str
    """One sentence with both pieces of evidence in it."""
    outcome: Literal["fail", "inconclusive", "warn", "info"]
    policy_line: int | None = None


class Exclusion(Contract):
    """A pair left out, in both arms, for a recorded physical cause."""

    pair: int
    cause: str


class DesignRecord(Contract):
    mode: Literal["paired", "history", "stored"]
    pairs: int = 0
    """Pairs that count; of a history, sessions of the candidate."""
    planned_pairs: int = 0
    max_pairs: int = 0
    confirm_pairs: int = 0
    order: list[Literal["baseline", "candidate"]] = []
    """Of the runs that count, in time."""
    warmup_runs: int = 0
    """Of both arms together, not counted."""
    exclusions: list[Exclusion] = []
    requests: int | None = None
    """Of one run."""
    load: str | None = None
    seed: int = 0


class Family(Contract):
    """The tests that may fail the gate, taken together."""

    method: str
    alpha: float
    """Of the whole family over all looks."""
    alpha_of_look: float
    look: int = 1
    size: int = 0


class Arm(Contract):
    """What one side was."""

    name: Literal["baseline", "candidate"]
    model: str
    source: str | None = None
    """The stored result it was read from."""
    settings: dict[str, Any] = {}
    """Engine settings as run."""
    sessions: int = 1
    notes: list[str] = []


class PolicyRecord(Contract):
    path: str
    sha256: str


class GateResult(Contract):
    schema_: Annotated[Schema, Field(alias="schema")] = SCHEMA
    tool: Tool
    started_at: str
    duration_s: float
    command: str
    policy: PolicyRecord | None = None
    """``None``: the built-in defaults."""
    subject: str
    """What was gated, in a few words: model and workload."""
    device: str
    baseline: Arm
    candidate: Arm
    comparability: Comparability
    design: DesignRecord
    family: Family | None = None
    results: list[MetricResult] = []
    geometric_mean: float | None = None
    """Of the harm ratios (above 1 is worse) of all timing metrics: for orientation, never gated."""
    diagnosis_changes: list[DiagnosisChange] = []
    checks: list[Check] = []
    """The run's own health."""
    verdict: GateVerdict
    exit_code: int
    headline: str
    """One sentence: the verdict and what decided it."""
    next_step: str
    notes: list[str] = []

    model_config = ConfigDict(populate_by_name=True)


def read_gate_result(path: Path) -> GateResult:
    """Read ``gate.json``.

    Raises:
        InputError: the file is missing, is not JSON, or is of another schema.
    """
    try:
        result = GateResult.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give the gate.json of an earlier gate") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise InputError(f"{path}: not a gate result: {where}: {first['msg']}") from None
    if result.schema_.name != SCHEMA.name or result.schema_.version.partition(".")[0] != "1":
        raise InputError(f"{path}: schema {result.schema_.name} {result.schema_.version}; this version reads 1.x")
    return result

"""What a gate tells, in which order: worst first, from which every output is written. Nothing is decided here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from inferdoc.evidence import Check
from inferdoc.gate.result import (
    DiagnosisChange,
    FieldComparison,
    GateResult,
    GateVerdict,
    MetricResult,
    MetricVerdict,
)
from inferdoc.reports.gate_formatting import standing, worsening

_REST = (
    MetricVerdict.REGRESSED,
    MetricVerdict.BROKEN,
    MetricVerdict.INCONCLUSIVE,
    MetricVerdict.ADVISORY,
    MetricVerdict.IMPROVED,
    MetricVerdict.PASS,
)
_OUTCOMES = ("fail", "inconclusive", "warn", "info")
_ROLES = ("fail", "warn", "info")


@dataclass(frozen=True)
class GateOutline:
    """The parts of a gate's result in the order in which they are read."""

    result: GateResult
    failing: tuple[MetricResult, ...]
    """Those that make the gate exit 1."""
    warned: tuple[MetricResult, ...]
    """Worse, but with a role that cannot fail."""
    undecided: tuple[MetricResult, ...]
    """Inconclusive and advisory."""
    kept: tuple[MetricResult, ...]
    """Passed and improved."""
    changes: tuple[DiagnosisChange, ...]
    fields: tuple[FieldComparison, ...]
    """Those that refuse the comparison first, those declared as varying last."""
    failed_checks: tuple[Check, ...]

    @property
    def rows(self) -> tuple[MetricResult, ...]:
        """Every metric, worst first."""
        return (*self.failing, *self.warned, *self.undecided, *self.kept)

    @property
    def counts(self) -> str:
        """``2 regressed, 1 inconclusive, 9 passed``."""
        return ", ".join(f"{n} {word}" for word, n in Counter(map(standing, self.rows)).items()) or "no metric compared"

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why there is no comparison that holds: unlike sides, or a measurement that failed."""
        reasons = self.result.comparability.reasons if self.result.comparability.status == "not comparable" else []
        if not reasons and self.result.verdict in (GateVerdict.NOT_COMPARABLE, GateVerdict.INVALID):
            reasons = [self.result.headline]
        return tuple(reasons)


def gate_outline(result: GateResult) -> GateOutline:
    """Put everything that a gate found in its place."""

    def group(belongs: Callable[[MetricResult], bool]) -> tuple[MetricResult, ...]:
        return tuple(sorted(filter(belongs, result.results), key=_badness))

    return GateOutline(
        result=result,
        failing=group(lambda row: row.verdict.fails and row.role == "fail"),
        warned=group(lambda row: row.verdict.fails and row.role != "fail"),
        undecided=group(lambda row: row.verdict in (MetricVerdict.INCONCLUSIVE, MetricVerdict.ADVISORY)),
        kept=group(lambda row: row.verdict in (MetricVerdict.PASS, MetricVerdict.IMPROVED)),
        changes=tuple(sorted(result.diagnosis_changes, key=lambda changed: _OUTCOMES.index(changed.outcome))),
        fields=tuple(
            sorted(
                result.comparability.fields,
                key=lambda field: (not field.refuses, field.group == "may_vary", field.outcome == "same"),
            )
        ),
        failed_checks=tuple(check for check in result.checks if check.passed is False),
    )


def _badness(row: MetricResult) -> tuple[int, int, float]:
    """For sorting: the role, the verdict, and how far beyond its own limit a row is."""
    worse = 0.0 if row.ratio is None else worsening(row, row.ratio)
    return _ROLES.index(row.role), _REST.index(row.verdict), -worse / (row.limit or 1.0)

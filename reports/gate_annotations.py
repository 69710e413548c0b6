"""A gate's result as GitHub annotations: at the line of the policy that failed.

At most five findings and a notice that says how many more there are: GitHub drops silently what it does not keep, and
what is read is the first few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inferdoc.gate.result import DiagnosisChange, GateResult, GateVerdict, MetricResult
from inferdoc.reports import gate_formatting as words
from inferdoc.reports.gate_outline import gate_outline
from inferdoc.reports.text import terminal_safe

_FINDINGS = 5
_FAULTS = (GateVerdict.NOT_COMPARABLE, GateVerdict.INVALID)


@dataclass(frozen=True)
class _Note:
    level: Literal["error", "warning"]
    title: str
    message: str
    line: int | None = None


def github_annotations(result: GateResult) -> list[str]:
    """The workflow commands, one a line, worst first; the last is the notice."""
    notes = _notes(result)
    shown = sorted(notes, key=lambda note: note.level)[:_FINDINGS]  # "error" before "warning"
    left = len(notes) - len(shown)
    more = f"; {words.plural(left, 'more finding')} in the summary and in gate.json" if left else ""
    title = f"{result.verdict.value} (exit {result.exit_code})"
    lines = [_command(note.level, result, note.title, note.message, note.line) for note in shown]
    return [*lines, _command("notice", result, title, f"{result.headline}{more}", None)]


def _notes(result: GateResult) -> list[_Note]:
    told = gate_outline(result)
    notes: list[_Note] = []
    if result.verdict in _FAULTS:
        notes += [_Note("error", result.verdict.value, reason) for reason in told.troubles]
    notes += [_metric("error", row) for row in told.failing]
    notes += [_change("error", changed) for changed in told.changes if changed.outcome == "fail"]
    notes += [_metric("warning", row) for row in told.warned if row.role == "warn"]
    notes += [_change("warning", changed) for changed in told.changes if changed.outcome in ("inconclusive", "warn")]
    if result.verdict is GateVerdict.INCONCLUSIVE:
        notes += [_metric("warning", row) for row in told.undecided if row.role == "fail"]
    return notes


def _metric(level: Literal["error", "warning"], row: MetricResult) -> _Note:
    parts = (words.values(row), words.change(row), words.change_interval(row))
    detail = "; ".join((" ".join(filter(None, parts)), *words.evidence_words(row), *words.remarks(row)))
    return _Note(level, f"{row.metric} {words.standing(row)}", f"{row.label}: {detail}", row.policy_line)


def _change(level: Literal["error", "warning"], changed: DiagnosisChange) -> _Note:
    return _Note(level, f"{changed.title}: {changed.kind}", changed.text, changed.policy_line)


def _command(level: str, result: GateResult, title: str, message: str, line: int | None) -> str:
    properties = {"title": f"inferdoc gate: {title}"}
    if result.policy is not None:
        where = {"file": result.policy.path} | ({} if line is None else {"line": str(line)})
        properties = where | properties
    told = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {told}::{_data(message)}"


def _data(text: str) -> str:
    # As actions/toolkit escapes what it sends (packages/core/src/command.ts).
    return terminal_safe(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

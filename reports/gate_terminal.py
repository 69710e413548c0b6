"""A gate's result on the terminal: one screen, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from inferdoc.gate.result import GateResult, MetricResult
from inferdoc.reports import formatting
from inferdoc.reports import gate_formatting as words
from inferdoc.reports.gate_outline import gate_outline
from inferdoc.reports.terminal import Screen, make_console

if TYPE_CHECKING:
    # It takes numpy and scipy along.
    from inferdoc.gate.calibration import Calibration

_ROWS = 8
"""Metrics shown; those that fail the gate always are."""
_LINES = 4
"""Fields, checks and changed answers shown of each kind; those that fail the gate always are."""
_COLOURS = {"good": "green", "bad": "red", "caution": "yellow", "calm": "dim"}


def print_gate(result: GateResult, files: Sequence[Path], console: Console | None = None) -> None:
    """Print the summary to `console` (default: standard output); `files` are what was written."""
    _GateScreen(console or make_console(), result).print(files)


def print_calibration(calibration: Calibration, path: Path, console: Console | None = None) -> None:
    """Print the noise of each metric, noisiest first, and what limits it leaves room for."""
    screen = Screen(console or make_console())
    of = calibration
    drawn = f"{words.plural(of.sessions, 'A/A session')} of {words.plural(of.pairs, 'pair')}"
    screen.line("CALIBRATED  ", f"{drawn}; {words.plural(of.requests, 'request')} a run", head_style="bold")
    name = max((len(metric) for metric in of.noise), default=0)
    for metric, noise in sorted(of.noise.items(), key=lambda item: -item[1].sd):
        exact = words.exact_percent
        parts = [f"noise {exact(noise.sd)} a pair", f"shows {exact(noise.detectable)}"]
        parts.append(f"suggested limit {exact(noise.suggested)}")
        if noise.limit is not None:
            parts.append(f"yours {exact(noise.limit)}")
        if noise.false_alarms is not None:
            parts.append(f"false alarms {noise.false_alarms} of {of.sessions}")
        low = noise.limit is not None and noise.limit < noise.detectable
        screen.line(f" {'!' if low else '✓'} {screen.safe(metric):<{name}}  ", "; ".join(parts))
        if low:
            screen.line("     ", "the limit is below the noise: raise it, or the pairs", style="yellow")
    screen.line("FILES  ", str(path), head_style="bold")


class _GateScreen(Screen):
    def __init__(self, console: Console, result: GateResult) -> None:
        super().__init__(console)
        self.result = result
        self.outline = gate_outline(result)

    def print(self, files: Sequence[Path]) -> None:
        self._verdict()
        self._comparability()
        if self.result.results:
            self._metrics()
        self._changes()
        self._design()
        self.line("NEXT  ", self.result.next_step, head_style="bold")
        if files:
            self.line("FILES  ", "  ".join(map(str, files)), head_style="bold")

    def _verdict(self) -> None:
        result = self.result
        took = formatting.number(result.duration_s, "s")
        parts = (result.subject, result.device, f"policy {words.place(result) or 'built in'}", took)
        self.line(f"inferdoc {result.tool.version} gate  ", "  ".join(parts), head_style="bold")
        head = f"{words.gate_mark(result.verdict)} {result.verdict.value.upper()} (exit {result.exit_code})  "
        colour = _COLOURS[words.gate_tone(result.verdict)]
        self.line(head, result.headline, head_style=f"bold {colour}", style="bold")
        for check in self.outline.failed_checks[:_LINES]:
            self.line(" ! ", f"{check.name}: {check.text}", head_style="yellow")
        self._more(len(self.outline.failed_checks), _LINES, "failed check")

    def _comparability(self) -> None:
        compared = self.result.comparability
        alike = compared.status == "comparable"
        fields = self.outline.fields
        fixed = f"; did not vary: {', '.join(compared.did_not_vary)}" if compared.did_not_vary else ""
        self.heading("COMPARABILITY", f"  {'✓' if alike else '≠'} {compared.status}{fixed}")
        for reason in compared.reasons:
            self.line("   ", reason)
        shown = [field for field in fields if field.refuses or field.outcome != "same"]
        for field in shown[:_LINES]:
            mark = "✕" if field.refuses else "–" if field.group == "may_vary" else "!"
            self.line(f" {mark} ", f"{field.field}: {words.field_words(field)} ({words.field_outcome(field)})")
        self._more(len(shown), _LINES, "field")

    def _metrics(self) -> None:
        rows = self.outline.rows
        shown = max(_ROWS, len(self.outline.failing))
        self.heading("METRICS", f"  {self.outline.counts}; change of the candidate [95% interval]")
        standing = max(len(words.standing(row)) for row in rows[:shown])
        name = min(24, max(len(row.metric) for row in rows[:shown]))
        for row in rows[:shown]:
            self._metric(row, standing, name)
        self._more(len(rows), shown, "metric")

    def _metric(self, row: MetricResult, standing: int, name: int) -> None:
        head = f" {words.mark(row)} {words.standing(row):<{standing}}  "
        span = " ".join(filter(None, (words.change(row), words.change_interval(row))))
        first = "  ".join(filter(None, (f"{self.safe(row.metric):<{name}}", span)))
        where = words.place(self.result, row.policy_line) if row in self.outline.failing else ""
        rest = "; ".join(filter(None, (words.values(row), *words.evidence_words(row), *words.remarks(row), where)))
        style = _COLOURS[words.tone(row)]
        if len(head) + len(first) + 2 + len(rest) <= self.console.width:
            self.line(head, f"{first}  {rest}", head_style=style)
        else:
            self.line(head, first, head_style=style)
            self.line("     ", rest, style="dim")

    def _changes(self) -> None:
        changes = self.outline.changes
        if not changes:
            return
        self.heading("DIAGNOSIS", f"  {words.plural(len(changes), 'answer')} changed")
        shown = max(_LINES, sum(changed.outcome == "fail" for changed in changes))
        for changed in changes[:shown]:
            head = f" {words.change_mark(changed)} {changed.kind}  "
            colour = _COLOURS[words.change_tone(changed)]
            failing = changed.outcome == "fail"
            where = words.place(self.result, changed.policy_line) if failing and changed.policy_line else ""
            self.line(head, "; ".join(filter(None, (changed.text, where))), head_style=colour)
        self._more(len(changes), shown, "changed answer")

    def _design(self) -> None:
        parts = [words.design_words(self.result.design), words.detectable_words(self.result)]
        self.line("DESIGN  ", "; ".join(filter(None, parts)), head_style="bold", style="dim")

    def _more(self, count: int, shown: int, what: str) -> None:
        if count > shown:
            self.line("   ", f"{words.plural(count - shown, f'more {what}')} in gate.json", style="dim")

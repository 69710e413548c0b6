"""The summary on the terminal: one screen, in the order of the report.

Built of rich `Text` objects, never of markup strings, so a bracket in a model's name stays a bracket. Long lines fold
and nothing is cropped; without a UTF encoding every glyph has an ASCII stand-in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from inferdoc.evidence import Conclusion, Diagnosis, Evidence, Expected, Finding, Recommendation
from inferdoc.reports import formatting
from inferdoc.reports.gate_formatting import gate_mark
from inferdoc.reports.outline import Block, Outline, device_name, outline
from inferdoc.reports.templating import EFFECTS, ICONS
from inferdoc.reports.text import encodable, terminal_safe

WIDTH_WITHOUT_TERMINAL = 120
_LINES = 4
"""Findings shown under one heading; the rest are counted."""
_TITLES = 8
_METRICS = 3
"""Expected metrics shown of a card; a loss beyond them is shown too."""
_COLOURS = {
    Conclusion.RECOMMENDED: "green",
    Conclusion.DOES_NOT_PAY: "red",
    Conclusion.NOT_NEEDED: "default",
    Conclusion.INCONCLUSIVE: "yellow",
    Conclusion.NOT_MEASURED: "dim",
}
_ASCII = str.maketrans(
    {
        "✓": "+",
        "✕": "x",
        "–": "-",
        "○": "o",
        "µ": "u",
        "…": "...",
        "→": "->",
        "—": "-",
        "×": "x",
        "▲": "+",
        "▼": "-",
        "≠": "!=",
    }
)


def make_console(stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> Console:
    """A console for results: ``COLUMNS`` and ``NO_COLOR`` are honoured, a pipe is 120 columns wide."""
    stream = stream or sys.stdout
    environ = os.environ if environ is None else environ
    columns = environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) > 0 else None
    if width is None and not stream.isatty():
        width = WIDTH_WITHOUT_TERMINAL
    # rich takes TERM=dumb for 80 columns unless both sides are given.
    height = 50 if width is not None else None
    # rich wants a dict; NO_COLOR counts only when it is not empty, as its definition says.
    return Console(
        file=stream,
        width=width,
        height=height,
        no_color=bool(environ.get("NO_COLOR")) or None,
        markup=False,
        emoji=False,
        highlight=False,
        _environ=dict(environ),
    )


def print_diagnosis(evidence: Evidence, diagnosis: Diagnosis, out: Path, console: Console | None = None) -> None:
    """Print the summary to `console` (default: standard output); `out` is where the reports are."""
    _Summary(console or make_console(), evidence, diagnosis).print(out)


class Screen:
    """Lines on a console: folded within its width, and in characters that it has."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.encoding = console.encoding
        self.utf = self.encoding.lower().startswith("utf")

    def heading(self, heading: str, rest: str = "") -> None:
        self.line(heading, rest, head_style="bold", style="dim")

    def line(self, head: str, body: str, *, head_style: str = "", style: str = "") -> None:
        """Print `head` and `body`, folded within the width, later lines under the first."""
        left, right = Text(self.safe(head), style=head_style), Text(self.safe(body), style=style)
        indent = left.cell_len
        if indent > self.console.width // 2:
            self.console.print(left, overflow="fold")
            left, indent = Text("  "), 2
        for i, line in enumerate(right.wrap(self.console, max(1, self.console.width - indent)) or [Text()]):
            line.rstrip()
            self.console.print((left if i == 0 else Text(" " * indent)) + line, overflow="fold", crop=False)

    def safe(self, text: str) -> str:
        shown = terminal_safe(text)
        return shown if self.utf else encodable(shown.translate(_ASCII), self.encoding)


class _Summary(Screen):
    def __init__(self, console: Console, evidence: Evidence, diagnosis: Diagnosis) -> None:
        super().__init__(console)
        self.evidence = evidence
        self.diagnosis = diagnosis
        self.outline: Outline = outline(evidence, diagnosis)

    def print(self, out: Path) -> None:
        self._header()
        self._verdict()
        self._comparison()
        self._answers()
        self._advice()
        for heading, conclusion in (
            ("DOES NOT PAY", Conclusion.DOES_NOT_PAY),
            ("INCONCLUSIVE", Conclusion.INCONCLUSIVE),
        ):
            self._findings(heading, [block for block in self.outline.why if block.finding.conclusion is conclusion])
        self._titles("NOT NEEDED", [block.finding for block in self.outline.not_needed])
        self._titles("COULD NOT BE MEASURED", self.outline.not_measured)
        files = "  ".join(str(out / name) for name in ("report.html", "report.md", "evidence.json", "diagnosis.json"))
        self.line("REPORT  ", files, head_style="bold")

    def _header(self) -> None:
        run, subject, validity = self.diagnosis.run, self.diagnosis.subject, self.diagnosis.validity
        failed = sum(check.passed is False for check in validity.checks)
        health = validity.status.upper() + (f" ({failed} of {len(validity.checks)} checks failed)" if failed else "")
        parts = (
            subject.model,
            self.diagnosis.workload.source,
            subject.engine,
            device_name(self.evidence.environment),
            f"report {run.id}",
            health,
            formatting.measured_on(self.evidence.workload),
        )
        self.line(f"inferdoc {self.diagnosis.tool.version}  ", "  ".join(filter(None, parts)), head_style="bold")
        for problem in self.outline.problems[:_LINES]:
            mark = "✕" if problem.severity == "serious" else "!"
            self.line(f" {mark} ", problem.text, head_style="red" if problem.severity == "serious" else "yellow")

    def _verdict(self) -> None:
        verdict = self.diagnosis.verdict
        self.line("VERDICT  ", verdict.headline, head_style="bold", style="bold")
        for line in verdict.lines[:5]:
            self.line("  ", line)

    def _comparison(self) -> None:
        if self.outline.gate is not None:
            result = self.outline.gate.result
            mark = f"{gate_mark(result.verdict)} {result.verdict.value}"
            self.line("BASELINE  ", f"{mark}: {result.headline}", head_style="bold")

    def _answers(self) -> None:
        self.heading("SIX QUESTIONS")
        for answer in self.outline.answers:
            badge = f"{ICONS[answer.conclusion]} {answer.conclusion.value}"
            head = f" {answer.question.number} {badge:<16}"
            self.line(head, answer.question.text, head_style=_COLOURS[answer.conclusion])

    def _advice(self) -> None:
        self.heading("DO NEXT", f"  ranked by {self.diagnosis.run.objective.value}; estimates overlap, do not add")
        if not self.outline.cards:
            self.line("   ", "nothing that was measured pays")
        for card in self.outline.cards:
            self._card(card)
        tests = list(dict.fromkeys(card.verify_command for card in self.outline.cards))
        if tests:
            more = f" ({len(tests) - 1} more in the report)" if len(tests) > 1 else ""
            self.line("   test: ", tests[0] + more, head_style="dim")
        if self.outline.more_cards:
            self.line("   ", f"{len(self.outline.more_cards)} more in the report", head_style="dim")

    def _card(self, card: Recommendation) -> None:
        change = card.change
        bases = formatting.bases(card)
        basis = f" ({bases[0]})" if len(bases) == 1 else ""
        title = f"{change.knob}: {change.from_} -> {change.to}{basis}"
        self.line(f" {card.rank} ", title, head_style="bold", style="bold")
        losses = [item for item in card.expected[_METRICS:] if formatting.effect(item) == "worse"]
        for item in (*card.expected[:_METRICS], *losses):
            self._expected(item, item.label, mixed=len(bases) > 1)
        if card.adds is not None:
            self._expected(card.adds, f"{card.adds.label}, added to the steps above", mixed=len(bases) > 1)

    def _expected(self, item: Expected, label: str, *, mixed: bool) -> None:
        effect = formatting.effect(item)
        basis = f" ({item.basis.value})" if mixed else ""
        word = f", {effect}" if effect in ("worse", "no difference shown") else ""
        style = {"better": "green", "worse": "red"}.get(effect or "", "")
        icon = EFFECTS[effect] if effect else " "
        self.line(f"   {icon} ", f"{formatting.expected(item)} {label}{word}{basis}", head_style=style)

    def _findings(self, heading: str, blocks: list[Block]) -> None:
        if not blocks:
            return
        self.heading(heading)
        for block in blocks[:_LINES]:
            finding = block.finding
            shown = [*finding.marks, *([formatting.pairs(block.short)] if block.short else [])]
            marks = f" ({', '.join(shown)})" if shown else ""
            head = f" {ICONS[finding.conclusion]} "
            self.line(head, f"{finding.title}: {finding.text}{marks}", head_style=_COLOURS[finding.conclusion])
        if len(blocks) > _LINES:
            self.line("   ", f"{len(blocks) - _LINES} more in the report", head_style="dim")

    def _titles(self, heading: str, findings: Sequence[Finding]) -> None:
        if findings:
            shown = [finding.title for finding in findings[:_TITLES]]
            more = f" and {len(findings) - _TITLES} more" if len(findings) > _TITLES else ""
            self.heading(heading, f"  {len(findings)}, with reasons in the report")
            self.line("   ", ", ".join(shown) + more)

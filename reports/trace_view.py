"""What a trace tells, on the terminal: how it was understood, its load, its prefixes, what it lacks."""

from __future__ import annotations

from rich.console import Console

from inferdoc.evidence import Question
from inferdoc.reports.formatting import digits, number
from inferdoc.reports.terminal import Screen, make_console
from inferdoc.reports.trace_load_view import LoadView
from inferdoc.reports.trace_prefix_view import PrefixView
from inferdoc.traces.absences import Absence
from inferdoc.traces.analysis import TraceAnalysis

_NOTES = 8
_PLACES = 20
_REASONS = 6


def print_trace(analysis: TraceAnalysis, console: Console | None = None, *, show_text: bool = False) -> None:
    """Print to `console` (default: standard output); `show_text` shows the text around what breaks prefixes."""
    screen = Screen(console or make_console())
    _Understood(screen, analysis).print()
    LoadView(screen, analysis).print()
    PrefixView(screen, analysis, show_text=show_text).print()
    _absent(screen, analysis.absent)


class _Understood:
    def __init__(self, screen: Screen, analysis: TraceAnalysis) -> None:
        self.screen = screen
        self.analysis = analysis

    def print(self) -> None:
        workload, understood = self.analysis.workload, self.analysis.understood
        found = f"{workload.requests:,} request{'s' if workload.requests != 1 else ''}"
        self.screen.line("TRACE  ", f"{workload.source}: {found}", head_style="bold", style="bold")
        why = "as asked for" if understood.recognised_by is None else f"recognised by {understood.recognised_by}"
        self.screen.line("  format    ", f"{understood.format_title} ({why}); {self._content()}")
        self.screen.line("  time      ", self._time())
        if self._labels():
            self.screen.line("  labels    ", self._labels())
        self._left_out()
        for note in workload.notes[:_NOTES]:
            self.screen.line("  note      ", note, style="dim")
        if len(workload.notes) > _NOTES:
            self.screen.line("  note      ", f"{len(workload.notes) - _NOTES} more with --json", style="dim")

    def _content(self) -> str:
        workload = self.analysis.workload
        blocks = f" in blocks of {workload.block_size} tokens" if workload.block_size else ""
        return {
            "text": "prompts as text",
            "token ids": "prompts as token ids",
            "block hashes": f"prompts as hashes{blocks}",
            "lengths only": "lengths only",
        }[workload.content]

    def _time(self) -> str:
        workload, understood = self.analysis.workload, self.analysis.understood
        if understood.independent_clocks:
            return f"{understood.segments} parts with clocks of their own, so no rate of the whole"
        if workload.time_unit is None:
            return "no arrival times"
        parts = [f"read as {workload.time_unit}"]
        if workload.duration_s is not None and workload.rate_per_s is not None:
            rate = digits(workload.rate_per_s)
            parts.append(f"{number(workload.duration_s, 's')} from first to last arrival, {rate} requests/s")
        else:
            parts.append("all arrive at the same time")
        if understood.segments > 1:
            parts.append(f"{understood.segments} stretches of a clock that starts again, put one after the other")
        return ", ".join(parts)

    def _labels(self) -> str:
        understood = self.analysis.understood
        parts = []
        if understood.sessions is not None:
            parts.append(f"{understood.sessions:,} session{'s' if understood.sessions != 1 else ''}")
        if understood.models is not None:
            parts.append(f"{understood.models} model{'s' if understood.models != 1 else ''}")
        if understood.cached_share is not None:
            parts.append(f"the server had {number(understood.cached_share, 'share')} of the prompt tokens in its cache")
        return ", ".join(parts)

    def _left_out(self) -> None:
        entries = self.analysis.workload.left_out
        for entry in entries[:_REASONS]:
            places = ", ".join(entry.places[:_PLACES])
            more = ", ..." if entry.rows > len(entry.places[:_PLACES]) else ""
            where = f" (line{'s' if entry.rows > 1 else ''} {places}{more})" if places else ""
            self.screen.line("  left out  ", f"{entry.rows:,}: {entry.reason}{where}", head_style="yellow")
        if len(entries) > _REASONS:
            self.screen.line("  left out  ", f"{len(entries) - _REASONS} more reasons with --json", head_style="yellow")


def _absent(screen: Screen, absent: list[Absence]) -> None:
    if not absent:
        return
    screen.heading("NOT IN THE TRACE")
    for entry in absent:
        off = ", ".join(_short(question) for question in entry.switches_off)
        switched = f" Switches off: {off}." if off else ""
        head = "  ✕ " if off else "  – "
        text = f"{entry.absent}: {entry.effect}.{switched} To get it: {entry.how_to_get_it}."
        screen.line(head, text, head_style="red" if off else "dim")


def _short(question: Question) -> str:
    return f"{question.number} {question.value.replace('_', ' ')}"

"""A trace made from another one, on the terminal: both in numbers beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inferdoc.reports.formatting import number
from inferdoc.reports.terminal import Screen, make_console
from inferdoc.traces.comparison import Compared, Comparison

_COUNTS = ("requests", "tokens")
_UNKNOWN = "–"


def print_comparison(
    output: Path, requests: int, notes: Sequence[str], comparison: Comparison, console: Console | None = None
) -> None:
    """Print to `console` (default: standard output)."""
    screen = Screen(console or make_console())
    screen.line("WRITTEN  ", f"{output}: {requests:,} requests", head_style="bold", style="bold")
    for note in notes:
        screen.line("  ", note)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("  ", overflow="fold")
    table.add_column("given", justify="right", overflow="fold")
    table.add_column("written", justify="right", overflow="fold")
    for entry in comparison.numbers:
        cells = (f"  {entry.label}", _shown(entry, entry.before), _shown(entry, entry.after))
        table.add_row(*(Text(screen.safe(cell)) for cell in cells))
    screen.console.print(table)
    for warning in comparison.warnings:
        screen.line("  ! ", warning, head_style="yellow")


def _shown(entry: Compared, value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    if entry.unit in _COUNTS:
        return f"{value:,.0f}"
    return number(value, entry.unit) if value else "0"

"""A gate's result as Markdown, for a pull request or a step summary: worst first, cut by whole sections."""

from __future__ import annotations

from pathlib import Path

from inferdoc.gate.result import GateResult
from inferdoc.reports.gate_outline import gate_outline
from inferdoc.reports.markdown import markdown_environment, within
from inferdoc.reports.templating import render

MAX_BYTES = 900_000
"""GitHub drops a step summary of more than 1,024 kB as a whole."""
_ROWS = 100
"""Rows of one table."""


def render_gate_markdown(result: GateResult, max_bytes: int = MAX_BYTES, *, templates: Path | None = None) -> str:
    """The whole document, or as many of its sections as `max_bytes` hold. `templates` is a user's folder.

    Raises:
        InputError: a template of the user is wrong.
    """
    made = markdown_environment(templates)
    text = render(made, "gate.md.j2", gate=result, outline=gate_outline(result), row_cap=_ROWS)

    def told(cut: list[str]) -> str:
        return f"Left out to stay below {max_bytes:,} bytes: {'; '.join(cut)}. All of it is in gate.json."

    return within(text, max_bytes, told)

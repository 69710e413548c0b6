"""A gate's result as one HTML page: the style, the policy and the rules of the report."""

from __future__ import annotations

from pathlib import Path

from inferdoc.gate.result import GateResult
from inferdoc.reports.gate_outline import gate_outline
from inferdoc.reports.html import page


def render_gate_html(result: GateResult, templates: Path | None = None) -> str:
    """The whole page. `templates` is a user's folder whose files replace ours.

    Raises:
        InputError: a template of the user is wrong.
    """
    return page("gate.html.j2", templates, gate=result, told=gate_outline(result))

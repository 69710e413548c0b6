"""The HTML report: one file, no script, nothing loaded from anywhere, readable with its style sheet blocked."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from inferdoc.evidence import Diagnosis, Evidence
from inferdoc.reports import charts, formatting
from inferdoc.reports.gate_chart import gate_forest
from inferdoc.reports.outline import device_name, lead_metric, outline
from inferdoc.reports.tables import repeats_table, runs_table, series_table, unknown
from inferdoc.reports.templating import environment, render
from inferdoc.reports.text import LIMIT, visible

MAX_BYTES = 1_000_000
_LIMITS = (LIMIT, 120, 40)
"""Longest free text: the shorter ones are for a page that would otherwise be too large to open with comfort."""


def render_html(evidence: Evidence, diagnosis: Diagnosis, *, templates: Path | None = None) -> str:
    """The whole page. `templates` is a user's folder whose files replace ours.

    Raises:
        InputError: a template of the user is wrong.
    """
    return page(
        "report.html.j2",
        templates,
        evidence=evidence,
        diagnosis=diagnosis,
        outline=outline(evidence, diagnosis),
        device=device_name(evidence.environment),
    )


def page(name: str, templates: Path | None, **context: Any) -> str:
    """The page of the template `name`, with our style sheet inside and at most `MAX_BYTES` where shorter texts help."""
    text = ""
    for limit in _LIMITS:
        text = _render(name, templates, limit, context)
        if len(text.encode()) <= MAX_BYTES:
            break
    return text


def _render(name: str, templates: Path | None, limit: int, context: dict[str, Any]) -> str:
    def printed(value: Any) -> Any:
        """What a template prints: text made visible, and a value that is not there never as a Python word."""
        if value is None:
            return formatting.UNKNOWN
        return visible(value, limit) if isinstance(value, str) and not hasattr(value, "__html__") else value

    made = environment(templates, escape=printed, autoescape=True)
    made.globals |= {
        "forest_chart": _drawn(charts.forest),
        "runs_chart": _drawn(charts.runs),
        "series_chart": _drawn(charts.series),
        "gate_chart": _drawn(gate_forest),
        "runs_table": runs_table,
        "series_table": series_table,
        "repeats_table": repeats_table,
        "unknown": unknown,
        "lead_metric": lead_metric,
    }
    css = render(made, "report.css").replace("\r\n", "\n")
    css_hash = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return render(made, name, **context, css=Markup(css), css_hash=css_hash)


def _drawn(draw: Callable[..., str]) -> Callable[..., Markup]:
    """A chart function for templates. A chart that cannot be drawn is left out: its table holds the same numbers."""

    def chart(*arguments: object) -> Markup:
        try:
            return Markup(draw(*arguments))
        except (ImportError, ValueError, RuntimeError):
            return Markup("")

    return chart

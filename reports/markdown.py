"""The Markdown report, for a pull request or a step summary: the order of the HTML, no picture, at most 60 kB."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from inferdoc.evidence import Diagnosis, Evidence
from inferdoc.reports import formatting
from inferdoc.reports.outline import device_name, outline
from inferdoc.reports.tables import series_table, unknown
from inferdoc.reports.templating import environment, render
from inferdoc.reports.text import Markdown, markdown_code, markdown_safe

MAX_BYTES = 60_000
_CUT = "\n_{count} more sections are in report.html: this file is kept below 60 kB._\n"


def render_markdown(evidence: Evidence, diagnosis: Diagnosis, *, templates: Path | None = None) -> str:
    """The whole document. `templates` is a user's folder whose files replace ours.

    Raises:
        InputError: a template of the user is wrong.
    """
    made = environment(templates, escape=_printed, autoescape=False)
    made.filters |= {"code": markdown_code}
    made.globals |= {"own": Markdown, "series_table": series_table, "unknown": unknown}
    told = outline(evidence, diagnosis)
    device = device_name(evidence.environment)
    text = render(made, "report.md.j2", evidence=evidence, diagnosis=diagnosis, outline=told, device=device)
    return _within(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def _printed(value: Any) -> Any:
    """What a template prints: text that means only itself, unless it is Markdown of ours."""
    if value is None:
        return formatting.UNKNOWN
    return markdown_safe(value) if isinstance(value, str) and not isinstance(value, Markdown) else value


def _within(text: str) -> str:
    """`text` cut by whole sections from its end, until it fits."""
    sections = re.split(r"(?m)^(?=## )", text)
    kept, size = [], len(_CUT) + 8
    for section in sections:
        size += len(section.encode())
        if size > MAX_BYTES:
            break
        kept.append(section)
    left = len(sections) - len(kept)
    return "".join(kept) + (_CUT.format(count=left) if left else "")

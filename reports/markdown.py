"""The Markdown report, for a pull request or a step summary: the order of the HTML, no picture, at most 60 kB."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from inferdoc.evidence import Diagnosis, Evidence
from inferdoc.reports import formatting
from inferdoc.reports.outline import device_name, outline
from inferdoc.reports.tables import series_table, unknown
from inferdoc.reports.templating import environment, render
from inferdoc.reports.text import Markdown, markdown_code, markdown_safe

MAX_BYTES = 60_000
_CUT = "{count} more sections are in report.html: this file is kept below 60 kB."


def render_markdown(evidence: Evidence, diagnosis: Diagnosis, *, templates: Path | None = None) -> str:
    """The whole document. `templates` is a user's folder whose files replace ours.

    Raises:
        InputError: a template of the user is wrong.
    """
    made = markdown_environment(templates)
    made.globals |= {"series_table": series_table, "unknown": unknown}
    told = outline(evidence, diagnosis)
    device = device_name(evidence.environment)
    text = render(made, "report.md.j2", evidence=evidence, diagnosis=diagnosis, outline=told, device=device)
    return within(text, MAX_BYTES, lambda cut: _CUT.format(count=len(cut)))


def markdown_environment(templates: Path | None) -> ImmutableSandboxedEnvironment:
    """Jinja2 for Markdown: every value means only itself, unless it is marked as ``own`` or printed as ``code``."""
    made = environment(templates, escape=_printed, autoescape=False)
    made.filters |= {"code": markdown_code}
    made.globals |= {"own": Markdown}
    return made


def _printed(value: Any) -> Any:
    """What a template prints: text that means only itself, unless it is Markdown of ours."""
    if value is None:
        return formatting.UNKNOWN
    return markdown_safe(value) if isinstance(value, str) and not isinstance(value, Markdown) else value


def within(text: str, max_bytes: int, told: Callable[[list[str]], str]) -> str:
    """`text`, tidied, and cut by whole sections from its end until it fits.

    told: the sentence that says what was cut, from the headings of the sections left out.
    """
    text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    sections = re.split(r"(?m)^(?=## )", text)
    headings = [section.partition("\n")[0].removeprefix("## ") for section in sections]
    kept, size = len(sections), len(text.encode())
    while kept and size > max_bytes:
        kept -= 1
        size = len(_cut(sections[:kept], told(headings[kept:])).encode())
    return text if kept == len(sections) else _cut(sections[:kept], told(headings[kept:]))


def _cut(sections: list[str], sentence: str) -> str:
    return "".join(sections) + f"\n_{sentence}_\n"

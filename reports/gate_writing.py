"""Writing a gate's result: five files, each whole or not at all, and what a CI service reads beside them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from inferdoc.evidence import Artifact
from inferdoc.gate.result import GateResult
from inferdoc.reports.gate_annotations import github_annotations
from inferdoc.reports.gate_html import render_gate_html
from inferdoc.reports.gate_junit import render_junit
from inferdoc.reports.gate_markdown import MAX_BYTES, render_gate_markdown
from inferdoc.reports.gate_openmetrics import render_openmetrics
from inferdoc.reports.text import encodable, terminal_safe
from inferdoc.reports.writing import prepare_output, to_json, write

SUMMARY_BYTES = 1024 * 1000
"""GitHub's limit for the summary of a step is 1,024 kB; a larger one is dropped as a whole."""


def write_gate(result: GateResult, out: Path, templates: Path | None = None) -> list[Artifact]:
    """Write gate.json, gate.md, gate.html, junit.xml and gate.prom into `out`.

    The JSON goes first, so that the result is kept even when a user's template is wrong.

    Raises:
        InputError: `out` cannot be written to, or a template of `templates` is wrong.
    """
    prepare_output(out)
    return [
        write(out / "gate.json", to_json(result)),
        write(out / "junit.xml", render_junit(result)),
        write(out / "gate.prom", render_openmetrics(result)),
        write(out / "gate.md", render_gate_markdown(result, templates=templates)),
        write(out / "gate.html", render_gate_html(result, templates=templates)),
    ]


def announce(result: GateResult, environ: Mapping[str, str]) -> None:
    """In a GitHub workflow: annotations on standard output, and the Markdown in the summary of the step.

    A summary that cannot be written is one warning on standard error: the gate's answer does not depend on it.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    encoding = sys.stdout.encoding or "utf-8"
    for line in github_annotations(result):
        print(encodable(line, encoding))
    summary = environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        _append(result, Path(summary))
    except OSError as error:
        message = f"warning: {summary}: the summary of the step cannot be written ({error.strerror or error})"
        print(encodable(terminal_safe(message), sys.stderr.encoding or "utf-8"), file=sys.stderr)


def _append(result: GateResult, path: Path) -> None:
    there = path.stat().st_size if path.exists() else 0
    text = "\n" + render_gate_markdown(result, min(MAX_BYTES, SUMMARY_BYTES - there - 1))
    if there + len(text.encode()) > SUMMARY_BYTES:
        raise OSError(f"{there:,} of its {SUMMARY_BYTES:,} bytes are taken")
    with path.open("a", encoding="utf-8") as file:
        file.write(text)

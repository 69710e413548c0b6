"""How a diagnosis is told: terminal, HTML, Markdown, JSON. A report formats numbers and computes none."""

from inferdoc.reports.html import render_html
from inferdoc.reports.markdown import render_markdown
from inferdoc.reports.terminal import make_console, print_diagnosis
from inferdoc.reports.writing import prepare_output, write_all

__all__ = ["make_console", "prepare_output", "print_diagnosis", "render_html", "render_markdown", "write_all"]

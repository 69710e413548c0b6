"""Whatever stands in a trace, a model's name or a user's rule stays text: in every field, through every renderer."""

from __future__ import annotations

import io
import re
from enum import Enum
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from inferdoc.evidence import Diagnosis, Evidence
from inferdoc.reports.html import MAX_BYTES as MAX_HTML
from inferdoc.reports.html import render_html
from inferdoc.reports.markdown import MAX_BYTES as MAX_MARKDOWN
from inferdoc.reports.markdown import render_markdown
from inferdoc.reports.terminal import make_console, print_diagnosis
from inferdoc.reports.writing import to_json

CORPUS = {
    "script": "</script><img src=x onerror=alert(1)>",
    "style": "</style><p style=color:red onclick=x>",
    "attribute": '" onmouseover="alert(1)" x=\'y',
    "title": "</title></svg><script>alert(1)</script>",
    "rich markup": "[bold red][/bold][/]",
    "escape sequence": "\x1b[31mred\x1b]8;;https://evil.example\x07link\x9b2J",
    "workflow command": "::error::boom",
    "old workflow command": "##[error]boom",
    "bidi": "invoice\u202efdp.exe\u2066",
    "nul": "a\x00b",
    "lone surrogate": "a\ud800b",
    "cdata": "]]>",
    "table": "a|b\n|c|",
    "backticks": "`a` ```\n```",
    "mention": "@name and #1 and GH-2",
    "link": "[x](javascript:alert(1)) https://evil.example",
    "heading": "\n# big\n- list\n1. one",
    "jinja": "{{ 7*7 }}{% raw %}",
    "many quotes": '"' * 499,
    "many escapes": "\U000e0041" * 499,
    "long line": "x" * 1_000_000,
}
PAGE = """a article body caption code dd details div dl dt figcaption figure footer h1 h2 h3 h4 head header html li main
meta ol p pre section span strong style summary sup table tbody td th thead title tr ul"""
CHART = "clippath defs desc g line path rect svg text"
ALLOWED = frozenset(PAGE.split() + CHART.split())


def poisoned(value: Any, text: str, *, free: bool = True) -> Any:
    """`value` with `text` in every free-text field and key; enumerations and literals keep what they are."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return value.model_copy(
            update={
                name: poisoned(getattr(value, name), text, free="Literal" not in repr(field.annotation))
                for name, field in fields.items()
                if name != "schema_"
            }
        )
    if isinstance(value, str) and not isinstance(value, Enum):
        return text if free else value
    if isinstance(value, list):
        return [poisoned(item, text, free=free) for item in value]
    if isinstance(value, dict):
        return {f"{text}{i}": poisoned(item, text) for i, item in enumerate(value.values())}
    return value


@pytest.fixture(params=CORPUS.values(), ids=CORPUS.keys())
def hostile(request: pytest.FixtureRequest, complete: tuple[Evidence, Diagnosis]) -> tuple[Evidence, Diagnosis, str]:
    evidence, diagnosis = complete
    # Two comparisons and one series meet every line of the templates; more would only take longer.
    kept = ("prefix_caching.open", "chunked_prefill.interference")
    evidence.comparisons = {id: evidence.comparisons[id] for id in kept}
    evidence.series = evidence.series[:1]
    return poisoned(evidence, request.param), poisoned(diagnosis, request.param), request.param


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def assert_nothing_hidden(text: str) -> None:
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text) is None


def test_page_stays_a_page(hostile: tuple[Evidence, Diagnosis, str]) -> None:
    evidence, diagnosis, _ = hostile
    page = render_html(evidence, diagnosis)
    assert len(page.encode()) <= MAX_HTML
    assert_nothing_hidden(page)
    assert "<script" not in page
    for tag, attributes in Elements(page).found:
        assert tag in ALLOWED, tag
        assert not {name for name in attributes if name.startswith("on") or name in {"style", "src", "formaction"}}
        href = attributes.get("href") or "#"
        assert href.startswith("#") or href in {"report.md", "evidence.json", "diagnosis.json"}


def test_markdown_stays_one_document(hostile: tuple[Evidence, Diagnosis, str]) -> None:
    evidence, diagnosis, text = hostile
    document = render_markdown(evidence, diagnosis)
    assert len(document.encode()) <= MAX_MARKDOWN
    assert_nothing_hidden(document)
    prose = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", document).replace("&#8203;", "\u200b")
    assert "<" not in prose
    assert not re.search(r"@\w|(?<!^)(?<![#\n])#\w|://|::\w|\bGH-\d", prose)
    assert not re.search(r"(?m)^\s*(::|##\[)", document)
    headings = re.findall(r"(?m)^# ", document)
    assert len(headings) == 1
    if text == CORPUS["jinja"]:
        assert document.startswith("# {{ 7\\*7 }}{% raw %}")


def test_terminal_stays_text(hostile: tuple[Evidence, Diagnosis, str]) -> None:
    evidence, diagnosis, text = hostile
    stream = io.StringIO()
    print_diagnosis(evidence, diagnosis, Path("out"), make_console(stream, {"COLUMNS": "80"}))
    printed = stream.getvalue()
    assert_nothing_hidden(printed.replace("\n", ""))
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert not re.search(r"(?m)^\s*::|##\[", printed)
    assert len(printed) < 60_000
    if text.startswith("[bold"):
        assert "[bold red][/bold][/]" in printed


def test_json_is_read_back(hostile: tuple[Evidence, Diagnosis, str]) -> None:
    evidence, diagnosis, text = hostile
    if len(text) > 1000:
        evidence, diagnosis = (poisoned(case, "y" * 1000) for case in (evidence, diagnosis))
    assert Evidence.model_validate_json(to_json(evidence)).run.seed == 0
    assert Diagnosis.model_validate_json(to_json(diagnosis)).run.seed == 0

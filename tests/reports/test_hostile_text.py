"""Whatever stands in a trace, a model's name or a user's rule stays text: in every field, through every renderer."""

from __future__ import annotations

import io
import re
from enum import Enum
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pydantic import BaseModel

from inferdoc.evidence import Diagnosis, Evidence
from inferdoc.gate.result import GateResult
from inferdoc.reports.gate_annotations import github_annotations
from inferdoc.reports.gate_html import render_gate_html
from inferdoc.reports.gate_junit import render_junit
from inferdoc.reports.gate_markdown import MAX_BYTES as MAX_GATE_MARKDOWN
from inferdoc.reports.gate_markdown import render_gate_markdown
from inferdoc.reports.gate_openmetrics import render_openmetrics
from inferdoc.reports.gate_terminal import print_gate
from inferdoc.reports.html import MAX_BYTES as MAX_HTML
from inferdoc.reports.html import render_html
from inferdoc.reports.markdown import MAX_BYTES as MAX_MARKDOWN
from inferdoc.reports.markdown import render_markdown
from inferdoc.reports.terminal import make_console, print_diagnosis
from inferdoc.reports.text import without_surrogates
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


@pytest.fixture(params=CORPUS.values(), ids=CORPUS.keys())
def hostile_gate(request: pytest.FixtureRequest, gated: GateResult) -> tuple[GateResult, str]:
    return poisoned(gated, request.param), request.param


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def assert_nothing_hidden(text: str) -> None:
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text) is None


def assert_a_page(page: str, files: set[str]) -> None:
    assert len(page.encode()) <= MAX_HTML
    assert_nothing_hidden(page)
    assert "##[" not in page
    assert "<script" not in page
    for tag, attributes in Elements(page).found:
        assert tag in ALLOWED, tag
        assert not {name for name in attributes if name.startswith("on") or name in {"style", "src", "formaction"}}
        href = attributes.get("href") or "#"
        assert href.startswith("#") or href in files


def test_page_stays_a_page(hostile: tuple[Evidence, Diagnosis, str], gated: GateResult) -> None:
    evidence, diagnosis, text = hostile
    diagnosis.comparison = poisoned(gated, text).model_dump(by_alias=True)
    assert_a_page(render_html(evidence, diagnosis), {"report.md", "evidence.json", "diagnosis.json"})


def test_page_of_a_gate_stays_a_page(hostile_gate: tuple[GateResult, str]) -> None:
    assert_a_page(render_gate_html(hostile_gate[0]), {"gate.md", "gate.json", "junit.xml", "gate.prom"})


def assert_one_document(document: str, text: str) -> None:
    assert_nothing_hidden(document)
    prose = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", document).replace("&#8203;", "\u200b")
    assert "<" not in prose
    assert not re.search(r"@\w|(?<!^)(?<![#\n])#\w|://|::\w|\bGH-\d", prose)
    assert not re.search(r"(?m)^\s*::|##\[", document)
    headings = re.findall(r"(?m)^# ", document)
    assert len(headings) == 1
    if text == CORPUS["jinja"]:
        assert "{{ 7\\*7 }}{% raw %}" in document.splitlines()[0]


def test_markdown_stays_one_document(hostile: tuple[Evidence, Diagnosis, str], gated: GateResult) -> None:
    evidence, diagnosis, text = hostile
    diagnosis.comparison = poisoned(gated, text).model_dump(by_alias=True)
    document = render_markdown(evidence, diagnosis)
    assert len(document.encode()) <= MAX_MARKDOWN
    assert_one_document(document, text)


def test_markdown_of_a_gate_stays_one_document(hostile_gate: tuple[GateResult, str]) -> None:
    document = render_gate_markdown(hostile_gate[0])
    assert len(document.encode()) <= MAX_GATE_MARKDOWN
    assert_one_document(document, hostile_gate[1])


def assert_text(printed: str, text: str) -> None:
    assert_nothing_hidden(printed.replace("\n", ""))
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert not re.search(r"(?m)^\s*::|##\[", printed)
    assert len(printed) < 60_000
    if text.startswith("[bold"):
        assert "[bold red][/bold][/]" in printed


def test_terminal_stays_text(hostile: tuple[Evidence, Diagnosis, str], gated: GateResult) -> None:
    evidence, diagnosis, text = hostile
    diagnosis.comparison = poisoned(gated, text).model_dump(by_alias=True)
    stream = io.StringIO()
    print_diagnosis(evidence, diagnosis, Path("out"), make_console(stream, {"COLUMNS": "80"}))
    assert_text(stream.getvalue(), text)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_terminal_of_a_gate_stays_text(hostile_gate: tuple[GateResult, str], encoding: str) -> None:
    result, text = hostile_gate
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    print_gate(result, [Path(text)], make_console(stream, {"COLUMNS": "80"}))
    stream.flush()
    assert_text(buffer.getvalue().decode(encoding), text)


def test_junit_stays_xml(hostile_gate: tuple[GateResult, str]) -> None:
    document = render_junit(hostile_gate[0])
    assert_nothing_hidden(document.replace("\n", ""))
    assert not re.search(r"(?m)^\s*::|##\[", document)
    root = ElementTree.fromstring(document.encode())
    tags = {"testsuites", "testsuite", "testcase", "properties", "property", "failure", "skipped"}
    assert {element.tag for element in root.iter()} == tags
    assert len(root.findall("testsuite/testcase")) == 12


def test_annotations_stay_one_line_each(hostile_gate: tuple[GateResult, str]) -> None:
    lines = github_annotations(hostile_gate[0])
    assert [line.split(" ")[0] for line in lines] == ["::error"] * 4 + ["::warning", "::notice"]
    for line in lines:
        assert_nothing_hidden(line)
        assert line.isprintable()
        assert line.count("::") == 2
        assert "##[" not in line


def test_openmetrics_stays_parseable(hostile_gate: tuple[GateResult, str]) -> None:
    text = render_openmetrics(hostile_gate[0])
    assert_nothing_hidden(text.replace("\n", ""))
    assert "##[" not in text
    families = list(text_string_to_metric_families(text))
    assert all(family.name.startswith("inferdoc_gate_") for family in families)
    assert text.count("# EOF") == 1


def test_json_is_read_back(hostile: tuple[Evidence, Diagnosis, str]) -> None:
    evidence, diagnosis, text = hostile
    if len(text) > 1000:
        evidence, diagnosis = (poisoned(case, "y" * 1000) for case in (evidence, diagnosis))
    assert Evidence.model_validate_json(to_json(evidence)).run.seed == 0
    assert Diagnosis.model_validate_json(to_json(diagnosis)).run.seed == 0


def test_json_of_a_gate_is_read_back(hostile_gate: tuple[GateResult, str]) -> None:
    result, text = hostile_gate
    if len(text) > 1000:
        result = poisoned(result, "y" * 1000)
    written = to_json(result)
    assert "##[" not in written
    again = GateResult.model_validate_json(written)
    assert again.exit_code == 1
    assert again.subject == without_surrogates(result.subject)

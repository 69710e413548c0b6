from __future__ import annotations

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from inferdoc.evidence import Diagnosis, Evidence
from inferdoc.gate.result import GateResult
from inferdoc.reports import html
from inferdoc.reports.gate_chart import gate_forest
from inferdoc.reports.gate_html import render_gate_html
from inferdoc.reports.html import render_html
from inferdoc.reports.markdown import render_markdown
from inferdoc.reports.outline import outline

Case = tuple[Evidence, Diagnosis]
VOID = {"meta"}


class Page(HTMLParser):
    """The elements of a page, checked for balance while they are read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def compared(case: Case, result: GateResult) -> Case:
    case[1].comparison = result.model_dump(by_alias=True)
    return case


@pytest.fixture(params=["gate", "unlike", "report"])
def any_page(request: pytest.FixtureRequest) -> str:
    if request.param == "report":
        case: Case = request.getfixturevalue("bare")
        return render_html(*compared(case, request.getfixturevalue("gated")))
    return render_gate_html(request.getfixturevalue("gated" if request.param == "gate" else "unlike"))


def test_comparability_comes_first_then_the_plot_and_the_table(gated: GateResult) -> None:
    text = render_gate_html(gated)
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", text) == [
        "Comparability",
        "Metrics",
        "Changed answers",
        "How it was measured and judged",
    ]
    metrics = text[text.index('id="gate-metrics"') :]
    assert metrics.index("<svg") < metrics.index("<table>")


def test_title_and_heading_carry_the_verdict(gated: GateResult) -> None:
    text = render_gate_html(gated)
    assert f"<title>Regressed: {gated.headline} | inferdoc gate: {gated.subject}</title>" in text
    assert '<span class="badge bad"><span aria-hidden="true">✕</span> regressed</span> exit code 1' in text


def test_page_can_be_read_aloud(any_page: str) -> None:
    page = Page(any_page)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(following - level <= 1 for level, following in itertools.pairwise(levels))
    assert all(header.get("scope") in {"col", "row"} for header in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert page.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert page.all("a")[0]["href"] == "#verdict"
    assert {"verdict", "headline"} <= set(ids)
    named = {name for attributes in page.all("svg") for name in (attributes["aria-labelledby"] or "").split()}
    assert named <= set(ids)


def test_nothing_is_loaded_and_nothing_can_run(any_page: str) -> None:
    assert "<script" not in any_page
    assert " style=" not in any_page
    assert re.search(r" on\w+=", any_page) is None
    assert "@import" not in any_page
    page = Page(any_page)
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "img", "iframe", "object", "form", "base"})
    css = re.findall(r"<style>(.*?)</style>", any_page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(css[0].encode()).digest()).decode()
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert (
        policy == f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_a_row_has_its_numbers_and_its_verdict_in_words(gated: GateResult) -> None:
    text = render_gate_html(gated)
    row = next(row for row in re.findall(r"<tr>.*?</tr>", text, re.DOTALL) if "<code>output_tok_s</code>" in row)
    cells = [re.sub(r"<[^>]+>", " ", cell).split() for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
    assert [" ".join(cell) for cell in cells] == [
        "output_tok_s output tokens per second",
        "✕ regressed confirmed on 5 fresh pairs (-9.1%)",
        "3,410 tok/s",
        "3,076 tok/s",
        "-9.8% [-11.2%..-8.1%]",
        "5% floor 20 tok/s line 14",
        "0.031",
        "8",
    ]


def test_every_repeat_is_there(gated: GateResult) -> None:
    text = render_gate_html(gated)
    repeats = text[text.index("<summary>Every repeat</summary>") :]
    assert "output_tok_s (tok/s)" in repeats
    assert '<td>candidate</td><td class="num">3,045</td>' in repeats


def test_no_metric_is_said(unlike: GateResult) -> None:
    text = render_gate_html(unlike)
    assert "No metric was compared." in text
    assert "<svg" not in text
    assert '<span class="effect worse"><span aria-hidden="true">✕</span>&nbsp;differs, must match</span>' in text


def test_size_is_within_the_target_and_the_cap(gated: GateResult) -> None:
    assert len(render_gate_html(gated).encode()) <= 100_000
    row = gated.results[1].model_copy(update={"label": "é" * 480, "reason": "é" * 480})
    gated.results = [row.model_copy(update={"metric": f"m{i}"}) for i in range(3000)]
    text = render_gate_html(gated)
    assert len(text.encode()) <= html.MAX_BYTES
    assert "2,900 more metrics in gate.json." in text


def test_the_report_holds_the_section_only_when_there_is_a_comparison(complete: Case, gated: GateResult) -> None:
    assert "Comparison with a baseline" not in render_html(*complete)
    assert "Comparison with a baseline" not in render_markdown(*complete)
    case = compared(complete, gated)
    text = render_html(*case)
    headings = re.findall(r"<h([23])[^>]*>([^<]+)</h", text)
    first = headings.index(("2", "Comparison with a baseline"))
    assert headings[first + 1 : first + 5] == [
        ("3", "Comparability"),
        ("3", "Metrics"),
        ("3", "Changed answers"),
        ("3", "How it was measured and judged"),
    ]
    assert headings[first + 5] == ("2", "Appendix")
    document = render_markdown(*case)
    assert "## Comparison with a baseline\n\n✕ **regressed**: Output tokens per second fell by 9.8%" in document
    assert "| ✕ regressed | output tokens per second | 3,410 tok/s | 3,076 tok/s |" in document


def test_a_comparison_survives_the_diagnosis_file(complete: Case, gated: GateResult) -> None:
    evidence, diagnosis = compared(complete, gated)
    read = Diagnosis.model_validate_json(diagnosis.model_dump_json(by_alias=True))
    told = outline(evidence, read).gate
    assert told is not None
    assert told.result == gated


def test_a_users_section_replaces_ours_in_both_pages(complete: Case, gated: GateResult, tmp_path: Path) -> None:
    (tmp_path / "gate_section.html.j2").write_text("<p>mine: {{ told.result.exit_code }}</p>")
    for text in (render_gate_html(gated, tmp_path), render_html(*compared(complete, gated), templates=tmp_path)):
        assert "<p>mine: 1</p>" in text
        assert "gate-metrics" not in text


def drawn(monkeypatch: pytest.MonkeyPatch, result: GateResult) -> dict[str, dict[str, Any]]:
    """The rows that the forest plot was drawn of, by metric."""
    charts: list[Any] = []
    monkeypatch.setattr("inferdoc.reports.gate_chart.draw", lambda chart, *_: charts.append(chart) or "")
    gate_forest(result.results)
    return {row["metric"]: row for row in charts[0].to_dict()["data"]["values"]}


def test_worse_is_to_the_right_whatever_the_direction(gated: GateResult, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = drawn(monkeypatch, gated)
    assert set(rows) == {"e2e_p50", "output_tok_s", "ttft_p95", "itl_p99", "tpot_p50", "hit_rate"}
    fallen, risen = rows["output_tok_s"], rows["tpot_p50"]
    assert (fallen["low"], fallen["change"], fallen["high"]) == pytest.approx((0.081, 0.098, 0.112))
    assert (risen["low"], risen["change"], risen["high"]) == pytest.approx((0.101, 0.119, 0.14))
    # 5% worse is 1.05 times as long, or 1.05 times as small.
    assert (fallen["limit"], risen["limit"]) == pytest.approx((0.05 / 1.05, 0.05))
    assert [rows[name]["state"] for name in ("output_tok_s", "itl_p99", "ttft_p95", "e2e_p50")] == [
        "worse",
        "better",
        "not decided",
        "within the limit",
    ]


def test_without_a_ratio_there_is_no_plot(gated: GateResult) -> None:
    assert gate_forest([row for row in gated.results if row.ratio is None]) == ""

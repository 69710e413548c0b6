from __future__ import annotations

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from inferdoc.errors import InputError
from inferdoc.evidence import Diagnosis, Evidence
from inferdoc.reports import charts, html
from inferdoc.reports.html import render_html
from inferdoc.reports.templating import OURS

Case = tuple[Evidence, Diagnosis]
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """The elements of a page, checked for balance while they are read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
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
        assert self._open, tag
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def test_order_of_the_sections(complete_page: str) -> None:
    headings = re.findall(r"<h2[^>]*>([^<]+)</h2>", complete_page)
    assert headings == [
        "Key numbers",
        "Do next",
        "The six questions",
        "Why",
        "Where time and memory go",
        "Everything else that was asked",
        "Environment and method",
        "Common claims, beside what was measured here",
        "Appendix",
    ]


def test_title_carries_the_verdict(complete_page: str) -> None:
    title = "Repeated prompts are the limit: prefix caching gives 1.83x the throughput | inferdoc: embedded"
    assert f"<title>{title}</title>" in complete_page


def test_headings_go_down_one_level_at_a_time(any_page: str) -> None:
    levels = [int(tag[1]) for tag, _ in Page(any_page).elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(following - level <= 1 for level, following in itertools.pairwise(levels))


def test_tables_can_be_read_aloud(any_page: str) -> None:
    page = Page(any_page)
    assert all(header.get("scope") in {"col", "row"} for header in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))


def test_page_has_landmarks_a_language_and_a_skip_link(any_page: str) -> None:
    page = Page(any_page)
    assert page.all("html")[0]["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("main", "footer")] == [1, 1]
    skip = page.all("a")[0]["href"]
    assert skip is not None
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert skip.removeprefix("#") in ids
    assert len(ids) == len(set(ids))
    inner = {link["href"] for link in page.all("a") if (link["href"] or "").startswith("#")}
    assert {link[1:] for link in inner if link} <= set(ids)


def test_nothing_is_loaded_and_nothing_can_run(any_page: str) -> None:
    text = any_page
    assert "<script" not in text
    assert " style=" not in text
    assert re.search(r" on\w+=", text) is None
    assert "@import" not in text
    assert "url(http" not in text
    page = Page(text)
    assert {tag for tag, _ in page.elements}.isdisjoint(
        {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    )
    assert not [attributes for _, attributes in page.elements if "src" in attributes or "srcset" in attributes]


def test_policy_allows_exactly_the_style_sheet_of_the_page(any_page: str) -> None:
    text = any_page
    css = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(css) == 1
    digest = base64.b64encode(hashlib.sha256(css[0].encode()).digest()).decode()
    policy = next(meta["content"] for meta in Page(text).all("meta") if "http-equiv" in meta)
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_links_are_https_from_the_rules_or_files_beside_the_page(complete: Case) -> None:
    evidence, diagnosis = complete
    diagnosis.recommendations[0].refs += [
        "http://plain.example",
        "javascript:alert(1)",
        'https://a.example/" onclick=x',
    ]
    outside = {link["href"] for link in Page(render_html(evidence, diagnosis)).all("a")} - {None}
    outside = {href for href in outside if href and not href.startswith("#")}
    assert outside == {
        "https://docs.vllm.ai/en/latest/features/automatic_prefix_caching.html",
        "https://www.usenix.org/conference/osdi22/presentation/yu",
        "report.md",
        "evidence.json",
        "diagnosis.json",
    }


def test_size_is_within_the_target(complete_page: str) -> None:
    assert len(complete_page.encode()) <= 300_000


def test_unknown_prints_its_reason_and_no_python_word(any_page: str) -> None:
    page = Page(any_page)
    text = " ".join(page.text)
    assert re.search(r"\bNone\b(?!\.)", text) is None
    assert "nan" not in re.findall(r"\b\w+\b", text)


def test_reasons_stand_where_the_numbers_would(complete_page: str) -> None:
    text = complete_page
    assert "not known: too few requests (n=64, need 368)" in text
    assert "not known: p99 needs 368 requests, there are 320" in text
    assert "not measured: not yet supported" in text


def test_metric_without_numbers_has_one_cell_with_its_reason(complete: Case) -> None:
    evidence, diagnosis = complete
    paired = evidence.comparisons["prefix_caching.open"].metrics["ttft_p95"]
    for name in ("off_estimate", "on_estimate", "gain"):
        unmeasured = {"value": None, "interval": None, "reason": "16 requests, p95 needs 72"}
        setattr(paired, name, getattr(paired, name).model_copy(update=unmeasured))
    evidence.run.slo = []
    diagnosis.findings = diagnosis.findings[:1]
    diagnosis.recommendations = []
    text = render_html(evidence, diagnosis)
    assert '<td colspan="5" class="reason">not known: 16 requests, p95 needs 72</td>' in text
    # Once in the comparison, once in the data of the forest plot.
    assert text.count("16 requests, p95 needs 72") == 2


def test_limits_are_shown_only_with_an_objective(complete: Case, complete_page: str) -> None:
    headers = ('<th scope="col">Limit</th>', '<th scope="col">Status</th><th scope="col">Basis</th>')
    assert all(header in complete_page for header in headers)
    complete[0].run.slo = []
    text = render_html(*complete)
    assert not [header for header in headers if header in text]


def test_cards_show_costs_and_what_was_not_shown(complete: Case) -> None:
    evidence, diagnosis = complete
    first = diagnosis.recommendations[0]
    first.expected[1] = first.expected[1].model_copy(update={"estimate": 0.71, "low": 0.59, "high": 0.86})
    first.expected[2] = first.expected[2].model_copy(update={"estimate": 1.06, "low": 0.86, "high": 1.22})
    text = render_html(evidence, diagnosis)
    assert '0.71x [0.59..0.86]</td><td><span class="effect worse"><span aria-hidden="true">▼</span>' in text
    assert '1.06x [0.86..1.22]</td><td><span class="effect no-difference-shown">' in text
    assert "&nbsp;no difference shown</span>" in text


def test_size_of_the_slice_stands_near_the_verdict(complete_page: str, bare_page: str) -> None:
    verdict = complete_page[complete_page.index("<h1") : complete_page.index('id="numbers"')]
    assert "measured on 64 of 320 requests" in verdict
    assert "; measured on" not in bare_page


def test_too_few_pairs_are_told_beside_the_state(complete: Case, complete_page: str) -> None:
    assert "of 6 pairs" not in complete_page
    complete[0].comparisons["prefix_caching.open"].pairs = 3
    text = render_html(*complete)
    assert '<h4>Prefix caching, open loop <span class="mark">3 of 6 pairs</span></h4>' in text
    header = text[text.index('id="why-1"') :].split("</header>")[0]
    assert '<span class="mark">3 of 6 pairs</span>' in header


def test_series_without_points_says_so(complete: Case) -> None:
    evidence, diagnosis = complete
    line = evidence.series[0].lines[0].model_copy(update={"x": [], "y": [], "low": [], "high": []})
    evidence.series = [evidence.series[0].model_copy(update={"lines": lines}) for lines in ([line], [])]
    text = render_html(evidence, diagnosis)
    assert text.count(": no data.</p>") == 2


def test_appendix_says_what_an_interval_covers(complete_page: str, bare_page: str) -> None:
    assert "noise from run to run on the measured slice of 64 requests, not how other" in complete_page
    assert "noise from run to run on the measured slice, not how other" in bare_page
    assert "in ABBA order after one discarded warm-up run of each arm" in complete_page
    assert "A saturated TTFT includes queueing behind the whole slice" in complete_page
    assert "Claims on latency (TTFT, TPOT, end-to-end) and goodput are made only from this load" in complete_page


def test_what_was_dropped_says_what_it_would_need(complete_page: str) -> None:
    assert "needs 96 s, 31 s of the budget were left" in complete_page


def test_many_recommendations_leave_five_open(complete: Case) -> None:
    evidence, diagnosis = complete
    first = diagnosis.recommendations[0]
    diagnosis.recommendations = [first.model_copy(update={"rank": i + 1, "title": f"Step {i + 1}"}) for i in range(7)]
    text = render_html(evidence, diagnosis)
    assert "<summary>2 more</summary>" in text
    assert text.index("Step 5") < text.index("<summary>2 more</summary>") < text.index("Step 6")


def test_a_chart_that_cannot_be_drawn_leaves_its_table(complete: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise ValueError("no renderer")

    monkeypatch.setattr(charts, "series", broken)
    text = render_html(*complete)
    assert 'id="chart-series' not in text
    assert "batch size (requests)" in text


def test_contrast_is_sufficient_in_both_themes() -> None:
    css = (OURS / "report.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks)
    pairs = [
        *((ink, ground) for ink in ("ink", "muted", "link") for ground in ("page", "card", "sunken")),
        ("good", "good-bg"),
        ("bad", "bad-bg"),
        ("warn", "warn-bg"),
        ("calm", "calm-bg"),
        ("ink", "warn-bg"),
        ("ink", "bad-bg"),
    ]
    for theme in (light, {**light, **dark}):
        too_low = {pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in pairs}
        assert not {pair: ratio for pair, ratio in too_low.items() if ratio < 4.5}
        # Lines and points of charts are graphics: 3:1.
        marks = {
            mark: contrast(theme[mark], theme["card"])
            for mark in ("neutral", "better", "worse", "c1", "c2", "c3", "c4")
        }
        assert not {mark: ratio for mark, ratio in marks.items() if ratio < 3}


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


def test_page_prints_its_folded_parts_and_respects_reduced_motion() -> None:
    css = (OURS / "report.css").read_text()
    assert "details:not(.appendix)::details-content" in css
    assert "prefers-reduced-motion" in css
    assert ":focus-visible" in css


def test_users_templates_replace_ours(complete: Case, tmp_path: Path) -> None:
    (tmp_path / "report.css").write_text("body { color: teal }")
    text = render_html(*complete, templates=tmp_path)
    assert "<style>body { color: teal }</style>" in text
    digest = base64.b64encode(hashlib.sha256(b"body { color: teal }").digest()).decode()
    assert f"sha256-{digest}" in text


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("one\n{{ evidence.run.id }\n", 2),
        ("one\ntwo\n{{ nothing.there }}\n", 3),
        ("{{ evidence.run.id / 2 }}", 1),
        ("\n{{ ''.__class__.__mro__ }}", 2),
    ],
)
def test_wrong_template_of_the_user_is_named_with_its_line(
    complete: Case, tmp_path: Path, template: str, line: int
) -> None:
    file = tmp_path / "report.html.j2"
    file.write_text(template)
    with pytest.raises(InputError, match="mend the template") as raised:
        render_html(*complete, templates=tmp_path)
    assert str(raised.value).startswith(f"{file}:{line}: ")


def test_fault_in_our_own_template_is_not_blamed_on_the_user(complete: Case, tmp_path: Path) -> None:
    (tmp_path / "report.css").write_text("body {}")
    evidence, diagnosis = complete
    broken = diagnosis.model_copy(update={"verdict": None})
    with pytest.raises(Exception, match="headline") as raised:
        render_html(evidence, broken, templates=tmp_path)
    assert not isinstance(raised.value, InputError)


def test_folder_without_a_template_is_refused(complete: Case, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no template"):
        render_html(*complete, templates=tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        render_html(*complete, templates=tmp_path / "missing")


def test_hard_cap_is_stated() -> None:
    assert html.MAX_BYTES == 1_000_000

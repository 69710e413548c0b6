from __future__ import annotations

import re

from inferdoc.evidence import Diagnosis, Evidence
from inferdoc.reports.markdown import MAX_BYTES, render_markdown

Case = tuple[Evidence, Diagnosis]


def test_order_is_that_of_the_page(complete: Case) -> None:
    text = render_markdown(*complete)
    assert text.startswith("# Repeated prompts are the limit")
    assert re.findall(r"(?m)^## (.+)$", text) == [
        "Key numbers",
        "Do next",
        "The six questions",
        "Why",
        "Where time and memory go",
        "Not needed (1)",
        "Could not be measured (2)",
        "Environment and method",
        "Common claims, beside what was measured here",
        "Appendix",
    ]


def test_every_row_has_as_many_cells_as_its_header(any_case: Case) -> None:
    width = 0
    for line in render_markdown(*any_case).splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        assert cells == width, line


def test_gains_keep_their_intervals(complete: Case) -> None:
    assert "| output tokens/s | 412 tokens/s | 754 tokens/s | 1.83x \\[1.79..1.88\\] | 6 |" in render_markdown(
        *complete
    )


def test_unknown_prints_its_reason(complete: Case, bare: Case) -> None:
    assert "| TPOT p99 at load | not known: too few requests (n=64, need 368) |" in render_markdown(*complete)
    assert "No number was measured." in render_markdown(*bare)


def test_costs_slice_pairs_and_gaps_are_told(complete: Case) -> None:
    evidence, diagnosis = complete
    first = diagnosis.recommendations[0]
    first.expected[1] = first.expected[1].model_copy(update={"estimate": 0.71, "low": 0.59, "high": 0.86})
    first.expected[2] = first.expected[2].model_copy(update={"estimate": 1.06, "low": 0.86, "high": 1.22})
    evidence.comparisons["prefix_caching.open"].pairs = 3
    paired = evidence.comparisons["prefix_caching.open"].metrics["ttft_p95"]
    for name in ("off_estimate", "on_estimate", "gain"):
        unmeasured = {"value": None, "interval": None, "reason": "too few requests"}
        setattr(paired, name, getattr(paired, name).model_copy(update=unmeasured))
    evidence.series[0].lines = []
    text = render_markdown(evidence, diagnosis)
    assert "- ▲ output tokens/s 1.83x \\[1.79..1.88\\], better (measured here)" in text
    assert "- ▼ TTFT p50 0.71x \\[0.59..0.86\\], worse (measured here)" in text
    assert "- \\= TTFT p95 1.06x \\[0.86..1.22\\], no difference shown (measured here)" in text
    assert "measured on 64 of 320 requests" in text[: text.index("## Key numbers")]
    assert "16,384 KV tokens; 3 of 6 pairs" in text
    assert "(high confidence; engine-limited; 3 of 6 pairs)" in text
    assert "| TTFT p95 | not known: too few requests | | | |" in text
    assert "No data." in text


def test_limits_are_shown_only_with_an_objective(complete: Case) -> None:
    assert "| metric | value | n | limit | status | basis |" in render_markdown(*complete)
    complete[0].run.slo = []
    assert "| metric | value | n | basis |" in render_markdown(*complete)


def test_too_long_a_report_is_cut_by_whole_sections(complete: Case) -> None:
    evidence, diagnosis = complete
    finding = diagnosis.findings[0]
    diagnosis.findings = [finding.model_copy(update={"rule_id": f"r{i}", "text": "x" * 480}) for i in range(30)] * 3
    fields = dict.fromkeys((f"field {i}" for i in range(40)), evidence.environment.fields["processor"])
    evidence.environment.fields = {
        name: field.model_copy(update={"value": "y" * 480, "source": "z" * 480}) for name, field in fields.items()
    }
    text = render_markdown(evidence, diagnosis)
    assert len(text.encode()) <= MAX_BYTES
    assert "more sections are in report.html" in text
    assert "## Key numbers" in text
    assert "## Appendix" not in text

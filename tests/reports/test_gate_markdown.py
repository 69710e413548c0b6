from __future__ import annotations

import re

from inferdoc.gate.result import GateResult
from inferdoc.reports.gate_markdown import MAX_BYTES, render_gate_markdown


def headings(text: str) -> list[str]:
    return re.findall(r"(?m)^## (.+)$", text)


def test_worst_first(gated: GateResult) -> None:
    text = render_gate_markdown(gated)
    assert text.startswith("# ✕ Regressed: Output tokens per second fell by 9.8%")
    assert headings(text) == [
        "Failing (3)",
        "Changed answers (2)",
        "Worse, but only told (2)",
        "Not decided (2)",
        "Comparability",
        "Passed (2)",
        "Method",
    ]


def test_unlike_sides_say_why_first(unlike: GateResult) -> None:
    text = render_gate_markdown(unlike)
    assert headings(text) == ["Not comparable", "Comparability", "Method"]
    assert "- gpu.model differs: H100 NVL / H100 PCIe; record a baseline on this card" in text


def test_a_failing_row_holds_every_number(gated: GateResult) -> None:
    assert (
        "| ✕ regressed | `output_tok_s` | 3,410 tok/s | 3,076 tok/s | \\-9.8% \\[-11.2%..-8.1%\\] | 5% | 20 tok/s | "
        "0.031 | 8 | confirmed on 5 fresh pairs (-9.1%) (inferdoc-gate.toml:14) |"
    ) in render_gate_markdown(gated)


def test_how_to_run_it_again_and_both_pieces_of_evidence(gated: GateResult) -> None:
    text = render_gate_markdown(gated)
    assert "`inferdoc gate run --policy inferdoc-gate.toml`" in text
    assert "  - baseline: throughput, gain 1.83x \\[1.79..1.88\\] (at least 1.05x: ✓ holds)" in text
    assert "  - candidate: throughput, gain 1.01x \\[0.98..1.03\\] (at least 1.05x: ✕ does not hold)" in text


def test_every_row_has_as_many_cells_as_its_header(any_gate: GateResult) -> None:
    width = 0
    for line in render_gate_markdown(any_gate).splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        assert cells == width, line


def test_whole_sections_are_cut_from_the_end_and_named(gated: GateResult) -> None:
    whole = render_gate_markdown(gated)
    limit = len(whole.encode()) - 100
    text = render_gate_markdown(gated, limit)
    assert len(text.encode()) <= limit
    assert headings(text) == headings(whole)[:-1]
    assert text.endswith(f"_Left out to stay below {limit:,} bytes: Method. All of it is in gate.json._\n")
    least = render_gate_markdown(gated, 1200)
    assert headings(least) == []
    assert least.startswith("# ✕ Regressed")
    assert "Failing (3); Changed answers (2)" in least


def test_thousands_of_metrics_stay_below_the_limit_of_a_step_summary(gated: GateResult) -> None:
    failing = gated.results[1].model_copy(update={"label": "x" * 480, "reason": "y" * 480})
    gated.results = [failing.model_copy(update={"metric": f"m{i}"}) for i in range(5000)]
    text = render_gate_markdown(gated)
    assert len(text.encode()) <= MAX_BYTES
    assert "4,900 more metrics in gate.json." in text

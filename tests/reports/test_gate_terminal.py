from __future__ import annotations

import io
from pathlib import Path

import pytest

from inferdoc.gate.calibration import Calibration, Noise
from inferdoc.gate.result import DesignRecord, GateResult
from inferdoc.reports.gate_terminal import print_calibration, print_gate
from inferdoc.reports.terminal import make_console

FILES = [Path("out/gate.html"), Path("out/gate.json")]


def shown(result: GateResult, *, environ: dict[str, str] | None = None, encoding: str = "utf-8") -> str:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding, errors="strict")
    print_gate(result, FILES, make_console(stream, environ or {"COLUMNS": "80"}))
    stream.flush()
    return buffer.getvalue().decode(encoding)


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_one_screen_verdict_first(gated: GateResult) -> None:
    text = shown(gated)
    parts = ["inferdoc", "REGRESSED", "COMPARABILITY", "METRICS", "DIAGNOSIS", "DESIGN", "NEXT", "FILES"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert len(text.splitlines()) <= 50


def test_verdict_has_icon_word_and_exit_code(gated: GateResult, unlike: GateResult) -> None:
    assert "✕ REGRESSED (exit 1)  Output tokens per second fell" in squeezed(shown(gated)).replace(") ", ")  ", 1)
    assert "≠ NOT COMPARABLE (exit 4)" in shown(unlike)


def test_rows_are_worst_first(gated: GateResult) -> None:
    text = shown(gated)
    order = ["output_tok_s", "output_tokens_total", "error_rate", "tpot_p50", "preemptions", "ttft_p95", "hit_rate"]
    rows = text[text.index("METRICS") : text.index("DIAGNOSIS")]
    places = [rows.index(metric) for metric in order]
    assert places == sorted(places)
    assert "1 more metric in gate.json" in rows
    assert "e2e_p50" not in rows


def test_a_failing_row_has_every_number_and_its_line(gated: GateResult) -> None:
    assert (
        "✕ regressed output_tok_s -9.8% [-11.2%..-8.1%] 3,410 → 3,076 tok/s; limit 5%; floor 20 tok/s; "
        "p=0.0039 (adjusted 0.031); n=8; confirmed on 5 fresh pairs (-9.1%); inferdoc-gate.toml:14"
    ) in squeezed(shown(gated))


def test_failing_rows_are_never_cut(gated: GateResult) -> None:
    first = gated.results[1]
    gated.results = [first.model_copy(update={"metric": f"m{i}"}) for i in range(30)] + gated.results[:1]
    text = shown(gated)
    assert all(f" m{i} " in text for i in range(30))
    assert "e2e_p50" not in text[text.index("METRICS") : text.index("DESIGN")]
    assert "1 more metric in gate.json" in text


def test_failing_changes_are_never_cut(gated: GateResult) -> None:
    failing = gated.diagnosis_changes[1]
    gated.diagnosis_changes = [failing.model_copy(update={"text": f"changed {i}."}) for i in range(9)]
    assert all(f"changed {i}." in shown(gated) for i in range(9))
    gated.diagnosis_changes = [change.model_copy(update={"outcome": "warn"}) for change in gated.diagnosis_changes]
    assert "5 more changed answers in gate.json" in shown(gated)


def test_reasons_and_fields_of_unlike_sides(unlike: GateResult) -> None:
    text = squeezed(shown(unlike))
    assert "gpu.model differs: H100 NVL / H100 PCIe; record a baseline on this card" in text
    assert "✕ gpu.model: H100 NVL / H100 PCIe (differs, must match)" in text
    assert "METRICS" not in text


def test_detectability_is_told_and_where_it_is_too_coarse(gated: GateResult) -> None:
    assert "2.1% (e2e_p50) to 9.1% (ttft_p95); coarser than the limit for ttft_p95" in squeezed(shown(gated))


@pytest.mark.parametrize("columns", [40, 80, 130])
def test_lines_fold_within_the_width_and_lose_nothing(any_gate: GateResult, columns: int) -> None:
    text = shown(any_gate, environ={"COLUMNS": str(columns)})
    assert max(len(line) for line in text.splitlines()) <= columns
    assert any_gate.headline in squeezed(text)
    assert any_gate.next_step in squeezed(text)


def test_a_pipe_is_120_columns_wide_without_colour(gated: GateResult) -> None:
    gated.headline = "x" * 300
    text = shown(gated, environ={"TERM": "dumb"})
    assert max(len(line) for line in text.splitlines()) == 120
    assert "\x1b" not in text


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), ("", True)])
def test_no_color_is_honoured(gated: GateResult, no_color: str, coloured: bool) -> None:
    environ = {"COLUMNS": "80", "TERM": "xterm-256color", "FORCE_COLOR": "1", "NO_COLOR": no_color}
    text = shown(gated, environ=environ)
    assert ("\x1b[31m" in text) is coloured
    assert "regressed" in text


def test_a_failing_answer_has_its_line(gated: GateResult) -> None:
    for change in gated.diagnosis_changes:
        change.policy_line = 51
    text = squeezed(shown(gated))
    assert "1.01x [0.98..1.03] now.; inferdoc-gate.toml:51" in text
    assert text.count("inferdoc-gate.toml:51") == 1, "the other change only warns"


def test_a_history_counts_sessions(gated: GateResult) -> None:
    gated.design = DesignRecord(mode="history", pairs=6, requests=24)
    assert "DESIGN 6 sessions of the candidate; 24 requests a run" in squeezed(shown(gated))


def test_ascii_terminal_gets_ascii(any_gate: GateResult) -> None:
    text = shown(any_gate, encoding="ascii")
    assert ("x REGRESSED" if any_gate.exit_code == 1 else "!= NOT COMPARABLE") in text
    assert "\\u" not in text


def test_calibration_lists_the_noisiest_first_and_limits_below_noise() -> None:
    def noise(sd: float, limit: float | None) -> Noise:
        return Noise(sd=sd, pairs=24, false_alarms=1, limit=limit, detectable=sd, suggested=0.05)

    calibration = Calibration(
        recorded_at="2026-03-02T10:14:07Z",
        tool_version="0.1.0",
        environment="a91be2",
        workload="77d0c1",
        requests=24,
        sessions=3,
        pairs=8,
        noise={"calm": noise(0.01, 0.05), "loud": noise(0.08, 0.05), "free": noise(0.02, None)},
    )
    stream = io.StringIO()
    print_calibration(calibration, Path("out/calibration.json"), make_console(stream, {"COLUMNS": "80"}))
    text = stream.getvalue()
    assert text.index("loud") < text.index("free") < text.index("calm")
    assert "3 A/A sessions of 8 pairs; 24 requests a run" in text
    assert text.count("the limit is below the noise") == 1
    assert text.index("loud") < text.index("the limit is below the noise") < text.index("free")

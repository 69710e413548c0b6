from __future__ import annotations

import io
from pathlib import Path

import pytest

from inferdoc.evidence import Basis, Diagnosis, Evidence, Expected
from inferdoc.reports.terminal import make_console, print_diagnosis

Case = tuple[Evidence, Diagnosis]


def shown(case: Case, *, environ: dict[str, str] | None = None, encoding: str = "utf-8") -> str:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding, errors="strict")
    print_diagnosis(*case, Path("out"), make_console(stream, environ or {"COLUMNS": "80"}))
    stream.flush()
    return buffer.getvalue().decode(encoding)


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_one_screen_in_the_order_of_the_report(complete: Case) -> None:
    text = shown(complete)
    parts = ["inferdoc", "VERDICT", "SIX QUESTIONS", "DO NEXT", "DOES NOT PAY", "INCONCLUSIVE", "NOT NEEDED", "REPORT"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert len(text.splitlines()) <= 40


@pytest.mark.parametrize("columns", [40, 80, 100])
def test_lines_fold_within_the_width_and_lose_nothing(complete: Case, columns: int) -> None:
    text = shown(complete, environ={"COLUMNS": str(columns)})
    assert max(len(line) for line in text.splitlines()) <= columns
    for finding in complete[1].findings[2:4]:
        assert finding.text in squeezed(text)
    for finding in complete[1].findings[4:]:
        assert finding.title in squeezed(text)
    assert "1.83x [1.79..1.88] output tokens/s" in squeezed(text)


def test_a_word_longer_than_the_line_is_folded_not_cropped(complete: Case) -> None:
    complete[1].verdict.headline = "x" * 300
    text = shown(complete)
    assert text.count("x" * 50) >= 4
    assert text.count("x") >= 300
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_pipe_is_120_columns_wide(complete: Case) -> None:
    complete[1].verdict.headline = "x" * 300
    assert max(len(line) for line in shown(complete, environ={"TERM": "dumb"}).splitlines()) == 120


def test_a_pipe_gets_no_colour_codes(complete: Case) -> None:
    assert "\x1b" not in shown(complete)


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), ("", True)])
def test_no_color_is_honoured(complete: Case, no_color: str, coloured: bool) -> None:
    environ = {"COLUMNS": "80", "TERM": "xterm-256color", "FORCE_COLOR": "1", "NO_COLOR": no_color}
    assert ("\x1b[32m" in shown(complete, environ=environ)) is coloured


def test_ascii_terminal_gets_ascii(complete: Case) -> None:
    complete[1].verdict.headline = "Übersicht 4.1 µs"
    text = shown(complete, encoding="ascii")
    assert "\\xdcbersicht 4.1 us" in text
    assert "   + 1.83x [1.79..1.88] output tokens/s" in text


def test_every_question_has_a_line(any_case: Case) -> None:
    lines = shown(any_case).splitlines()
    assert [line[1] for line in lines[lines.index("SIX QUESTIONS") + 1 :][:6]] == list("123456")


def test_long_lists_are_counted(complete: Case) -> None:
    diagnosis = complete[1]
    diagnosis.findings += [diagnosis.findings[2].model_copy(update={"title": f"T{i}"}) for i in range(9)]
    assert "6 more in the report" in shown(complete)


def test_nothing_pays_is_said(bare: Case) -> None:
    assert "nothing that was measured pays" in shown(bare)


def test_each_expected_metric_has_a_line_and_a_loss_is_never_left_out(complete: Case) -> None:
    def change(label: str, low: float, high: float) -> Expected:
        span = {"estimate": (low * high) ** 0.5, "low": low, "high": high}
        return Expected(metric=label, label=label, basis=Basis.MEASURED, **span)

    ranges = [("a", 1.1, 1.2), ("b", 0.9, 1.2), ("c", 1.3, 1.4), ("left out", 1.1, 1.3), ("cost", 0.59, 0.86)]
    complete[1].recommendations[0].expected = [change(*row) for row in ranges]
    lines = shown(complete).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(" 1 enable_prefix_caching")) + 1
    assert lines[first : first + 4] == [
        "   ▲ 1.15x [1.10..1.20] a",
        "   = 1.04x [0.90..1.20] b, no difference shown",
        "   ▲ 1.35x [1.30..1.40] c",
        "   ▼ 0.71x [0.59..0.86] cost, worse",
    ]
    assert "left out" not in "".join(lines)


def test_basis_stands_on_each_line_where_the_card_has_several(complete: Case) -> None:
    assert " 1 enable_prefix_caching: off -> on (measured here)\n" in shown(complete)
    complete[1].recommendations[0].expected[1].basis = Basis.MODELLED
    text = shown(complete)
    assert "1 enable_prefix_caching: off -> on\n" in text
    assert "TTFT p50 (modelled)\n" in text
    assert "output tokens/s (measured here)\n" in text


def test_only_the_first_test_command_is_printed(complete: Case) -> None:
    first, second = complete[1].recommendations
    text = squeezed(shown(complete))
    assert f"test: {first.verify_command} (1 more in the report)" in text
    assert second.verify_command not in text
    second.verify_command = first.verify_command
    assert "more in the report)" not in shown(complete)


def test_size_of_the_slice_is_told(complete: Case, bare: Case) -> None:
    assert "measured on 64 of 320 requests" in squeezed(shown(complete))
    assert "measured on" not in squeezed(shown(bare))


def test_too_few_pairs_are_told_beside_the_finding(complete: Case) -> None:
    complete[0].comparisons["continuous_batching.saturated"].pairs = 3
    text = squeezed(shown(complete))
    assert "Needs another 96 s of measurement. (3 of 6 pairs)" in text

"""The terminal's view of a trace: complete, within its width, and in characters that the terminal has."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from inferdoc.reports.sparkline import narrowed, sparkline
from inferdoc.reports.terminal import make_console
from inferdoc.reports.trace_comparison import print_comparison
from inferdoc.reports.trace_view import print_trace
from inferdoc.traces import read_trace
from inferdoc.traces.analysis import TraceAnalysis, analyse
from inferdoc.traces.comparison import Compared, Comparison


def shown(analysis: TraceAnalysis, width: int = 120, encoding: str = "utf-8", *, show_text: bool = False) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_trace(analysis, make_console(stream, {"COLUMNS": str(width)}), show_text=show_text)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def conversations(shared: Path) -> TraceAnalysis:
    return analyse(read_trace(shared / "traces/mooncake/synthetic_trace.jsonl"), capacities_tokens=(50_000,))


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_the_terminal(conversations: TraceAnalysis, width: int, encoding: str) -> None:
    lines = shown(conversations, width, encoding).splitlines()
    assert max(map(len, lines)) <= width
    assert all(ord(character) < 128 for line in lines for character in line) or encoding == "utf-8"


def test_the_usual_view_is_a_page_and_names_every_part(conversations: TraceAnalysis) -> None:
    text = shown(conversations)
    assert len(text.splitlines()) <= 60
    for heading in ("TRACE", "LENGTHS", "LOAD OVER TIME", "STATIC BATCHES", "MEMORY", "PREFIXES", "NOT IN THE TRACE"):
        assert any(line.startswith(heading) for line in text.splitlines()), heading
    first = conversations.prefixes.block_sizes[0]
    assert f"{first.hit_rate:.1%}" in text
    assert first.cache is not None
    assert f"50,000: {first.cache.at[0].hit_rate:.1%}" in text
    for reach in first.cache.reach:
        assert f"{reach.capacity_tokens:,}" in text


def test_a_trace_of_lengths_says_that_prefixes_are_unknown_not_zero(trace: TraceAnalysis) -> None:
    text = shown(trace)
    assert "PREFIXES  unknown: the trace has no prefixes" in text
    assert "Switches off: 2 prefix redundancy" in " ".join(text.split())
    assert "0.0%" not in text


@pytest.fixture
def trace(tmp_path: Path) -> TraceAnalysis:
    path = tmp_path / "t.csv"
    rows = "".join(f"{i},{100 + i},{10 + i % 7}\n" for i in range(50))
    path.write_text("timestamp,input_tokens,output_tokens\n" + rows)
    return analyse(read_trace(path))


def test_control_characters_of_a_trace_do_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    models = ("a\x1b[31m", "a\x1b[31m", "##[error]")
    rows = [{"input_tokens": 1, "output_tokens": 1, "model": model} for model in models]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = shown(analyse(read_trace(path)))
    assert "2 models" in text
    assert "\x1b[31m" not in text
    assert "##[" not in text


def test_bars_stand_for_shares_of_the_largest() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▁▄█"
    assert sparkline([0, 1, 4, 8], utf=False) == " _-#"
    assert sparkline([0.0001, 100]) == "▁█"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "
    assert narrowed([1, 2, 3, 4, 5], 3) == [1.5, 3.5, 5]
    assert narrowed([1, 2], 3) == [1, 2]


def test_a_comparison_shows_both_and_what_to_beware_of() -> None:
    comparison = Comparison(
        numbers=[
            Compared(label="requests", unit="requests", before=1000.0, after=50.0),
            Compared(label="ideal hit rate", unit="share", before=0.25, after=0.0),
            Compared(label="CV", unit="", before=None, after=1.5),
        ],
        warnings=["beware"],
    )
    stream = io.StringIO()
    print_comparison(Path("out.jsonl"), 50, ["a note"], comparison, make_console(stream, {"COLUMNS": "80"}))
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert lines == [
        "WRITTEN out.jsonl: 50 requests", "a note", "given written", "requests 1,000 50", "ideal hit rate 25.0% 0",
        "CV – 1.50", "! beware",
    ]  # fmt: skip

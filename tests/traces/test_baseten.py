"""Baseten: text, lengths, sessions from one of two columns, canceled requests."""

from __future__ import annotations

import polars as pl
import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def row(at, **other):
    return {
        "timestamp_start_unix_ms": 1_700_000_000_000 + at, "prompt": f"prompt {at}", "input_tokens": 128,
        "output_tokens": 5, "provided_session_id": "a", "poor_man_session_id": 7, "total_hashes": [10, 11],
        "block_size": 64, "request_canceled": 0, "duration_e2e_ms": 800, "duration_ttft_ms": 120,
    } | other  # fmt: skip


def test_columns(jsonl):
    trace = read_trace(jsonl([row(0), row(1500)]))
    assert (trace.format, trace.time_unit, trace.content, trace.block_size) == ("baseten", "ms", "text", 64)
    assert trace.rows.select("arrival_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s").rows() == [
        (0.0, 128, 5, 0.12, 0.8),
        (1.5, 128, 5, 0.12, 0.8),
    ]
    assert trace.rows["prompt_text"].to_list() == ["prompt 0", "prompt 1500"]
    assert trace.rows["prefix_blocks"].to_list() == [[10, 11], [10, 11]]


def test_parquet_and_arrow_are_the_same_trace(tmp_path):
    frame = pl.DataFrame([row(0), row(1500), row(1600, output_tokens=0, request_canceled=1)])
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_ipc(tmp_path / "t.arrow")
    for name in ("t.parquet", "t.arrow"):
        trace = read_trace(tmp_path / name)
        assert (trace.format, len(trace)) == ("baseten", 2)
        assert trace.rows["arrival_s"].to_list() == [0.0, 1.5]
        assert trace.rows["prefix_blocks"].to_list() == [[10, 11], [10, 11]]
        assert sum(entry.rows for entry in trace.left_out) == 1


def test_sessions_are_those_of_the_column_that_repeats(jsonl):
    given = [row(n, provided_session_id=f"u{n % 2}", poor_man_session_id=n) for n in range(4)]
    assert read_trace(jsonl(given)).rows["session"].to_list() == ["u0", "u1", "u0", "u1"]
    derived = [row(n, provided_session_id=f"u{n}", poor_man_session_id=n % 2) for n in range(4)]
    assert read_trace(jsonl(derived)).rows["session"].to_list() == ["0", "1", "0", "1"]
    single = [row(n, provided_session_id=f"u{n}", poor_man_session_id=None) for n in range(2)]
    assert read_trace(jsonl(single)).rows["session"].to_list() == ["u0", "u1"]


@pytest.mark.parametrize("flag", [1, True, "true", 1.0])
def test_canceled_requests_are_failures(jsonl, flag):
    canceled = row(1, request_canceled=flag, output_tokens=4, duration_ttft_ms=0, duration_e2e_ms=0)
    trace = read_trace(jsonl([row(0), canceled, row(2, output_tokens=0), row(3)]))
    assert trace.rows["row"].to_list() == [1, 4]
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(2, 2)]


def test_optional_columns_may_lack(jsonl):
    needed = ("timestamp_start_unix_ms", "prompt", "input_tokens", "output_tokens")
    trace = read_trace(jsonl([{name: row(n)[name] for name in needed} for n in range(3)]))
    assert (trace.format, len(trace), trace.block_size) == ("baseten", 3, None)
    assert trace.rows["session"].null_count() == trace.rows["e2e_s"].null_count() == 3


@pytest.mark.parametrize("hashes", [[1], [1, 2, 3, 4], [], None])
def test_hashes_that_do_not_fit_leave_the_text(jsonl, hashes):
    trace = read_trace(jsonl([row(0), row(1, total_hashes=hashes)]))
    assert (len(trace), trace.content, trace.has("prefix_blocks")) == (2, "text", False)
    assert any("total_hashes are not used: in 1 of 2 requests" in note for note in trace.notes)


def test_hashes_of_canceled_requests_do_not_count(jsonl):
    trace = read_trace(jsonl([row(0), row(1, request_canceled=1, output_tokens=0, total_hashes=[])]))
    assert trace.rows["prefix_blocks"].to_list() == [[10, 11]]


def test_a_duration_of_zero_is_not_known(jsonl):
    trace = read_trace(jsonl([row(0), row(1, duration_ttft_ms=0)]))
    assert trace.rows["ttft_s"].to_list() == [0.12, None]
    assert any("1 rows have duration_ttft_ms 0" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"input_tokens": -3}, "input_tokens is '-3'"),
        ({"input_tokens": "many"}, "input_tokens is text of 4 characters"),
        ({"output_tokens": 2.5}, "output_tokens is '2.5'"),
        ({"timestamp_start_unix_ms": None}, "timestamp_start_unix_ms is missing"),
        ({"duration_e2e_ms": -1}, "duration_e2e_ms is '-1'"),
        ({"total_hashes": [1.5]}, "total_hashes is"),
    ],
)
def test_wrong_rows_are_named(jsonl, bad, says):
    path = jsonl([row(0), row(1, **bad)])
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:2: {says}")
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows, trace.left_out[0].first_line) == (1, 1, 2)

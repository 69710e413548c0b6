"""TraceLab: rounds of coding agents with a measured cache split, and session workloads in a closed loop."""

from __future__ import annotations

import csv
import json
from datetime import datetime

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

INPUTS, OUTPUTS = {"user_message", "tool_result"}, {"reasoning", "text", "tool_call"}


def events(*pairs):
    return [{"event_type": kind, "timestamp": f"2026-06-01T05:40:{second:06.3f}Z"} for kind, second in pairs]


def one_round(index=0, **other):
    return {
        "provider": "codex", "session_id": "codex:a", "round_index": index, "model": "m", "input_tokens_total": 100,
        "prefix_tokens": 60, "newly_append_tokens": 40, "output_tokens": 30, "reasoning_output_tokens": 20,
        "timing_events": events(("user_message", 20 + index), ("text", 21.5 + index)),
    } | other  # fmt: skip


def test_rounds_against_a_plain_reading(shared):
    path = shared / "traces" / "tracelab" / "round_trace.sanitized.jsonl"
    expected = []
    for line, text in enumerate(path.read_text().splitlines(), 1):
        row = json.loads(text)
        stamps = [(e["event_type"], datetime.fromisoformat(e["timestamp"])) for e in row["timing_events"]]
        first_out = next(at for at, (kind, _) in enumerate(stamps) if kind in OUTPUTS)
        arrival = [time for kind, time in stamps[:first_out] if kind in INPUTS][-1]
        end = [time for kind, time in stamps if kind in OUTPUTS][-1]
        expected.append((arrival, line, row, (end - arrival).total_seconds()))
    expected.sort(key=lambda item: item[0])
    trace = read_trace(path)
    rows = trace.rows.to_dicts()
    assert (trace.format, len(rows), trace.left_out) == ("tracelab", 19, ())
    assert [row["row"] for row in rows] == [line for _, line, _, _ in expected]
    start = expected[0][0]
    assert [row["arrival_s"] for row in rows] == pytest.approx([(t - start).total_seconds() for t, _, _, _ in expected])
    assert [row["e2e_s"] for row in rows] == pytest.approx([took for _, _, _, took in expected])
    for column, name in (
        ("input_tokens", "input_tokens_total"), ("output_tokens", "output_tokens"), ("cached_tokens", "prefix_tokens"),
        ("session", "session_id"), ("model", "model"),
    ):  # fmt: skip
        assert [row[column] for row in rows] == [raw[name] for _, _, raw, _ in expected]
    assert [row["turn"] for row in rows] == [raw["round_index"] + 1 for _, _, raw, _ in expected]


def test_the_last_input_before_the_first_output_starts_a_round(jsonl):
    timing = events(
        ("tool_result", 1), ("tool_result", 3), ("usage_report", 3.5), ("reasoning", 4), ("tool_result", 5),
        ("text", 7), ("usage_report", 9),
    )  # fmt: skip
    trace = read_trace(
        jsonl([one_round(timing_events=events(("user_message", 0), ("text", 1))), one_round(1, timing_events=timing)])
    )
    assert trace.rows["arrival_s"].to_list() == [0.0, 3.0]
    assert trace.rows["e2e_s"].to_list() == [1.0, 4.0]


def test_reasoning_is_not_added_and_other_sums_are_said(jsonl):
    trace = read_trace(jsonl([one_round(), one_round(1, newly_append_tokens=41)]))
    assert trace.rows["output_tokens"].to_list() == [30, 30]
    assert any("1 rounds have a total that is not the sum" in note for note in trace.notes)


def test_a_round_written_twice_counts_once(jsonl):
    trace = read_trace(jsonl([one_round(round_id="x"), one_round(round_id="x"), one_round(1, round_id="y")]))
    assert trace.rows["row"].to_list() == [2, 3]
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(1, 1)]


def test_rounds_without_a_start_are_counted(jsonl):
    rows = [one_round(), one_round(1, timing_events=events(("text", 2))), one_round(2, timing_events=None)]
    trace = read_trace(jsonl(rows))
    assert len(trace) == 1
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(2, 2)]


def test_broken_events_are_an_error_of_their_line(jsonl):
    path = jsonl([one_round(), one_round(1, timing_events="x")])
    with pytest.raises(TraceError, match=r":2: timing_events is text of 1 character: expected a list of events"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1


@pytest.mark.parametrize("name", ["session_workload_example.csv", "multi_session_large.csv"])
def test_sessions_against_a_plain_reading(shared, name):
    path = shared / "traces" / "tracelab" / name
    with path.open(newline="") as file:
        expected = list(csv.DictReader(file))
    trace = read_trace(path)
    assert (trace.format, len(trace), trace.duration_s, trace.left_out) == (
        "tracelab-sessions",
        len(expected),
        None,
        (),
    )
    assert trace.rows["input_tokens"].to_list() == [int(r["prefix_len"]) + int(r["input_len"]) for r in expected]
    assert trace.rows["output_tokens"].to_list() == [int(r["output_len"]) for r in expected]
    assert trace.rows["session"].to_list() == [r["session_id"] for r in expected]
    assert trace.rows["turn"].to_list() == [int(r["round_idx"]) + 1 for r in expected]
    assert trace.rows["cached_tokens"].null_count() == len(expected)
    share = sum(int(r["prefix_len"]) for r in expected) / sum(trace.rows["input_tokens"])
    assert any(f"{share:.1%} of the prompt tokens were in their session before" in note for note in trace.notes)


def test_sessions_of_one_round_have_arrivals(write):
    text = "id,arrival_time,round_idx,prefix_len,input_len,output_len\na,250,0,0,10,2\nb,1000,0,0,20,3\n"
    trace = read_trace(write("s.csv", text))
    assert trace.rows["arrival_s"].to_list() == [0.0, 0.75]
    assert trace.rows["session"].to_list() == ["a", "b"]
    later = read_trace(write("s.csv", text + "a,250,1,12,5,1\n"))
    assert (later.duration_s, later.rows["turn"].to_list()) == (None, [1, 1, 2])
    assert any("2 of 3 requests have a time of their own" in note for note in later.notes)


@pytest.mark.parametrize("line", ["a,0,1,x,5,1", "a,0,1,3,-5,1", "a,0,1,3,NaN,1", "a,0,1,3,5,1.5"])
def test_wrong_session_rows_are_named(write, line):
    text = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len\na,0,0,0,10,2\n"
    path = write("s.csv", text + line + "\n")
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:3: ")
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows, trace.left_out[0].first_line) == (1, 1, 3)

"""BurstGPT: two layouts told apart by column names, failures, a clock of whole seconds."""

from __future__ import annotations

import csv

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

PART_1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
PART_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize("name", ["BurstGPT_1", "BurstGPT_3"])
def test_both_layouts_against_a_plain_reading(shared, name):
    path = shared / "traces" / "burstgpt" / f"{name}.first_rows.csv"
    with path.open(newline="") as file:
        expected = list(csv.DictReader(file))
    trace = read_trace(path)
    first = float(expected[0]["Timestamp"])
    assert (trace.format, trace.time_unit, len(trace)) == ("burstgpt", "s", len(expected))
    assert trace.rows["arrival_s"].to_list() == [float(row["Timestamp"]) - first for row in expected]
    assert trace.rows["input_tokens"].to_list() == [int(row["Request tokens"]) for row in expected]
    assert trace.rows["output_tokens"].to_list() == [int(row["Response tokens"]) for row in expected]
    assert trace.rows["model"].to_list() == [row["Model"] for row in expected]
    assert trace.rows["session"].to_list() == [row.get("Session ID") for row in expected]
    elapsed = [float(row["Elapsed time"]) if "Elapsed time" in row else None for row in expected]
    assert trace.rows["e2e_s"].to_list() == elapsed


def test_no_answer_is_a_failure_and_an_empty_session_is_normal(write):
    rows = "5,a-b,9,GPT-4,10,3,13,Conversation log\n5,,2,ChatGPT,7,0,7,API log\n6,,1,ChatGPT,0,0,0,API log\n"
    trace = read_trace(write("b.csv", PART_3 + rows + "7,,0,ChatGPT,8,2,11,API log\n"))
    assert trace.rows["row"].to_list() == [2, 5]
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(2, 3)]
    assert trace.rows["session"].to_list() == ["a-b", None]
    assert trace.rows["e2e_s"].to_list() == [9.0, None]
    notes = " ".join(trace.notes)
    assert "1 rows have Elapsed time 0 (shorter than the clock's second): read as not known" in notes
    assert "3 API log, 1 Conversation log" in notes
    assert "1 rows have a total that is not the sum" in notes


def test_equal_times_keep_the_order_of_the_file(write):
    rows = "".join(f"5,GPT-4,{n},1,{n + 1},API log\n" for n in (30, 10, 20))
    trace = read_trace(write("b.csv", PART_1 + rows))
    assert trace.rows["input_tokens"].to_list() == [30, 10, 20]
    assert trace.duration_s == 0.0


def test_names_count_whatever_their_order_and_case(write):
    text = "log type,RESPONSE TOKENS,request_tokens,timestamp,new column\nAPI log,2,8,40,x\nAPI log,3,9,41.0,y\n"
    trace = read_trace(write("b.csv", text))
    assert trace.format == "burstgpt"
    assert trace.rows.select("arrival_s", "input_tokens", "output_tokens").rows() == [(0.0, 8, 2), (1.0, 9, 3)]


def test_a_missing_column_is_named(write):
    with pytest.raises(TraceError, match="has no column Response tokens; columns: Timestamp, Request tokens, x"):
        read_trace(write("b.csv", "Timestamp,Request tokens,x\n1,2,3\n"), trace_format="burstgpt")

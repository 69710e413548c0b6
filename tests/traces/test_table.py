"""Any CSV or JSONL by the names of its columns."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.evidence import LeftOut
from inferdoc.traces import ideal_hits, read_trace

BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_columns_are_found_by_name_in_any_order_and_said(write):
    text = "model,Completion Tokens,extra,promptTokens,arrival_time_ms\nm,2,x,10,1500\nm,3,y,20,1000\n"
    trace = read_trace(write("t.csv", text))
    assert trace.rows["input_tokens"].to_list() == [20, 10]
    assert trace.rows["output_tokens"].to_list() == [3, 2]
    assert trace.rows["arrival_s"].to_list() == [0.0, 0.5]
    assert trace.time_unit == "ms"
    assert any(
        "input_tokens = promptTokens" in note and "arrival = arrival_time_ms (ms)" in note for note in trace.notes
    )


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_delimiters(write, delimiter):
    text = "input_tokens,output_tokens\n1,2\n".replace(",", delimiter)
    assert read_trace(write("t.csv", text)).rows["output_tokens"].to_list() == [2]


def test_quoted_fields_with_line_breaks_keep_the_lines_right(write):
    text = 'prompt,input_tokens,output_tokens\n"two\nlines, with a comma",5,2\n"one",7,3\nx,-1,3\n'
    path = write("t.csv", text)
    with pytest.raises(TraceError, match=r"t\.csv:5: input_tokens is '-1'"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert trace.rows["row"].to_list() == [2, 4]
    assert trace.rows["prompt_text"].to_list() == ["two\nlines, with a comma", "one"]


def test_failures_and_whole_seconds(write):
    trace = read_trace(write("t.csv", BURSTGPT + "5,ChatGPT,472,18,490,API log\n" * 4 + "5,ChatGPT,0,0,0,API log\n"))
    assert len(trace) == 4
    assert trace.left_out[0].rows == 1
    assert (trace.duration_s, trace.rate_per_s) == (0.0, None)
    assert any("same time" in note for note in trace.notes)


def test_a_clock_of_whole_seconds_is_said(write):
    text = BURSTGPT + "".join(f"{t},GPT-4,10,5,15,API log\n" for t in (5, 5, 6, 9))
    assert any("whole seconds" in note for note in read_trace(write("t.csv", text)).notes)


def test_a_ramp_is_not_one_rate(write):
    # 10 requests in the first half hour, 190 in the second.
    times = [180 * n for n in range(10)] + [1800 + 9 * n for n in range(190)]
    text = "timestamp,input_tokens,output_tokens\n" + "".join(f"{t},10,5\n" for t in times)
    assert any("rate is not steady" in note for note in read_trace(write("t.csv", text)).notes)


def test_inserted_columns_do_not_shift_the_lengths(write):
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,s-1,43,GPT-4,906,446,1352,Conversation log\n19440161.0,,2,ChatGPT,36,29,65,API log\n"
    )
    trace = read_trace(write("t.csv", text))
    assert trace.rows["input_tokens"].to_list() == [906, 36]
    assert trace.rows["session"].to_list() == ["s-1", None]
    assert trace.rows["e2e_s"].to_list() == [43.0, 2.0]
    assert trace.rows["turn"].to_list() == [1, None]


def test_status_and_error_columns_mark_failures(write):
    rows = ["success,", "500,", "cancelled,", "ok,timeout", "200,null"]
    text = "input_tokens,output_tokens,status,error\n" + "".join(f"5,2,{row}\n" for row in rows)
    trace = read_trace(write("t.csv", text))
    assert trace.rows["row"].to_list() == [2, 6]


def test_seconds_in_a_column_of_milliseconds_raise_a_doubt(write):
    text = "input_tokens,output_tokens,ttft_ms\n500,40,0.35\n500,40,0.41\n"
    trace = read_trace(write("t.csv", text))
    assert any("ttft_ms has a median of 0.38 ms" in note and "seconds?" in note for note in trace.notes)
    with pytest.raises(TraceError, match=r"ttft_ms is '0.0004'"):
        read_trace(write("t.csv", text + "500,40,0.0004\n"))


def test_latencies_of_failed_rows_are_not_looked_at(write):
    text = "input_tokens,output_tokens,ttft_ms,e2e_ms,queue_ms\n500,40,350,1000,5\n500,0,0.0,0.0,0.0\n"
    trace = read_trace(write("t.csv", text))
    assert len(trace) == 1
    assert trace.rows.select("ttft_s", "e2e_s", "queue_s").row(0) == pytest.approx((0.35, 1.0, 0.005))


def test_cached_tokens_are_a_part_of_the_prompt_or_refused(jsonl):
    with pytest.raises(TraceError, match=r":2: cached_tokens is 900 of prompt_tokens 100"):
        read_trace(
            jsonl(
                [
                    {"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 100},
                    {"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 900},
                ]
            )
        )


def test_cache_reads_and_writes_beside_the_input_are_on_top(jsonl):
    row = {"input_tokens": 100, "output_tokens": 5, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 20}
    trace = read_trace(jsonl([row]))
    assert trace.rows["input_tokens"].to_list() == [1020]
    assert trace.rows["cached_tokens"].to_list() == [900]
    assert read_trace(jsonl([row | {"input_tokens": 0}])).rows["input_tokens"].to_list() == [920]
    assert any("on top" in note for note in trace.notes)


def test_recorded_token_ids_are_kept_and_counted(jsonl):
    row = {"prompt_token_ids": [5, 6, 7], "input_tokens": 9, "output_tokens": 2, "output_token_ids": [1, 2]}
    trace = read_trace(jsonl([row]))
    assert trace.content == "token ids"
    assert trace.rows["prompt_ids"].to_list() == [[5, 6, 7]]
    assert trace.rows["input_tokens"].to_list() == [3]
    assert any("the ids are counted" in note for note in trace.notes)


def test_hashes_with_a_stated_block_size(jsonl):
    rows = [{"input_tokens": 40, "output_tokens": 1, "block_size": 16, "hash_ids": ids} for ids in ([1, 2], [1, 2, 3])]
    trace = read_trace(jsonl(rows))
    assert trace.block_size == 16
    assert ideal_hits(trace, 16).hit_tokens == 32


def test_hashes_whose_block_size_follows_from_the_lengths(jsonl):
    rows = [{"input_tokens": n * 64, "output_tokens": 1, "hash_ids": list(range(n))} for n in range(1, 9)]
    assert read_trace(jsonl(rows)).block_size == 64


def test_hashes_of_unknown_block_size_are_asked_for(jsonl):
    with pytest.raises(TraceError, match="add a field block_size"):
        read_trace(jsonl([{"input_tokens": 10, "output_tokens": 1, "hash_ids": [1]}]))


def test_prompts_with_text(jsonl):
    trace = read_trace(jsonl([{"prompt": "hello", "output_tokens": 5}, {"prompt": "hello you", "output_tokens": 6}]))
    assert (trace.format, trace.content) == ("prompts", "text")
    assert trace.rows["prompt_text"].to_list() == ["hello", "hello you"]
    assert trace.rows["input_tokens"].null_count() == 2


def test_units_that_are_not_named_are_said(jsonl):
    rows = [{"timestamp": 1700000000000 + 500 * n, "input_tokens": 1, "output_tokens": 1} for n in range(3)]
    trace = read_trace(jsonl(rows))
    assert (trace.time_unit, trace.duration_s) == ("ms", 1.0)
    assert "timestamp names no unit: read as ms, by its size" in trace.notes


def test_an_absolute_clock_that_falls_back_is_disorder_not_a_new_start(jsonl):
    times = [1700000000 + 2 * n for n in range(20)] + [1700000001 + 2 * n for n in range(20)]
    trace = read_trace(jsonl([{"timestamp": t, "input_tokens": 1, "output_tokens": 1} for t in times]))
    assert trace.duration_s == 39.0
    assert trace.rows["arrival_s"].to_list() == [float(n) for n in range(40)]


def test_rows_read_are_requests_plus_left_out(write):
    good, failed, bad = "1,10,5\n", "1,10,0\n", "1,ten,5\n"
    text = "timestamp,input_tokens,output_tokens\n" + good * 7 + failed * 2 + bad * 3 + "1,2\n" + good
    trace = read_trace(write("t.csv", text), skip_bad_rows=True)
    assert len(trace) + sum(entry.rows for entry in trace.left_out) == 7 + 2 + 3 + 1 + 1
    assert {entry.first_line: entry.rows for entry in trace.left_out} == {14: 1, 11: 3, 9: 2}
    assert all(isinstance(entry, LeftOut) and entry.reason for entry in trace.left_out)


def test_a_row_with_two_faults_is_counted_once(write):
    text = "timestamp,input_tokens,output_tokens\n1,10,5\nx,-1,many\n"
    trace = read_trace(write("t.csv", text), skip_bad_rows=True)
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(1, 3)]


def test_huge_counts_are_no_token_counts(write):
    with pytest.raises(TraceError, match=r":2: input_tokens is '20000000': expected .* to 10,000,000"):
        read_trace(write("t.csv", "input_tokens,output_tokens\n20000000,5\n"))


def test_a_header_without_rows(write):
    with pytest.raises(TraceError, match="no request that can be used"):
        read_trace(write("t.csv", "input_tokens,output_tokens\n"))


@pytest.mark.parametrize("count", [1, 2])
def test_very_small_traces(write, count):
    trace = read_trace(write("t.csv", "timestamp,input_tokens,output_tokens\n" + "5,10,5\n" * count))
    assert (len(trace), trace.duration_s, trace.rate_per_s) == (count, 0.0, None)


ROWS = [("a", 1, 10, 5), ("a", 2, 20, 6), ("b", 3, 7, 8), ("b", 3, 7, 8), ("c", 4, 7, 8), ("d", 4, 7, 8)]


@pytest.mark.parametrize("name", ["request_id", "id"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_ids_that_repeat(write, kind, name):
    names = [name, "timestamp", "input_tokens", "output_tokens"]
    if kind == "csv":
        text = "\n".join([",".join(names), *(",".join(map(str, row)) for row in ROWS)]) + "\n"
    else:
        text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in ROWS)
    trace = read_trace(write(f"t.{kind}", text))
    # Both rows of a differ, those of b are one request, c and d are two.
    assert trace.rows["input_tokens"].to_list() == [10, 20, 7, 7, 7]
    (entry,) = trace.left_out
    assert (entry.rows, entry.first_line) == (1, 4 if kind == "csv" else 3)
    (note,) = [note for note in trace.notes if "that of another row" in note]
    assert note.startswith(f"rows whose {name} is that of another row that differs in other fields: 1;")

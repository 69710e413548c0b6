"""Dirty rows in the formats of prefix traces and token-count tables: the same checks against each reader."""

from __future__ import annotations

import copy
import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def qwen(n):
    return {
        "chat_id": n,
        "parent_chat_id": -1,
        "timestamp": n,
        "input_length": 30 + n,
        "output_length": 5,
        "type": "text",
        "turn": 1,
        "hash_ids": list(range(-(-(30 + n) // 16))),
    }


def ragpulse(n):
    return {
        "timestamp": str(n),
        "input_length": 30 + n,
        "output_length": 5,
        "hash_ids": {"history": [n]},
        "session_id": "s",
    }


def variant(n):
    return {"timestamp": n, "input_length": 30 + n, "output_length": 5, "session_id": "s", "delay": 3}


def weka(n):
    request = {"t": n, "type": "n", "model": "m", "in": 30 + n, "out": 5, "hash_ids": []}
    return {"id": str(n), "block_size": 64, "hash_id_scope": "local", "tool_tokens": 1, "requests": [request]}


def dynamo(n):
    replay = {"trace_block_size": 64, "input_length": 30 + n, "input_sequence_hashes": [n]}
    request = {"request_id": str(n), "output_tokens": 5, "request_received_ms": n, "replay": replay}
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": n + 9,
        "request": request,
    }


def tracelab(n):
    events = [{"event_type": "user_message", "timestamp": f"2026-06-01T05:40:{10 + n}Z"}]
    return {
        "provider": "codex",
        "session_id": "s",
        "round_index": n,
        "input_tokens_total": 30 + n,
        "prefix_tokens": 1,
        "newly_append_tokens": 29 + n,
        "output_tokens": 5,
        "timing_events": events,
    }


def baseten(n):
    return {"timestamp_start_unix_ms": n, "prompt": f"p{n}", "input_tokens": 30 + n, "output_tokens": 5}


def llmservingsim(n):
    return {"input_toks": 30 + n, "output_toks": 5, "arrival_time_ns": n}


def engine(n):
    return {
        "input_toks": 30 + n,
        "output_toks": 5,
        "arrival_time": n,
        "queued_ts": 1.0,
        "scheduled_ts": 2.0,
        "first_token_ts": 3.0,
        "last_token_ts": 4.0,
    }


INPUT, OUTPUT = "input_length", "output_length"
JSON_FORMATS = {
    "qwen-bailian": (qwen, (INPUT,), (OUTPUT,)),
    "ragpulse": (ragpulse, (INPUT,), (OUTPUT,)),
    "mooncake-agentic": (variant, (INPUT,), (OUTPUT,)),
    "weka": (weka, ("requests", 0, "in"), ("requests", 0, "out")),
    "dynamo": (dynamo, ("request", "replay", INPUT), ("request", "output_tokens")),
    "tracelab": (tracelab, ("input_tokens_total",), ("output_tokens",)),
    "baseten": (baseten, ("input_tokens",), ("output_tokens",)),
    "llmservingsim": (llmservingsim, ("input_toks",), ("output_toks",)),
    "vllm-engine": (engine, ("input_toks",), ("output_toks",)),
}
TABLES = {
    "burstgpt": ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "{n},GPT-4,{i},{o},9,API log"),
    "vidur": ("arrived_at,num_prefill_tokens,num_decode_tokens", "{n},{i},{o}"),
    "splitwise": ("request_id,arrival_timestamp,batch_size,prompt_size,token_size", "{n},{n},1,{i},{o}"),
    "tracelab-sessions": ("session_id,round_idx,prefix_len,input_len,output_len", "{n},0,0,{i},{o}"),
}
UNREADABLE = [-5, 4.5, "abc", 20_000_000, True, {"a": 1}, 1e300]
FITTING = [(lambda n: str(n)), (lambda n: float(n)), (lambda n: f"{n}.0"), (lambda n: f" {n} ")]


def with_value(row, path, value):
    row = copy.deepcopy(row)
    at = row
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return row


def text_of(format, rows):
    if format in JSON_FORMATS:
        return "".join(json.dumps(row) + "\n" for row in rows)
    header, line = TABLES[format]
    return header + "\n" + "".join(line.format(n=n, i=i, o=o) + "\n" for n, i, o in rows)


def good_rows(format, count):
    if format in JSON_FORMATS:
        return [JSON_FORMATS[format][0](n) for n in range(count)]
    return [(n, 30 + n, 5) for n in range(count)]


def changed(format, row, which, value):
    """`row` with another input (`which` 0) or output length (1)."""
    if format in JSON_FORMATS:
        return with_value(row, JSON_FORMATS[format][1 + which], value)
    return (row[0], value, row[2]) if which == 0 else (row[0], row[1], value)


def first_line(format):
    return 1 if format in JSON_FORMATS else 2


ALL = [*JSON_FORMATS, *TABLES]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value", UNREADABLE, ids=str)
@pytest.mark.parametrize("format", ALL)
def test_lengths_that_are_no_counts(write, format, value, which):
    rows = good_rows(format, 4)
    rows[2] = changed(format, rows[2], which, value)
    path = write("t", text_of(format, rows))
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:{first_line(format) + 2}: ")
    trace = read_trace(path, skip_bad_rows=True)
    assert (trace.format, len(trace), len(trace.left_out)) == (format, 3, 1)
    assert (trace.left_out[0].rows, trace.left_out[0].first_line) == (1, first_line(format) + 2)


@pytest.mark.parametrize("way", range(len(FITTING)))
@pytest.mark.parametrize("format", ALL)
def test_counts_written_as_text_or_floats(write, format, way):
    rows = [changed(format, row, 0, FITTING[way](30 + n)) for n, row in enumerate(good_rows(format, 3))]
    rows = [changed(format, row, 1, FITTING[way](5)) for row in rows]
    trace = read_trace(write("t", text_of(format, rows)))
    assert (trace.format, trace.rows["input_tokens"].to_list()) == (format, [30, 31, 32])
    assert trace.rows["output_tokens"].to_list() == [5, 5, 5]


@pytest.mark.parametrize("absent", [None, "NaN", "", "-"])
@pytest.mark.parametrize("format", ALL)
def test_a_missing_length_is_absent_and_not_zero(write, format, absent):
    rows = good_rows(format, 3)
    value = "" if absent is None and format in TABLES else absent
    if format != "baseten":
        path = write("t", text_of(format, [rows[0], changed(format, rows[1], 0, value), rows[2]]))
        with pytest.raises(TraceError, match=rf":{first_line(format) + 1}: .* is missing"):
            read_trace(path)
        assert len(read_trace(path, skip_bad_rows=True)) == 2
    trace = read_trace(write("t", text_of(format, [rows[0], changed(format, rows[1], 1, value), rows[2]])))
    assert trace.rows["output_tokens"].to_list() == [5, None, 5]
    assert any("1 of 3 requests have no output" in note for note in trace.notes)


@pytest.mark.parametrize("format", ALL)
def test_no_output_tokens_is_a_failure(write, format):
    rows = good_rows(format, 3)
    rows[1] = changed(format, rows[1], 1, 0)
    trace = read_trace(write("t", text_of(format, rows)))
    assert (len(trace), [entry.rows for entry in trace.left_out]) == (2, [1])
    only = write("t", text_of(format, [changed(format, row, 1, 0) for row in rows]))
    with pytest.raises(TraceError, match=r"no request that can be used \(3 failed requests"):
        read_trace(only)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("format", ALL)
def test_very_small_traces(write, format, count):
    trace = read_trace(write("t", text_of(format, good_rows(format, count))))
    assert (trace.format, len(trace)) == (format, count)


@pytest.mark.parametrize("format", ALL)
def test_byte_order_mark_line_ends_and_blank_lines(write, format):
    text = text_of(format, good_rows(format, 3))
    plain = read_trace(write("t", text))
    head, rest = text.split("\n", 1)
    for data in (
        b"\xef\xbb\xbf" + text.encode(),
        text.replace("\n", "\r\n").rstrip("\r\n").encode(),
        f"{head}\n\n{rest}\n\n".encode(),
        text.encode("utf-16"),
    ):
        trace = read_trace(write("t", data))
        columns = ["arrival_s", "input_tokens", "output_tokens", "session"]
        assert trace.rows.select(columns).equals(plain.rows.select(columns))


@pytest.mark.parametrize("format", JSON_FORMATS)
def test_a_cut_last_line_is_counted(write, format):
    text = text_of(format, good_rows(format, 3))
    trace = read_trace(write("t", text[:-12]))
    assert (len(trace), trace.left_out[0].rows, trace.left_out[0].first_line) == (2, 1, 3)


@pytest.mark.parametrize("format", JSON_FORMATS)
def test_a_cut_line_in_the_middle_is_an_error(write, format):
    lines = text_of(format, good_rows(format, 3)).splitlines()
    path = write("t", f"{lines[0]}\n{lines[1][:-12]}\n{lines[2]}\n")
    with pytest.raises(TraceError, match=r":2: not valid JSON"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows, trace.left_out[0].first_line) == (2, 1, 2)


@pytest.mark.parametrize("format", JSON_FORMATS)
def test_a_row_that_is_no_object(write, format):
    text = text_of(format, good_rows(format, 2)) + "[1, 2]\n"
    path = write("t", text)
    with pytest.raises(TraceError, match=r":3: expected a JSON object"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 2


@pytest.mark.parametrize("format", ALL)
def test_repeated_rows_are_kept_unless_they_have_the_same_id(write, format):
    rows = good_rows(format, 2)
    trace = read_trace(write("t", text_of(format, [rows[0], rows[0], rows[1]])))
    assert len(trace) == (2 if format == "dynamo" else 3)
    assert len(trace) + sum(entry.rows for entry in trace.left_out) == 3


@pytest.mark.parametrize("format", JSON_FORMATS)
def test_an_empty_object_is_a_wrong_row(write, format):
    rows = good_rows(format, 2)
    path = write("t", text_of(format, [*rows, {}]))
    if format == "tracelab":
        trace = read_trace(path)
    else:
        with pytest.raises(TraceError, match=r":3: "):
            read_trace(path)
        trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), sum(entry.rows for entry in trace.left_out)) == (2, 1)

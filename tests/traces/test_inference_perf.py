"""inference-perf: one object a request, `info` in the old and in the new layout."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
OLD = {"input_tokens": 5, "output_tokens": 3, "output_token_times": [10.25, 10.5, 11.0], "lora_adapter": None}
NEW = {
    "request_metrics": {"text": {"input_tokens": 5}},
    "response_metrics": {
        "output_tokens": 3, "chunk_times": [10.25, 10.5], "output_token_times": [10.25, 10.5, 11.0],
        "server_usage": {"prompt_tokens": 8, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}},
    },
}  # fmt: skip


def row(start=10.0, end=11.25, info=OLD, error=None, request=BODY):
    return {"start_time": start, "end_time": end, "request": request, "response": "", "info": info, "error": error}


def columns(trace):
    names = ("input_tokens", "output_tokens", "cached_tokens", "ttft_s", "e2e_s", "itl_s")
    return [tuple(found) for found in trace.rows.select(names).iter_rows()]


def test_the_old_layout(write):
    trace = read_trace(write("p.json", json.dumps([row()])))
    assert trace.format == "inference-perf"
    assert columns(trace) == [(5, 3, None, 0.25, 1.25, [0.25, 0.5])]
    assert trace.rows.select("prompt_text", "model").rows() == [("user:\nhi\n\nassistant:\n", "m")]


def test_the_new_layout_takes_the_servers_usage_and_says_so(write):
    trace = read_trace(write("p.json", json.dumps([row(info=NEW)])))
    assert columns(trace) == [(8, 4, 6, 0.25, 1.25, [0.25, 0.5])]
    assert any(
        "input lengths are those of the server's usage" in note and "8 against 5" in note for note in trace.notes
    )
    assert any("the number of streamed chunks is not the number of tokens" in note for note in trace.notes)


def test_without_streaming_there_is_no_first_token(write):
    trace = read_trace(write("p.json", json.dumps([row(info={"input_tokens": 5, "output_tokens": 3})])))
    assert columns(trace) == [(5, 3, None, None, 1.25, None)]


def test_failures_are_counted_and_order_is_that_of_arrival(write):
    failed = row(9.0, 9.0, None, {"error_type": "Timeout", "error_msg": "x"})
    trace = read_trace(
        write("p.json", json.dumps([row(12.0, 13.0, {"input_tokens": 1, "output_tokens": 1}), failed, row()]))
    )
    assert trace.rows["arrival_s"].to_list() == [0.0, 2.0]
    assert (trace.left_out[0].rows, len(trace)) == (1, 2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (row(end=9.0), "end_time goes back in time"),
        (row(info=OLD | {"output_token_times": [10.5, 10.25]}), "output_token_times goes back in time"),
        (row(start=10.5), "output_token_times goes back in time"),
        (row(info=OLD | {"output_token_times": 7}), "output_token_times is '7': expected a list"),
        (row(request="{"), "request is not a JSON object"),
        (row(start="now"), "start_time is text of 3 characters"),
    ],
)
def test_wrong_rows_are_named(jsonl, wrong, says):
    path = jsonl([row(), wrong])
    with pytest.raises(TraceError, match=rf"trace\.jsonl:2: {says}"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1


@pytest.mark.parametrize("name", ["stage_3", "summary"])
def test_the_aggregates_are_refused(shared, name):
    with pytest.raises(TraceError, match=r"report\.request_lifecycle\.per_request: true"):
        read_trace(shared / f"traces/inference-perf/{name}_lifecycle_metrics.json")

"""GenAI-Perf: raw requests and raw pieces of answers with times in ns."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

START = 1_796_026_501_033_450_273
PAYLOAD = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})


def piece(**delta):
    return {"response": f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"}


def request(start=START, at=(10, 25, 45, 46), outputs=None):
    given = [piece(role="assistant"), piece(content="I "), piece(content="do"), {"response": "data: [DONE]\n\n"}]
    return {
        "timestamp": start,
        "request_inputs": {"payload": PAYLOAD},
        "response_timestamps": [start + moment * 1_000_000 for moment in at],
        "response_outputs": given if outputs is None else outputs,
    }


def export(*experiments):
    return {
        "service_kind": "openai",
        "experiments": [{"experiment": {}, "requests": list(found)} for found in experiments],
    }


def test_the_first_token_is_the_first_text(jsonl):
    trace = read_trace(jsonl([export([request()])]))
    assert trace.format == "genai-perf"
    row = trace.rows.row(0, named=True)
    # Not 10 ms, when the role came, and the end mark at 46 ms is no token.
    assert (row["ttft_s"], row["e2e_s"], row["itl_s"]) == (0.025, 0.045, [0.02])
    assert (row["prompt_text"], row["output_text"], row["model"]) == ("user:\nhi\n\nassistant:\n", "I do", "m")
    assert (row["input_tokens"], row["output_tokens"]) == (None, None)


def test_several_events_in_a_piece_and_the_usage_at_the_end(jsonl):
    merged = {"response": piece(content="a")["response"] + piece(reasoning_content="b")["response"]}
    usage = {"response": 'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}'}
    trace = read_trace(jsonl([export([request(at=(5, 9), outputs=[merged, usage])])]))
    row = trace.rows.row(0, named=True)
    assert (row["output_text"], row["input_tokens"], row["output_tokens"]) == ("ab", 9, 4)
    assert any("1 of 1 requests the number of streamed chunks" in note for note in trace.notes)


def test_one_piece_is_not_streamed(jsonl):
    whole = {"response": json.dumps({"choices": [{"message": {"role": "assistant", "content": "yes"}}]})}
    row = read_trace(jsonl([export([request(at=(8,), outputs=[whole])])])).rows.row(0, named=True)
    assert (row["ttft_s"], row["e2e_s"], row["itl_s"], row["output_text"]) == (None, 0.008, None, "yes")


def test_experiments_are_segments_and_requests_without_text_failed(jsonl):
    silent = request(START + 5, at=(1,), outputs=[{"response": "data: [DONE]\n\n"}])
    never = request(START + 6, at=(), outputs=[])
    trace = read_trace(jsonl([export([request(), silent, never], [request(START + 10**12)])]))
    assert trace.rows["segment"].to_list() == [0, 1]
    assert trace.left_out[0].rows == 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (request(at=(1,)), "response_timestamps and response_outputs have different lengths"),
        (request(at=(10, 25, 20, 46)), "response_timestamps goes back in time"),
        (request() | {"timestamp": None}, "timestamp holds null"),
        (request() | {"response_timestamps": "x"}, "response_timestamps is text of 1 character"),
        (request() | {"request_inputs": {"payload": "{"}}, "payload is not a JSON object"),
    ],
)
def test_wrong_requests_are_named(jsonl, wrong, says):
    path = jsonl([export([request(), wrong])])
    with pytest.raises(TraceError, match=says):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1


def test_the_summary_is_refused(jsonl):
    summary = {
        "request_throughput": {"unit": "requests/sec", "avg": 2.0},
        "request_latency": {"unit": "ms", "avg": 9.0},
    }
    with pytest.raises(TraceError, match=r"GenAI-Perf summary: aggregates only; give the profile_export\.json"):
        read_trace(jsonl([summary]))

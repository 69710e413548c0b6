"""Databricks inference tables: two layouts, batch calls, samples of the traffic."""

from __future__ import annotations

import json

import pytest

from inferdoc.traces import read_trace
from inferdoc.traces.formats.calls import EMBEDDINGS
from inferdoc.traces.formats.databricks import SEVERAL_PROMPTS

REQUEST = {"messages": [{"role": "user", "content": "Write a haiku about the sea and its many moods."}]}
RESPONSE = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "Waves"}}],
            "usage": {"prompt_tokens": 21, "completion_tokens": 12}}  # fmt: skip


def row(n=0, request=REQUEST, response=RESPONSE, **other):
    return {
        "databricks_request_id": f"d{n}", "client_request_id": None, "request_time": f"2026-01-01T00:00:0{n}.500Z",
        "status_code": 200, "execution_duration_ms": 1500, "request": json.dumps(request),
        "response": json.dumps(response), "sampling_fraction": 1.0, "served_entity_id": "s",
        "requester": "someone@example.org",
    } | other  # fmt: skip


def older(n=0, **other):
    new = row(n)
    del new["request_time"], new["execution_duration_ms"]
    return new | {"timestamp_ms": 1_767_225_600_000 + 1000 * n, "execution_time_ms": 700} | other


def test_both_layouts(jsonl):
    trace = read_trace(jsonl([row(0), row(2)]))
    assert (trace.format, trace.duration_s, trace.time_unit) == ("databricks", 2.0, "wall clock")
    found = trace.rows.to_dicts()[0]
    assert (found["input_tokens"], found["output_tokens"], found["e2e_s"]) == (21, 12, 1.5)
    assert found["output_text"] == "Waves"
    trace = read_trace(jsonl([older(0), older(3)]))
    assert (trace.duration_s, trace.time_unit, trace.rows["e2e_s"][0]) == (3.0, "ms", pytest.approx(0.7))


def test_what_is_no_single_request(jsonl):
    rows = [
        row(0),
        row(1, {"prompt": ["a", "b"]}),
        row(2, {"input": "x"}, {"data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 3}}),
        row(3, status_code=429, response={"error_code": "REQUEST_LIMIT_EXCEEDED"}),
    ]
    trace = read_trace(jsonl(rows))
    found = {entry.reason: entry.rows for entry in trace.left_out}
    assert (len(trace), found[SEVERAL_PROMPTS], found[EMBEDDINGS], sum(found.values())) == (1, 1, 1, 3)
    assert "example.org" not in str(trace.notes)


def test_samples_are_said(jsonl):
    trace = read_trace(jsonl([row(n, sampling_fraction=0.1) for n in range(3)]))
    assert any("sampling_fraction 0.1" in note and "divide rates by it" in note for note in trace.notes)
    trace = read_trace(jsonl([row(0, sampling_fraction=0.1), row(1)]))
    assert any("sampling_fraction 0.1 to 1" in note for note in trace.notes)
    assert not any("sampling_fraction" in note for note in read_trace(jsonl([row(0)])).notes)


def test_chunks_of_a_streamed_answer(jsonl):
    chunks = [{"choices": [{"delta": {"content": "Wa"}}]}, {"choices": [], "usage": RESPONSE["usage"]}]
    found = read_trace(jsonl([row(0, response=chunks)])).rows.to_dicts()[0]
    assert (found["input_tokens"], found["output_tokens"], found["output_text"]) == (21, 12, None)

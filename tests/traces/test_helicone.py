"""Helicone's export: milliseconds, bodies that may be missing, sessions in a property."""

from __future__ import annotations

import json

from inferdoc.traces import read_trace
from inferdoc.traces.formats.calls import EMBEDDINGS, REPEATED


def row(n=0, **other):
    return {
        "request_id": f"r{n}", "request_created_at": f"2026-01-01 00:00:0{n}.5", "response_status": 200,
        "response_created_at": f"2026-01-01 00:00:0{n + 2}.5", "request_model": "m", "prompt_tokens": 50,
        "completion_tokens": 5, "delay_ms": 2000, "time_to_first_token": 300, "request_user_id": "someone@example.org",
        "request_properties": {"Helicone-Session-Id": "s"},
    } | other  # fmt: skip


def test_rows(jsonl):
    rows = [row(0), row(1, time_to_first_token=0, request_properties='{"helicone-session-id": "s"}'),
            row(2, response_status=500, completion_tokens=0),
            row(3, request_model="text-embedding-3"), row(0)]  # fmt: skip
    trace = read_trace(jsonl(rows))
    assert (trace.format, len(trace)) == ("helicone", 2)
    assert trace.rows["e2e_s"].to_list() == [2.0, 2.0]
    assert trace.rows["ttft_s"].to_list() == [0.3, None]
    assert trace.rows["arrival_s"].to_list() == [0.0, 1.0]
    assert trace.rows["session"].to_list() == ["s", "s"]
    found = {entry.reason: entry.rows for entry in trace.left_out}
    assert (found[EMBEDDINGS], found[REPEATED], sum(found.values())) == (1, 1, 3)
    assert "example.org" not in str(trace.notes)


def test_counts_and_texts_from_the_bodies(jsonl):
    request = {"model": "m", "messages": [{"role": "user", "content": "How long is a piece of string, roughly?" * 3}]}
    response = {
        "choices": [{"message": {"role": "assistant", "content": "Twice half."}}],
        "usage": {"prompt_tokens": 30, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 16}},
    }
    one = row(0, prompt_tokens=None, completion_tokens=None, request_body=request, response_body=json.dumps(response))
    found = read_trace(jsonl([one])).rows.to_dicts()[0]
    assert (found["input_tokens"], found["output_tokens"], found["cached_tokens"]) == (30, 4, 16)
    assert found["prompt_text"].startswith("user:\nHow long")
    assert found["output_text"] == "Twice half."


def test_csv(write):
    names = [name for name in row() if name != "request_properties"]
    text = "\n".join([",".join(names), *(",".join(str(row(n)[name]) for name in names) for n in range(3))])
    trace = read_trace(write("requests.csv", text))
    assert (trace.format, len(trace), trace.rows["ttft_s"][2]) == ("helicone", 3, 0.3)

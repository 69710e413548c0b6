"""LiteLLM: payloads of its callbacks and rows of its table, without what is no load on an engine."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.formats.calls import EMBEDDINGS, REPEATED
from inferdoc.traces.formats.litellm import FROM_CACHE, HEALTH, UNCOUNTED

START = 1_760_000_000.25


def payload(n=0, **other):
    return {
        "id": f"chatcmpl-{n}", "trace_id": f"t{n}", "call_type": "acompletion", "status": "success",
        "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "startTime": START + n,
        "completionStartTime": START + n + 0.5, "endTime": START + n + 3, "response_time": 3.0, "model": "m",
        "cache_hit": False, "messages": "redacted-by-litellm", "response": "redacted-by-litellm",
        "end_user": "someone@example.org",
    } | other  # fmt: skip


def spend(n=0, **other):
    return {
        "request_id": f"r{n}", "call_type": "acompletion", "api_key": "hash", "spend": 0.1, "total_tokens": 120,
        "prompt_tokens": 100, "completion_tokens": 20, "startTime": f"2026-01-01T00:00:0{n}.000Z",
        "endTime": f"2026-01-01T00:00:0{n + 2}.000Z", "completionStartTime": f"2026-01-01T00:00:0{n}.750Z",
        "model": "m", "cache_hit": "None", "messages": "{}", "response": "{}", "session_id": "",
    } | other  # fmt: skip


def left_out(trace):
    return {entry.reason: entry.rows for entry in trace.left_out}


def test_latencies_of_a_payload(jsonl):
    whole = payload(1, completionStartTime=START + 4)
    trace = read_trace(jsonl([payload(0), whole]))
    assert trace.format == "litellm"
    first, second = trace.rows.to_dicts()
    assert (first["ttft_s"], first["e2e_s"], first["arrival_s"]) == (0.5, 3.0, 0.0)
    assert (second["ttft_s"], second["e2e_s"], second["arrival_s"]) == (None, 3.0, 1.0)
    assert trace.content == "lengths only"
    assert "example.org" not in str(trace.notes)


def test_rows_of_the_table(jsonl):
    trace = read_trace(jsonl([spend(0), spend(1)]))
    assert (trace.format, trace.time_unit) == ("litellm", "wall clock")
    assert trace.rows["ttft_s"].to_list() == [0.75, 0.75]
    assert trace.rows["e2e_s"].to_list() == [2.0, 2.0]
    assert trace.rows["session"].null_count() == 2


def test_the_table_as_csv(write):
    rows = [spend(0), spend(1, cache_hit="True"), spend(2, call_type="aembedding", completion_tokens=0)]
    names = [name for name in rows[0] if name != "messages"]
    text = "\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)])
    trace = read_trace(write("spend.csv", text))
    assert (trace.format, len(trace)) == ("litellm", 1)
    assert left_out(trace) == {FROM_CACHE: 1, EMBEDDINGS: 1}


def test_what_is_no_load_on_an_engine(jsonl):
    rows = [
        payload(0),
        payload(1, cache_hit=True),
        payload(2, cache_hit="True"),
        payload(3, call_type="aembedding"),
        payload(4, call_type="aimage_generation"),
        payload(5, metadata={"tags": ["litellm-internal-health-check"]}),
        payload(6, prompt_tokens=0, completion_tokens=0),
        payload(7, completion_tokens=None),
        payload(0),
        payload(8, status="failure", error_str="secret", completion_tokens=0),
    ]
    trace = read_trace(jsonl(rows))
    assert len(trace) == 1
    found = left_out(trace)
    assert sum(found.values()) == 9
    assert (found[FROM_CACHE], found[EMBEDDINGS], found[HEALTH], found[UNCOUNTED], found[REPEATED]) == (2, 2, 1, 2, 1)
    assert any("1 failed rows" in note for note in trace.notes)
    assert "secret" not in str(trace.notes) + str(found)


def test_texts_and_cached_tokens(jsonl):
    messages = [{"role": "user", "content": "tell me a long story about a very small town " * 8}]
    response = {
        "choices": [{"message": {"role": "assistant", "content": "Once."}}],
        "usage": {"prompt_tokens_details": {"cached_tokens": 64}},
    }
    rows = [payload(0, messages=messages, response=response),
            payload(1, messages=json.dumps(messages), response=json.dumps(response), trace_id="t0")]  # fmt: skip
    trace = read_trace(jsonl(rows))
    assert trace.rows["cached_tokens"].to_list() == [64, 64]
    assert trace.rows["output_text"].to_list() == ["Once.", "Once."]
    assert trace.rows["session"].to_list() == ["t0", "t0"]


def test_a_call_that_ends_before_it_starts(jsonl):
    path = jsonl([payload(0), payload(1, endTime=START)])
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: endTime - startTime is '-1\.0'"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1


def test_broken_lines(write):
    good, cut = json.dumps(payload(0)), json.dumps(payload(1))[:80]
    trace = read_trace(write("log.jsonl", f"{good}\n{cut}"))
    assert left_out(trace) == {"cut off last line": 1}
    path = write("log.jsonl", f"{good}\n{cut}\n{json.dumps(payload(2))}\n")
    with pytest.raises(TraceError, match=r"log\.jsonl:2: not valid JSON"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 2


def test_only_failures(jsonl):
    with pytest.raises(TraceError, match="no request that can be used"):
        read_trace(jsonl([payload(n, status="failure", completion_tokens=0) for n in range(3)]))

"""Anthropic message batches: usage leaves out the cache; four kinds of result."""

from __future__ import annotations

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def asks(custom_id, **params):
    given = {"model": "c", "max_tokens": 64, "system": "be brief", "messages": [{"role": "user", "content": "hi"}]}
    return {"custom_id": custom_id, "params": given | params}


def result(custom_id, kind="succeeded", **usage):
    counts = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 30, "output_tokens": 5}
    message = {"model": "c-1", "content": [{"type": "text", "text": "yes"}], "usage": counts | usage}
    return {"custom_id": custom_id, "result": {"type": kind} | ({"message": message} if kind == "succeeded" else {})}


def test_requests_alone(jsonl):
    trace = read_trace(jsonl([asks("a"), asks("b", system=None)]))
    assert trace.format == "anthropic-batch"
    hi = "user:\nhi\n\nassistant:\n"
    assert trace.rows["prompt_text"].to_list() == ["system:\nbe brief\n\n" + hi, hi]
    assert trace.rows["output_tokens"].null_count() == 2


def test_the_whole_prompt_is_the_sum_of_three_counts(jsonl):
    rows = [result("a"), result("b", "errored"), result("c", "canceled"), result("d", "expired")]
    trace = read_trace(jsonl(rows))
    assert trace.rows.select("input_tokens", "cached_tokens", "output_tokens", "output_text", "model").rows() == [
        (240, 200, 5, "yes", "c-1")
    ]
    assert (trace.left_out[0].rows, trace.left_out[0].first_line) == (3, 2)


def test_both_are_joined(jsonl):
    trace = read_trace(jsonl([asks("a"), asks("b"), result("b"), result("a", "errored")]))
    assert trace.rows.select("row", "input_tokens", "output_tokens").rows() == [(2, 240, 5)]
    assert trace.rows["prompt_text"][0].startswith("system:\nbe brief")
    assert len(trace) + sum(entry.rows for entry in trace.left_out) == 4


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (asks("b", messages=None), "messages is not a list"),
        ({"custom_id": "b", "params": {"model": "c"}}, "params has no messages"),
        (result("b", "lost"), "result.type is text of 4 characters"),
        ({"custom_id": "b", "result": None}, "result.type is null"),
        (result("b", output_tokens="many"), "output_tokens is text of 4 characters"),
    ],
)
def test_wrong_lines_are_named(jsonl, wrong, says):
    path = jsonl([asks("a"), wrong])
    with pytest.raises(TraceError, match=rf"trace\.jsonl:2: {says}"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1

"""Langfuse: generations only, each once, and buckets of tokens that exclude each other or not."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.formats.langfuse import NESTED, OTHER_TYPES

FILES = ("claude-agent-2025-12-22", "langgraph-python-2025-08-22", "openai-agents-2025-09-30")


def observation(id, start, end, parent=None, usage=None, type="GENERATION", **other):
    return {
        "id": id, "traceId": "t", "type": type, "parentObservationId": parent,
        "startTime": f"2026-01-01T00:00:{start:06.3f}Z", "endTime": f"2026-01-01T00:00:{end:06.3f}Z", "model": "m",
        "usageDetails": {"input": 10, "output": 5, "total": 15} if usage is None else usage, "input": None,
        "output": None,
    } | other  # fmt: skip


def export(*observations):
    return {"trace": {"id": "t", "sessionId": "s"}, "observations": list(observations)}


def left_out(trace):
    return {entry.reason: entry.rows for entry in trace.left_out}


def test_every_file_against_a_plain_loop(shared):
    total = 0
    for name in FILES:
        path = shared / "traces" / "langfuse" / f"{name}.trace.json"
        observations = json.loads(path.read_text())["observations"]
        expected = sorted(
            (
                one["startTime"],
                one["usageDetails"]["input"],
                one["usageDetails"]["output"],
                one["latency"],
                one["model"],
            )
            for one in observations
            if one["type"] == "GENERATION"
        )
        trace = read_trace(path)
        first = datetime.fromisoformat(expected[0][0])
        assert trace.format == "langfuse"
        assert [
            (row["input_tokens"], row["output_tokens"], row["model"]) for row in trace.rows.iter_rows(named=True)
        ] == [(row[1], row[2], row[4]) for row in expected]
        for row, (start, _, _, latency, _) in zip(trace.rows.iter_rows(named=True), expected, strict=True):
            assert row["e2e_s"] == pytest.approx(latency)
            assert row["arrival_s"] == pytest.approx((datetime.fromisoformat(start) - first).total_seconds())
            assert row["ttft_s"] is None
        assert left_out(trace) == {OTHER_TYPES: len(observations) - len(expected)}
        total += len(trace)
    assert total == 8


def test_texts_of_an_openai_agent(shared):
    trace = read_trace(shared / "traces" / "langfuse" / "openai-agents-2025-09-30.trace.json")
    assert trace.rows["prompt_text"].to_list() == [
        "user:\nWhat's the weather in Tokyo?\n\nassistant:\n",
        "user:\nWhat's the weather in Tokyo?\n\nassistant:\n<tool_call>"
        '{"name": "get_weather", "arguments": "{\\"city\\":\\"Tokyo\\"}"}</tool_call>\n\n'
        "tool:\nThe weather in Tokyo is sunny.\n\nassistant:\n",
    ]
    assert any("1 of 2 calls have less than 2 bytes of text for a counted token" in note for note in trace.notes)


def test_a_generation_inside_a_generation_is_one_call(jsonl):
    spans = [
        observation("framework", 0, 9, "agent"),
        observation("agent", 0, 20, type="AGENT"),
        observation("chain", 1, 8, "framework", type="SPAN"),
        observation("sdk", 2, 7, "chain", usage={"input": 300, "output": 7}),
        observation("after", 9.5, 12, "framework", usage={"input": 400, "output": 8}),
    ]
    trace = read_trace(jsonl([export(*spans)]))
    assert trace.rows["input_tokens"].to_list() == [300, 400]
    assert trace.rows["session"].to_list() == ["s", "s"]
    assert left_out(trace) == {OTHER_TYPES: 2, NESTED: 1}


@pytest.mark.parametrize(
    ("usage", "whole", "cached"),
    [
        ({"input": 100, "input_cached_tokens": 900, "output": 10, "total": 1010}, 1000, 900),
        ({"input": 1000, "input_cached_tokens": 900, "output": 10, "total": 1010}, 1000, 900),
        ({"input": 100, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 50, "output": 10}, 1050, 900),
        ({"input": 1000, "prompt_details.cache_read": 0, "output": 10}, 1000, 0),
        ({"input": 1000, "output": 10, "output_reasoning_tokens": 4}, 1000, None),
    ],
)
def test_cached_tokens_inside_or_on_top(jsonl, usage, whole, cached):
    row = read_trace(jsonl([export(observation("a", 0, 1, usage=usage))])).rows.to_dicts()[0]
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"]) == (whole, cached, 10)


def test_both_conventions_are_said(jsonl):
    inside = observation("a", 0, 1, usage={"input": 1000, "input_cached_tokens": 900, "output": 10, "total": 1010})
    on_top = observation("b", 1, 2, usage={"input": 100, "input_cached_tokens": 900, "output": 10, "total": 1010})
    notes = read_trace(jsonl([export(inside, on_top)])).notes
    assert any(note.startswith("cached tokens of 1 calls are a part of usageDetails.input") for note in notes)
    assert any(note.startswith("cached tokens of 1 calls are added to usageDetails.input") for note in notes)


def test_a_broken_count_beside_cached_tokens(jsonl):
    rows = [observation("a", 0, 1, usage={"input": "many", "input_cached_tokens": 9}), observation("b", 1, 2)]
    path = jsonl([export(*rows)])
    with pytest.raises(
        TraceError, match=r"trace\.jsonl:1: usageDetails\.input is text of 4 characters: expected a whole number"
    ):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1


def test_observations_of_the_api_and_as_rows(jsonl):
    one = observation(
        "a", 0, 2, timeToFirstToken=0.5, level="DEFAULT", input=json.dumps([{"role": "user", "content": "x" * 40}])
    )
    bad = observation("b", 1, 2, level="ERROR")
    for rows in ([{"data": [one, bad], "meta": {}}], [one, bad]):
        trace = read_trace(jsonl(rows))
        assert (trace.format, len(trace)) == ("langfuse", 1)
        row = trace.rows.to_dicts()[0]
        assert (row["ttft_s"], row["e2e_s"]) == (0.5, 2.0)
        assert row["prompt_text"] == f"user:\n{'x' * 40}\n\nassistant:\n"


def test_first_token_from_its_time(jsonl):
    one = observation("a", 0, 2, completionStartTime="2026-01-01T00:00:00.250Z")
    assert read_trace(jsonl([export(one)])).rows["ttft_s"][0] == 0.25

"""Prompts of several turns: replies are unknown, so later prompts are known in part."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def test_the_shared_file_against_a_plain_loop(shared):
    path = shared / "traces/fastchat/mt_bench_question.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    trace = read_trace(path)
    assert (trace.format, len(records), len(trace), trace.left_out) == ("turns", 80, 160, ())
    expected = []
    for record in records:
        said = ""
        for turn, text in enumerate(record["turns"], 1):
            said += f"user:\n{text}\n\n"
            expected.append((str(record["question_id"]), turn, said + "assistant:\n"))
    assert trace.rows.select("session", "turn", "prompt_text").rows() == expected
    for column in ("input_tokens", "output_tokens", "arrival_s"):
        assert not trace.has(column)
    assert any("80 requests are later turns" in note and "lower bounds" in note for note in trace.notes)


def test_turns_of_aiperf(jsonl):
    turns = [
        {"text": "a", "timestamp": 1500, "output_length": 7},
        {"texts": ["b", "c"], "timestamp": 4000, "output_length": None},
    ]
    trace = read_trace(jsonl([{"session_id": "s", "turns": turns}]))
    assert trace.rows.select("arrival_s", "output_tokens", "session", "turn").rows() == [
        (0.0, 7, "s", 1),
        (2.5, None, "s", 2),
    ]
    assert trace.rows["prompt_text"][1] == "user:\na\n\nuser:\nbc\n\nassistant:\n"
    assert trace.time_unit == "ms"


def test_delays_after_replies_are_no_arrival_times(jsonl):
    trace = read_trace(jsonl([{"turns": [{"text": "a", "timestamp": 0}, {"text": "b", "delay": 100}]}]))
    assert (len(trace), trace.has("arrival_s")) == (2, False)
    assert any("1 of 2 turns have a timestamp" in note for note in trace.notes)


def test_images_are_counted(jsonl):
    trace = read_trace(jsonl([{"turns": [{"text": "a", "image": "http://x/1.png"}, "b"]}]))
    assert any("2 requests carry images" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        ({"a": 1}, "turns is an object"),
        (["a", 3], r"turns\[1\] has no text"),
        ([{"text": None}], r"turns\[0\] has no text"),
        ([{"text": 3}], "prompt is '3': expected text"),
    ],
)
def test_wrong_turns_are_named(jsonl, turns, says):
    path = jsonl([{"turns": ["q"]}, {"turns": turns}, {"turns": []}])
    with pytest.raises(TraceError, match=rf"trace\.jsonl:2: {says}"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), sum(entry.rows for entry in trace.left_out)) == (1, 2)

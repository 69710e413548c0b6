"""Prompts one a line, as benchmarks take them."""

from __future__ import annotations

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


@pytest.mark.parametrize("name", ["prompt", "text", "text_input"])
def test_a_prompt_under_each_name(jsonl, name):
    trace = read_trace(jsonl([{name: "once"}, {name: "twice"}]))
    assert (trace.format, trace.rows["prompt_text"].to_list()) == ("prompts", ["once", "twice"])
    # No tokenizer has counted anything: absent, not estimated.
    assert trace.rows["input_tokens"].null_count() == trace.rows["output_tokens"].null_count() == 2
    assert not trace.has("arrival_s")


def test_custom_of_vllm(jsonl):
    trace = read_trace(jsonl([{"prompt": "a", "output_tokens": 12}, {"prompt": "b"}]))
    assert trace.rows["output_tokens"].to_list() == [12, None]


def test_rows_of_trtllm_bench(jsonl):
    rows = [
        {"task_id": 0, "input_ids": [5, 6, 7], "output_tokens": 4},
        {"task_id": 1, "input_ids": [5, 6], "output_tokens": 2},
    ]
    trace = read_trace(jsonl(rows))
    assert trace.rows.select("prompt_ids", "input_tokens", "output_tokens").rows() == [
        ([5, 6, 7], 3, 4),
        ([5, 6], 2, 2),
    ]


def test_single_turn_of_aiperf_has_milliseconds(jsonl):
    rows = [
        {"text": "a", "timestamp": 1000, "output_length": 3},
        {"texts": ["b", "c"], "timestamp": 2500, "session_id": "s"},
    ]
    trace = read_trace(jsonl(rows))
    assert trace.rows.select("arrival_s", "prompt_text", "output_tokens", "session").rows() == [
        (0.0, "a", 3, None),
        (1.5, "bc", None, "s"),
    ]
    assert any("read as milliseconds" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [((1_700_000_000, 1_700_000_002), 2.0), (("2024-05-10 00:00:00", "2024-05-10 00:00:03"), 3.0)],
)
def test_other_clocks_are_not_taken_for_milliseconds(jsonl, times, seconds):
    trace = read_trace(jsonl([{"text": "a", "timestamp": time} for time in times]))
    assert trace.duration_s == seconds


def test_a_prompt_of_messages_and_one_with_an_image(jsonl):
    trace = read_trace(
        jsonl(
            [{"prompt": [{"role": "user", "content": "hi"}]}, {"text": "what?", "image": "data:image/png;base64,QQ=="}]
        )
    )
    first, second = trace.rows["prompt_text"]
    assert first == "user:\nhi\n\nassistant:\n"
    assert second.startswith("what?<")
    assert "base64" not in second


def test_delays_are_not_read(jsonl):
    assert any("delay" in note for note in read_trace(jsonl([{"text": "a", "delay": 5}])).notes)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prompt": None}, "no prompt"),
        ({"prompt": 7}, "prompt is '7': expected text"),
        ({"prompt": ["a", 7]}, "prompt is a list of 2: expected text"),
        ({"prompt": "a", "output_tokens": -1}, "output_tokens is '-1'"),
        ({"prompt": "a", "output_tokens": 2.5}, "output_tokens is '2.5'"),
        ({"prompt": "a", "output_tokens": 99_999_999}, "output_tokens is '99999999'"),
        ({"input_ids": ["a"]}, "input_ids is .*expected a list of whole numbers"),
        ({"input_ids": []}, "no prompt"),
    ],
)
def test_wrong_rows_are_named(jsonl, wrong, says):
    path = jsonl([{"prompt": "good", "output_tokens": "3"}, wrong])
    with pytest.raises(TraceError, match=rf"trace\.jsonl:2: {says}"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert (trace.rows["output_tokens"].to_list(), trace.left_out[0].rows) == ([3], 1)


def test_an_empty_answer_failed(jsonl):
    trace = read_trace(jsonl([{"prompt": "a", "output_tokens": 0}, {"prompt": "b", "output_tokens": 1}]))
    assert (len(trace), trace.left_out[0].first_line) == (1, 1)

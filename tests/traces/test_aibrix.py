"""AIBrix: one line a moment, several requests in it, names of fields with spaces."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def test_the_shared_file_against_a_plain_loop(shared):
    path = shared / "traces/aibrix/ten_requests.subset.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    trace = read_trace(path)
    assert (trace.format, trace.time_unit, len(trace)) == ("aibrix", "ms", 3)
    flat = [(record["timestamp"], request) for record in records for request in record["requests"]]
    assert trace.rows["arrival_s"].to_list() == pytest.approx([(time - flat[0][0]) / 1e3 for time, _ in flat])
    assert trace.rows["input_tokens"].to_list() == [request["Prompt Length"] for _, request in flat]
    assert trace.rows["output_tokens"].to_list() == [request["Output Length"] for _, request in flat]
    assert trace.rows["prompt_text"].to_list() == [request["prompt"] for _, request in flat]


def test_several_requests_at_a_moment_and_newer_names(jsonl):
    rows = [
        {"timestamp": 2500, "requests": [{"prompt_length": 9, "output_length": None, "session_id": "s"}]},
        {
            "timestamp": 500,
            "requests": [{"Prompt Length": 7, "Output Length": 2}, {"prompt_length": 8, "output_length": 1}],
        },
        {"timestamp": 900, "requests": []},
    ]
    trace = read_trace(jsonl(rows))
    assert trace.rows.select("arrival_s", "input_tokens", "output_tokens", "session").rows() == [
        (0.0, 7, 2, None),
        (0.0, 8, 1, None),
        (2.0, 9, None, "s"),
    ]
    # Two lengths of one line are two rows: their made-up ids are drawn by row.
    assert trace.rows["row"].n_unique() == 3
    assert (trace.left_out[0].reason, trace.left_out[0].first_line) == ("moments without requests", 3)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"timestamp": 1, "requests": "x"}, "requests is text of 1 character"),
        ({"timestamp": 1, "requests": [3]}, "a request is '3'"),
        ({"timestamp": 1, "requests": [{"prompt_length": 3, "prompt": 4}]}, "prompt is '4'"),
        (
            {"timestamp": "x", "requests": [{"prompt_length": 3, "output_length": 1}]},
            "timestamp is text of 1 character",
        ),
        ({"timestamp": 1, "requests": [{"prompt_length": -3, "output_length": 1}]}, "Prompt Length is '-3'"),
    ],
)
def test_wrong_moments_are_named(jsonl, wrong, says):
    path = jsonl([{"timestamp": 0, "requests": [{"prompt_length": 3, "output_length": 1}]}, wrong])
    with pytest.raises(TraceError, match=rf"trace\.jsonl:2: {says}"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1

"""GuideLLM: two schemas, several benchmarks in a file, samples that may be missing."""

from __future__ import annotations

import json
import math

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def test_the_shared_file_of_0_8_against_a_plain_loop(shared):
    path = shared / "traces/guidellm/benchmarks_v0.8.1.json"
    requests = json.loads(path.read_text())["benchmarks"][0]["requests"]
    trace = read_trace(path)
    assert (trace.format, len(trace), trace.left_out[0].rows) == ("guidellm", 79, 1)
    good = sorted(requests["successful"], key=lambda request: request["request_start_time"])
    first = good[0]["request_start_time"]
    for row, request in zip(trace.rows.iter_rows(named=True), good, strict=True):
        assert math.isclose(row["arrival_s"], request["request_start_time"] - first, abs_tol=1e-6)
        assert (row["input_tokens"], row["output_tokens"]) == (request["prompt_tokens"], request["output_tokens"])
        assert row["cached_tokens"] == request["input_metrics"]["cached_tokens"]
        assert row["session"] == request["info"]["conversation_id"]
        assert row["turn"] == request["info"]["turn_index"] + 1
        assert math.isclose(row["ttft_s"] * 1e3, request["time_to_first_token_ms"])
        assert row["e2e_s"] == request["request_latency"]
        said = json.loads(request["request_args"])["body"]["messages"]
        assert row["prompt_text"].count("user:\n") == sum(message["role"] == "user" for message in said)
        assert row["output_text"] == request["output"]
    # 39 conversations have a second turn, which repeats the first and its answer.
    assert any("39 of 39 later turns begin with the prompt" in note for note in trace.notes)


def test_the_shared_file_of_0_3(shared):
    path = shared / "traces/guidellm/benchmarks_stripped_v0.3.json"
    (request,) = json.loads(path.read_text())["benchmarks"][0]["requests"]["successful"]
    trace = read_trace(path)
    assert trace.rows.select("input_tokens", "output_tokens", "e2e_s", "prompt_text").rows() == [
        (request["prompt_tokens"], request["output_tokens"], request["request_latency"], request["prompt"])
    ]
    # Its scheduler counts the one request that the fixture keeps.
    assert not any("requests that ran" in note for note in trace.notes)


def test_a_report_without_samples_says_so(shared):
    with pytest.raises(TraceError, match=r"no samples of its requests \(4 ran\); .*--sample-requests"):
        read_trace(shared / "traces/guidellm/guidellm_report_v2_no_request_samples.json")


def test_the_csv_is_refused(shared):
    with pytest.raises(TraceError, match=r"GuideLLM CSV: aggregates only .*benchmarks\.json"):
        read_trace(shared / "traces/guidellm/benchmarks_v0.8.1.csv")


def request(start, **changes):
    return {
        "request_start_time": start, "prompt_tokens": 9, "output_tokens": 2, "request_latency": 0.5,
        "time_to_first_token_ms": 125.0, "output": "a b", "info": {"conversation_id": "c", "turn_index": 0},
        "request_args": json.dumps({"body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]}}),
    } | changes  # fmt: skip


def report(*benchmarks):
    return {
        "benchmarks": [
            {
                "requests": {"successful": good, "errored": bad, "incomplete": cut, "total": None},
                "scheduler_metrics": {"requests_made": {"total": made}},
            }
            for good, bad, cut, made in benchmarks
        ]
    }


def test_a_sweep_has_a_segment_for_each_benchmark_and_counts_every_kind(jsonl):
    failed = request(3.0, output_tokens=None, request_args=None)
    first = ([request(1.0), request(2.0)], [failed], [request(4.0)], 4)
    trace = read_trace(jsonl([report(first, ([request(50.0)], [], [], 30))]))
    assert trace.rows["segment"].to_list() == [0, 0, 1]
    assert trace.rows["prompt_text"].to_list() == ["user:\nhi\n\nassistant:\n"] * 3
    assert sorted(entry.rows for entry in trace.left_out) == [1, 1]
    assert any("incomplete requests" in entry.reason for entry in trace.left_out)
    assert any("run 2: the report holds 1 of the 30 requests that ran" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"request_args": "{"}, "request_args is not a JSON object"),
        ({"time_to_first_token_ms": "fast"}, "time_to_first_token_ms is text of 4 characters"),
        ({"prompt_tokens": -4}, "prompt_tokens is '-4'"),
    ],
)
def test_wrong_requests_are_named(jsonl, changes, says):
    path = jsonl([report(([request(1.0), request(2.0, **changes)], [], [], 2))])
    with pytest.raises(TraceError, match=says):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1


@pytest.mark.parametrize("wrong", [{"requests": None}, {"requests": {"successful": 3}}, 7])
def test_a_benchmark_without_requests_is_named(jsonl, wrong):
    good = report(([request(1.0)], [], [], 1))
    path = jsonl([{"benchmarks": [*good["benchmarks"], wrong]}])
    with pytest.raises(TraceError, match="a benchmark without lists of requests"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1

"""llmperf: rows without times; soft failures carry a sum where a mean belongs."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


@pytest.mark.parametrize(("name", "failed"), [("anyscale", 0), ("bedrock", 49), ("groq", 0)])
def test_the_shared_files_against_a_plain_loop(shared, name, failed):
    path = shared / f"traces/llmperf/{name}_70b_individual_responses.json"
    good = [row for row in json.loads(path.read_text()) if row["error_code"] is None]
    trace = read_trace(path)
    assert (trace.format, len(trace)) == ("llmperf", 150 - failed)
    assert sum(entry.rows for entry in trace.left_out) == failed
    assert trace.rows["ttft_s"].to_list() == [row["ttft_s"] for row in good]
    assert trace.rows["e2e_s"].to_list() == [row["end_to_end_latency_s"] for row in good]
    assert trace.rows["output_tokens"].to_list() == [row["number_output_tokens"] for row in good]
    assert not trace.has("arrival_s")
    assert not trace.has("itl_s")


def row(**changes):
    return {
        "error_code": None, "error_msg": "", "ttft_s": 0.5, "end_to_end_latency_s": 1.5, "number_input_tokens": 550,
        "number_output_tokens": 150, "inter_token_latency_s": 0.01,
    } | changes  # fmt: skip


def test_soft_and_hard_failures_are_counted_apart(jsonl):
    hard = row(error_code=500, ttft_s=0, end_to_end_latency_s=0, number_output_tokens=0)
    trace = read_trace(jsonl([row(), row(error_code=-100), hard, row(ttft_s=0)]))
    assert trace.rows.select("row", "ttft_s").rows() == [(1, 0.5), (4, None)]
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(1, 2), (1, 3)]


def test_only_soft_failures(jsonl):
    with pytest.raises(TraceError, match=r"no request that can be used .*1 answers with too few tokens"):
        read_trace(jsonl([row(error_code=-100)]))


def test_wrong_latencies_are_named(jsonl):
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: ttft_s is text of 4 characters: expected a number"):
        read_trace(jsonl([row(), row(ttft_s="fast")]))


def test_the_summary_is_refused(shared):
    with pytest.raises(TraceError, match=r"aggregates only; give the .*individual_responses"):
        read_trace(shared / "traces/llmperf/bedrock_70b_summary.json")

"""Dynamo request traces: events in order of their end, an envelope, hashes over the whole range of 64 bits."""

from __future__ import annotations

import gzip
import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

BIG = 14879255164371896291
"""Above 2**63, and not a number that a double can hold."""


def event(at, *, took=1000, tokens=128, hashes=(BIG, 7), size=64, request=None, **other):
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": at + took,
        "event_source": "dynamo",
        "request": {
            "request_id": f"r{at}", "output_tokens": 16, "request_received_ms": at,
            "replay": {"trace_block_size": size, "input_length": tokens, "input_sequence_hashes": list(hashes)},
        } | (request or {}),
    } | other  # fmt: skip


def test_rows_without_context(jsonl):
    trace = read_trace(jsonl([event(1777312800000), event(1777312800250)]))
    assert (trace.format, trace.time_unit, trace.block_size) == ("dynamo", "ms", 64)
    assert trace.rows.select("arrival_s", "input_tokens", "output_tokens", "e2e_s", "session").rows() == [
        (0.0, 128, 16, 1.0, None),
        (0.25, 128, 16, 1.0, None),
    ]
    assert trace.rows["prefix_blocks"].to_list() == [[BIG, 7], [BIG, 7]]
    assert any("best effort" in note for note in trace.notes)


def test_hashes_that_a_double_would_merge_stay_apart(jsonl):
    trace = read_trace(jsonl([event(0, hashes=(2**64 - 1, 2**53)), event(9, hashes=(2**64 - 2, 2**53 + 1))]))
    assert trace.rows["prefix_blocks"].to_list() == [[2**64 - 1, 2**53], [2**64 - 2, 2**53 + 1]]


def test_rows_of_agents(jsonl):
    full = {
        "model": "m", "input_tokens": 128, "cached_tokens": 64, "ttft_ms": 120.5, "total_time_ms": 900,
        "kv_hit_rate": 0.5, "finish_reason_metadata": {"finish_reason": "tool_calls"},
    }  # fmt: skip
    context = {"session_id": "run:a", "parent_session_id": "run"}
    trace = read_trace(jsonl([event(0, request=full, agent_context=context)]))
    row = trace.rows.row(0, named=True)
    assert (row["cached_tokens"], row["ttft_s"], row["e2e_s"], row["model"]) == (64, 0.1205, 0.9, "m")
    assert (row["session"], row["status"]) == ("run:a", "ok")
    assert any("1 requests are of sessions that another session started" in note for note in trace.notes)


def test_order_of_the_end_is_not_that_of_arrival(jsonl):
    trace = read_trace(jsonl([event(5000, took=100), event(1000, took=9000)]))
    assert trace.rows["row"].to_list() == [2, 1]
    assert trace.rows["arrival_s"].to_list() == [0.0, 4.0]
    assert any("not in order of arrival" in note for note in trace.notes)


def test_an_envelope_and_compressed_shards(write):
    rows = [{"topic": "t", "payload": event(0)}, event(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    trace = read_trace(write("dynamo-request-trace.000000.jsonl.gz", gzip.compress(text.encode())))
    assert (trace.format, len(trace)) == ("dynamo", 2)


def test_what_is_no_request_is_counted(jsonl):
    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {"tool_call_id": "x"}}
    payload = tool | {"event_type": "request_payload"}
    rows = [tool, event(0), payload, tool | {"event_type": "tool_error"}, event(0), tool | {"event_type": "new"}]
    trace = read_trace(jsonl(rows))
    assert {(entry.reason.split(",")[0], entry.rows, entry.first_line) for entry in trace.left_out} == {
        ("tool events", 2, 1),
        ("events with the payload of a request", 1, 3),
        ("earlier rows of a request that was written more than once", 1, 2),
        ("events of a kind that is no request", 1, 6),
    }
    assert len(trace) + sum(entry.rows for entry in trace.left_out) == len(rows)


def test_canceled_requests_are_failures(jsonl):
    canceled = {"finish_reason_metadata": {"finish_reason": "cancelled"}}
    trace = read_trace(jsonl([event(0), event(1, request=canceled)]))
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(1, 2)]


def test_times_follow_from_each_other(jsonl):
    rows = [
        event(1000, request={"request_received_ms": None, "total_time_ms": 400}),
        event(2000, request={"total_time_ms": 0}),
    ]
    trace = read_trace(jsonl(rows))
    # Ended at 2,000 after 400 ms: arrived at 1,600.
    assert trace.rows["arrival_s"].to_list() == [0.0, 0.4]
    assert trace.rows["e2e_s"].to_list() == [0.4, None]


def test_the_length_of_the_hashes_wins(jsonl):
    trace = read_trace(jsonl([event(0, request={"input_tokens": 500})]))
    assert trace.rows["input_tokens"].to_list() == [128]
    assert any("1 requests have an input_length that is not their input_tokens" in note for note in trace.notes)


def test_shards_of_two_block_sizes_are_refused(jsonl):
    with pytest.raises(TraceError, match=r"trace_block_size has 2 values \(32, 64\)"):
        read_trace(jsonl([event(0), event(1, tokens=64, size=32)]))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (event(1, hashes=(1, 2, 3)), "input_sequence_hashes has 3 ids for input_tokens 128"),
        (event(1, hashes=(1.0, 2)), "input_sequence_hashes is"),
        (event(1, hashes=(-1, 2)), "input_sequence_hashes is"),
        ({"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": 5}, "request is '5'"),
        ({"something": "else"}, "no event of a schema dynamo.*"),
        (event(1, request={"cached_tokens": 129}), "cached_tokens is 129 of input_tokens 128"),
        (event(1, request={"ttft_ms": -5}), "ttft_ms is '-5'"),
    ],
)
def test_wrong_events_are_named(jsonl, bad, says):
    path = jsonl([event(0), bad])
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}:2: {says}")
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows, trace.left_out[0].first_line) == (1, 1, 2)

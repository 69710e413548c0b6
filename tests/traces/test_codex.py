"""Codex rollouts: token counts that repeat, and sessions that repeat the events of another."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.formats.codex import EMITTED_AGAIN, OTHER_EVENTS, REPLAYED


def event(second, kind, /, **payload):
    return {"timestamp": f"2026-01-01T00:00:{second:02d}.000Z", "type": kind, "payload": payload}


def meta(second, id, **other):
    return event(second, "session_meta", id=id, cwd="/home/someone", **other)


def asked(second):
    return event(second, "event_msg", type="user_message", message="secret words")


def said(second):
    return event(second, "response_item", type="message", role="assistant", content=[])


def usage(input, cached, output, reasoning=0):
    return {"input_tokens": input, "cached_input_tokens": cached, "output_tokens": output,
            "reasoning_output_tokens": reasoning, "total_tokens": input + output}  # fmt: skip


def counted(second, total, last):
    info = {"total_token_usage": usage(*total), "last_token_usage": usage(*last) if last else None}
    return event(second, "event_msg", type="token_count", info=info)


def left_out(trace):
    return {entry.reason: entry.rows for entry in trace.left_out}


def test_the_shared_rollout_against_a_plain_loop(shared):
    path = shared / "traces" / "tracelab" / "codex_rollout.jsonl"
    expected, total, latest, arrival, lines = [], None, None, None, 0
    for record in map(json.loads, path.read_text().splitlines()):
        lines += 1
        payload = record["payload"]
        kind, role = payload.get("type"), payload.get("role")
        if kind in ("user_message", "function_call_output") or (kind == "message" and role != "assistant"):
            latest = record["timestamp"]
        elif kind in ("reasoning", "agent_message", "function_call", "message") and arrival is None:
            arrival = latest
        elif kind == "token_count" and payload["info"] and payload["info"]["total_token_usage"] != total:
            total = payload["info"]["total_token_usage"]
            expected.append((arrival, record["timestamp"], payload["info"]["last_token_usage"]))
            arrival = None
    trace = read_trace(path)
    assert (trace.format, len(trace)) == ("codex", 9)
    first = datetime.fromisoformat(expected[0][0])
    for row, (start, end, counts) in zip(trace.rows.iter_rows(named=True), expected, strict=True):
        assert row["input_tokens"] == counts["input_tokens"]
        assert row["cached_tokens"] == counts["cached_input_tokens"]
        assert row["output_tokens"] == counts["output_tokens"]
        started = datetime.fromisoformat(start)
        assert row["arrival_s"] == pytest.approx((started - first).total_seconds(), abs=1e-6)
        assert row["e2e_s"] == pytest.approx((datetime.fromisoformat(end) - started).total_seconds(), abs=1e-6)
        assert row["model"] == "gpt-5.4"
    assert sum(left_out(trace).values()) == lines - 9
    assert trace.rows["input_tokens"].sum() == 95819


def test_events_written_again_count_once(jsonl):
    rows = [
        meta(0, "s"), event(0, "turn_context", model="m"), asked(1), said(3),
        counted(4, (100, 60, 10, 4), (100, 60, 10, 4)),
        counted(5, (100, 60, 10, 4), (100, 60, 10, 4)), event(6, "event_msg", type="token_count", info=None),
        asked(7), said(8), counted(9, (220, 150, 15, 4), (120, 90, 5)), counted(9, (100, 60, 10, 4), (100, 60, 10, 4)),
    ]  # fmt: skip
    trace = read_trace(jsonl(rows))
    found = [(row["input_tokens"], row["cached_tokens"], row["output_tokens"]) for row in trace.rows.to_dicts()]
    assert found == [(100, 60, 10), (120, 90, 5)]
    assert left_out(trace) == {OTHER_EVENTS: 7, EMITTED_AGAIN: 2}
    assert trace.rows["e2e_s"].to_list() == [3.0, 2.0]


def test_without_the_calls_own_counts_the_totals_differ_by_them(jsonl):
    rows = [meta(0, "s"), asked(1), said(2), counted(3, (100, 60, 10), None), said(5), counted(6, (250, 160, 30), None)]
    trace = read_trace(jsonl(rows))
    assert trace.rows["input_tokens"].to_list() == [100, 150]
    assert trace.rows["cached_tokens"].to_list() == [60, 100]
    assert trace.rows["output_tokens"].to_list() == [10, 20]


PARENT = [meta(0, "p"), asked(1), said(2), counted(3, (100, 0, 10), (100, 0, 10)), asked(4), said(5),
          counted(6, (250, 90, 30), (150, 90, 20))]  # fmt: skip


@pytest.mark.parametrize("mark", [{"forked_from_id": "p"}, {"source": {"subagent": "review"}}])
def test_a_fork_repeats_its_parents_events_at_new_times(jsonl, mark):
    fork = [
        meta(20, "f", **mark), meta(20, "p"), asked(20), said(20), counted(20, (100, 0, 10), (100, 0, 10)), said(20),
        counted(20, (250, 90, 30), (150, 90, 20)), asked(21), said(23), counted(24, (450, 230, 70), (200, 140, 40)),
    ]  # fmt: skip
    trace = read_trace(jsonl([*PARENT, *fork]))
    rows = trace.rows.to_dicts()
    assert [(row["input_tokens"], row["session"], row["arrival_s"]) for row in rows] == [
        (100, "p", 0.0), (150, "p", 3.0), (200, "f", 20.0),
    ]  # fmt: skip
    assert left_out(trace)[REPLAYED] == 2


def test_other_sessions_with_equal_counts_are_calls(jsonl):
    """Without a mark of a fork, equal counts at another time are a coincidence: two short sessions that begin alike."""
    other = [meta(30, "q"), asked(31), said(32), counted(33, (100, 0, 10), (100, 0, 10))]
    trace = read_trace(jsonl([*PARENT, *other]))
    assert trace.rows["session"].to_list() == ["p", "p", "q"]


def test_a_copied_file_is_read_once(jsonl):
    trace = read_trace(jsonl([*PARENT, *PARENT]))
    assert len(trace) == 2
    assert left_out(trace)[REPLAYED] == 2


def test_a_version_that_counts_nothing(jsonl):
    with pytest.raises(TraceError, match=f"no request that can be used.*{OTHER_EVENTS}"):
        read_trace(jsonl([meta(0, "s"), asked(1), said(2)]))


def test_nothing_of_the_user_is_told(jsonl):
    trace = read_trace(jsonl(PARENT))
    assert trace.content == "lengths only"
    assert "secret" not in str(trace.notes)
    assert "someone" not in str(trace.notes) + str(trace.left_out)

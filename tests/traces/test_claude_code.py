"""Claude Code sessions: a call on several lines, in several files, in a session or a sub-agent of it."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.formats.claude_code import NO_USAGE, OTHER_LINES, REPEATED_LINES, SYNTHETIC


def line(type, second, message=None, session="s", **other):
    return {
        "type": type, "timestamp": f"2026-01-01T00:00:{second:02d}.000Z", "sessionId": session, "isSidechain": False,
        "cwd": "/home/someone/project", "uuid": f"{type}{second}{session}", "message": message,
    } | other  # fmt: skip


def user(second, **other):
    return line("user", second, {"role": "user", "content": "secret words"}, **other)


def answer(id, second, output=10, usage=True, model="claude-x", **other):
    message = {"id": id, "model": model, "role": "assistant", "content": [{"type": "text", "text": "secret words"}]}
    if usage:
        message["usage"] = {"input_tokens": 3, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100,
                            "output_tokens": output}  # fmt: skip
    return line("assistant", second, message, **other)


def left_out(trace):
    return {entry.reason: entry.rows for entry in trace.left_out}


def test_the_shared_session_against_a_plain_loop(shared):
    path = shared / "traces" / "tracelab" / "claude_code_session.jsonl"
    last, arrival, asked, lines = {}, {}, None, 0
    for record in map(json.loads, path.read_text().splitlines()):
        lines += 1
        if record["type"] == "user":
            asked = record["timestamp"]
        elif record["type"] == "assistant":
            arrival.setdefault(record["message"]["id"], asked)
            last[record["message"]["id"]] = record
    trace = read_trace(path)
    assert (trace.format, len(trace)) == ("claude-code", 10)
    first = datetime.fromisoformat(min(arrival.values()))
    for row, (id, record) in zip(trace.rows.iter_rows(named=True), last.items(), strict=True):
        usage = record["message"]["usage"]
        assert row["cached_tokens"] == usage["cache_read_input_tokens"]
        assert row["output_tokens"] == usage["output_tokens"]
        assert row["input_tokens"] == (
            usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        )
        started, ended = (datetime.fromisoformat(time) for time in (arrival[id], record["timestamp"]))
        assert row["arrival_s"] == pytest.approx((started - first).total_seconds(), abs=1e-6)
        assert row["e2e_s"] == pytest.approx((ended - started).total_seconds(), abs=1e-6)
    assert left_out(trace)[REPEATED_LINES] == 25 - 10
    assert sum(left_out(trace).values()) == lines - 10


def test_the_last_line_of_a_call_counts_in_any_file(jsonl):
    """A resumed session copies the history; the output grows while it is streamed."""
    rows = [
        user(0), answer("a", 2, output=1), answer("a", 5, output=40), user(10), answer("b", 12),
        user(0, session="resumed"), answer("a", 5, output=40, session="resumed"), user(20, session="resumed"),
        answer("c", 24, session="resumed"),
    ]  # fmt: skip
    trace = read_trace(jsonl(rows))
    assert trace.rows["output_tokens"].to_list() == [40, 10, 10]
    assert trace.rows["arrival_s"].to_list() == [0.0, 10.0, 20.0]
    assert trace.rows["session"].to_list() == ["s", "s", "resumed"]
    assert trace.rows["e2e_s"].to_list() == [5.0, 2.0, 4.0]
    assert left_out(trace) == {OTHER_LINES: 4, REPEATED_LINES: 2}


def test_a_folder_of_sessions_is_one_trace(tmp_path):
    """Line numbers of a second file are its own; its copy of the first file's call is none."""
    first = [user(0), answer("a", 2), {"type": "mode", "sessionId": "s"}]
    second = [user(0, session="r"), answer("a", 2, session="r"), user(5, session="r"), answer("b", 6, session="r")]
    for name, rows in (("1.jsonl", first), ("2.jsonl", second)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(tmp_path)
    assert trace.rows["session"].to_list() == ["s", "r"]
    assert left_out(trace) == {OTHER_LINES: 4, REPEATED_LINES: 1}
    assert next(entry for entry in trace.left_out if entry.reason == REPEATED_LINES).places == ["1.jsonl:2"]


def test_sub_agents_are_sessions_of_their_own(jsonl):
    """Two of them run at once, beside the main session: each has its own last input."""

    def of(parent, own, **other):
        return {"isSidechain": True, "parentUuid": parent, "uuid": own} | other

    rows = [
        user(0), user(1, **of(None, "p")), user(3, **of(None, "q")), answer("a", 5, **of("p", "p1")),
        answer("b", 6, **of("q", "q1")), user(8, **of("p1", "p2")), answer("c", 9, **of("p2", "p3")),
        answer("main", 12), user(13, isSidechain=True, agentId="z"), answer("d", 15, isSidechain=True, agentId="z"),
    ]  # fmt: skip
    found = {row["arrival_s"]: row["session"] for row in read_trace(jsonl(rows)).rows.to_dicts()}
    assert found == {0.0: "s", 1.0: "s/p", 3.0: "s/q", 8.0: "s/p", 13.0: "s/z"}


def test_local_messages_and_lines_without_usage(jsonl):
    rows = [
        user(0),
        answer("a", 1),
        answer("e", 2, model="<synthetic>"),
        answer("f", 3, usage=False),
        {"type": "summary", "leafUuid": "x"},
    ]
    trace = read_trace(jsonl(rows))
    assert left_out(trace) == {OTHER_LINES: 2, SYNTHETIC: 1, NO_USAGE: 1}


def test_nothing_of_the_user_is_told(jsonl):
    trace = read_trace(jsonl([user(0), answer("a", 1)]))
    assert trace.content == "lengths only"
    told = str(trace.notes) + str(trace.left_out)
    assert "secret" not in told
    assert "someone" not in told
    assert any("no whole prompts" in note for note in trace.notes)


def test_a_line_cut_off_while_it_was_written(write):
    good = "\n".join(json.dumps(row) for row in (user(0), answer("a", 1)))
    trace = read_trace(write("s.jsonl", good + '\n{"type": "assistant", "message": {"content": "secret wor'))
    assert len(trace) == 1
    assert left_out(trace) == {OTHER_LINES: 1, "cut off last line": 1}
    assert "secret" not in str(trace.left_out)


def test_a_negative_count(jsonl):
    with pytest.raises(TraceError, match=r":2: usage\.output_tokens is '-1'"):
        read_trace(jsonl([user(0), answer("a", 1, output=-1)]))


def test_answers_without_a_question_arrive_when_they_are_written(jsonl):
    trace = read_trace(jsonl([answer("a", 4), user(6), answer("b", 9)]))
    assert trace.rows["arrival_s"].to_list() == [0.0, 2.0]
    assert trace.rows["e2e_s"].to_list() == [None, 3.0]

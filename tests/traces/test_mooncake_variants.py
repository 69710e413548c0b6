"""Mooncake with delays, text, dependencies between requests, and rows that carry new tokens only."""

from __future__ import annotations

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import ideal_hits, read_trace


def turn(session, tokens=1000, ids=(1, 2), **other):
    return {"session_id": session, "input_length": tokens, "output_length": 10, "hash_ids": list(ids)} | other


def test_later_turns_with_a_delay_are_a_closed_loop(jsonl):
    rows = [
        turn("a", timestamp=5),
        turn("b", timestamp=900),
        turn("a", 1500, (1, 2, 3), delay=2000),
        turn("b", delay_ms=7),
    ]
    trace = read_trace(jsonl(rows))
    assert (trace.format, trace.duration_s, trace.rate_per_s, trace.time_unit) == ("mooncake-agentic", None, None, None)
    assert trace.rows.select("row", "session", "turn").rows() == [(1, "a", 1), (2, "b", 1), (3, "a", 2), (4, "b", 2)]
    assert any("2 of 4 requests have a time of their own" in note for note in trace.notes)
    assert (trace.block_size, trace.rows["prefix_blocks"][2].to_list()) == (512, [1, 2, 3])


def test_a_delay_of_zero_is_a_closed_loop(jsonl):
    trace = read_trace(jsonl([turn("a", timestamp=5), turn("a", delay=0)]))
    assert (len(trace), trace.duration_s) == (2, None)


def test_delays_beside_times_keep_the_times(jsonl):
    rows = [turn("a", timestamp=0), turn("a", timestamp=1500, delay=900)]
    assert read_trace(jsonl(rows)).rows["arrival_s"].to_list() == [0.0, 1.5]


def test_a_missing_time_without_a_loop_is_a_wrong_row(jsonl):
    rows = [turn("a", timestamp=0, text_input="x", hash_ids=None), turn("a", text_input="y", hash_ids=None)]
    with pytest.raises(TraceError, match=":2: timestamp is missing, though other rows have it"):
        read_trace(jsonl(rows))


def test_texts_messages_and_payloads(jsonl):
    message = [{"role": "user", "content": "hi"}]
    rows = [
        {"timestamp": 0, "text_input": "hello", "output_length": 4},
        {"timestamp": 10, "messages": message, "output_length": 4, "session_id": "s", "delay": 0},
        {"timestamp": 20, "payload": {"messages": message, "tools": [{"name": "f"}]}, "output_length": 4},
        {"timestamp": 30, "payload": {"prompt": "raw"}, "output_length": 4},
        {"timestamp": 40, "input_length": 50, "output_length": 4},
    ]
    trace = read_trace(jsonl(rows))
    assert trace.format == "mooncake-agentic"
    assert trace.rows["prompt_text"].to_list() == [
        "hello",
        "user:\nhi\n\nassistant:\n",
        'tools:\n[{"name": "f"}]\n\nuser:\nhi\n\nassistant:\n',
        "raw",
        None,
    ]
    assert trace.rows["input_tokens"].to_list() == [None, None, None, None, 50]
    assert trace.rows["arrival_s"].to_list() == [0.0, 0.01, 0.02, 0.03, 0.04]


def test_ids_beside_text_of_unknown_length_are_not_used(jsonl):
    trace = read_trace(jsonl([{"timestamp": 0, "text_input": "hello", "output_length": 1, "hash_ids": [1, 2]}]))
    assert (trace.content, trace.has("prefix_blocks")) == ("text", False)
    assert any("hash_ids are not used: prompts are given as text" in note for note in trace.notes)


def test_requests_that_wait_for_others(jsonl):
    base = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    rows = [
        base | {"request_id": "root", "timestamp": 100},
        base | {"request_id": "x", "wait_for": ["root"], "tool_wait_ms": 50},
        base | {"request_id": "y", "wait_for": ["root"]},
        base | {"request_id": "z", "wait_for": ["x", "y"], "delay": 3},
        base | {"request_id": "alone", "timestamp": 200, "wait_for": []},
        base | {"request_id": "late", "wait_for": ["gone"]},
    ]
    trace = read_trace(jsonl(rows))
    sessions = trace.rows["session"].to_list()
    assert len(set(sessions[:4])) == 1
    assert sessions[4] is None
    assert sessions[5] not in (None, sessions[0])
    assert trace.rows["turn"].to_list() == [1, 2, 3, 4, None, 1]
    assert trace.duration_s is None
    assert any("some of its turns may run side by side" in note for note in trace.notes)


def test_circles_of_requests_end(jsonl):
    base = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    rows = [base | {"request_id": a, "wait_for": [b]} for a, b in (("p", "q"), ("q", "r"), ("r", "p"), ("s", "s"))]
    sessions = read_trace(jsonl(rows)).rows["session"].to_list()
    assert len(set(sessions[:3])) == 1
    assert sessions[3] == "s"


def test_another_block_size_follows_from_the_ids(jsonl):
    lengths = [100 + 53 * n for n in range(12)]
    rows = [turn("a", tokens, range(-(-tokens // 64)), delay=1) for tokens in lengths]
    trace = read_trace(jsonl(rows))
    assert trace.block_size == 64
    assert any("blocks of 64 tokens, by the number of hash_ids" in note for note in trace.notes)


def test_new_tokens_become_whole_prompts(jsonl):
    rows = [turn("a", 1000, (1, 2)), turn("b", 600, (1, 9)), turn("a", 100, (3,)), turn("a", 50, (4,))]
    trace = read_trace(jsonl(rows), trace_format="mooncake-delta")
    assert trace.format == "mooncake-delta"
    # a: 1,000; + 10 answered + 100 new = 1,110; + 10 + 50 = 1,170.
    assert trace.rows["input_tokens"].to_list() == [1000, 600, 1110, 1170]
    first, other, second, third = trace.rows["prefix_blocks"].to_list()
    assert (first, other) == ([1, 2], [1, 9])
    # 1,110 and 1,170 tokens: two full blocks and a part. Block 0 is that of the row; block 1 was a part at first.
    assert (len(second), len(third)) == (3, 3)
    assert second[0] == third[0] == 1
    assert second[1] == third[1] != 2
    assert second[2] != third[2]
    assert any("2 later turns carry only what is new" in note for note in trace.notes)
    # Full blocks that a turn can reuse: block 0 in b and in a's second turn, blocks 0 and 1 in its third.
    assert ideal_hits(trace, 512).hit_tokens == 512 * (1 + 1 + 2)


def test_delta_rows_are_found_by_their_mode(jsonl):
    rows = [turn("a", 1000, (1, 2), message_mode="delta"), turn("a", 100, (3,), message_mode="delta", delay=5)]
    rows.append(turn("c", 700, (5, 6), message_mode="history"))
    rows.append(turn("c", 900, (5, 6), message_mode="history"))
    trace = read_trace(jsonl(rows))
    assert trace.format == "mooncake-delta"
    assert trace.rows["input_tokens"].to_list() == [1000, 1110, 700, 900]


def test_new_messages_follow_the_earlier_ones(jsonl):
    rows = [
        {
            "session_id": "s",
            "message_mode": "delta",
            "output_length": 3,
            "messages": [{"role": "user", "content": text}],
        }
        for text in ("one", "two")
    ]
    trace = read_trace(jsonl(rows))
    assert trace.rows["prompt_text"].to_list() == [
        "user:\none\n\nassistant:\n",
        "user:\none\n\nuser:\ntwo\n\nassistant:\n",
    ]
    assert any("answers of earlier turns are not in the file" in note for note in trace.notes)


def test_turns_after_an_unknown_answer_are_wrong_rows(jsonl):
    path = jsonl([turn("a", output_length=None), turn("a"), turn("b"), turn("a")])
    with pytest.raises(TraceError, match=":2: the whole prompt is not known"):
        read_trace(path, trace_format="mooncake-delta")
    trace = read_trace(path, trace_format="mooncake-delta", skip_bad_rows=True)
    assert trace.rows["row"].to_list() == [1, 3]
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(2, 2)]


def test_lengths_after_text_are_not_known(jsonl):
    rows = [{"session_id": "a", "message_mode": "delta", "text_input": "hi", "output_length": 2}]
    rows.append({"session_id": "a", "message_mode": "delta", "input_length": 9, "output_length": 2})
    with pytest.raises(TraceError, match=":2: the whole prompt is not known"):
        read_trace(jsonl(rows))


def test_a_bad_length_takes_the_rest_of_its_session(jsonl):
    path = jsonl([turn("a"), turn("a", "x"), turn("a"), turn("b")])
    trace = read_trace(path, trace_format="mooncake-delta", skip_bad_rows=True)
    assert trace.rows["row"].to_list() == [1, 4]
    assert sum(entry.rows for entry in trace.left_out) == 2


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"messages": "hi"}, "messages is text of 2 characters"),
        ({"text_input": 5}, "text_input is '5'"),
        ({"hash_ids": [1, 2.5]}, "hash_ids is"),
        ({"hash_ids": [1, 2, 3, 4]}, "hash_ids has 4 ids for"),
        ({"input_length": -1}, "input_length is '-1'"),
        ({"input_length": None}, "input_length is missing"),
        ({"messages": [{"content": "x"}]}, "messages[0] has no role"),
    ],
)
@pytest.mark.parametrize("format", ["mooncake-agentic", "mooncake-delta"])
def test_wrong_rows_are_named(jsonl, bad, says, format):
    path = jsonl([turn("a", delay=1), turn("b", delay=1) | bad])
    with pytest.raises(TraceError) as raised:
        read_trace(path, trace_format=format)
    assert str(raised.value).startswith(f"{path}:2: {says}")
    trace = read_trace(path, trace_format=format, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].rows, trace.left_out[0].first_line) == (1, 1, 2)


def test_codex_logs_are_not_taken_for_payloads(jsonl):
    rows = [{"timestamp": "2026-03-21T10:05:59Z", "type": "session_meta", "payload": {"id": "x"}}]
    with pytest.raises(TraceError) as raised:
        read_trace(jsonl(rows))
    assert "Mooncake" not in str(raised.value).split(";")[0]

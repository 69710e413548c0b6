"""Qwen-Bailian: seconds, blocks of 16 tokens, sessions by the root of a chain of parents."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def chat(id, parent=-1, *, time=0.0, tokens=40, turn=1, **other):
    blocks = [id * 100 + n for n in range(-(-tokens // 16))] if isinstance(id, int) else [1, 2, 3]
    return {
        "chat_id": id, "parent_chat_id": parent, "timestamp": time, "input_length": tokens, "output_length": 5,
        "type": "text", "turn": turn, "hash_ids": blocks,
    } | other  # fmt: skip


def test_the_first_row_of_a_real_file(shared):
    path = shared / "traces" / "qwen-bailian" / "qwen_thinking_blksz_16.first_row.jsonl"
    row = json.loads(path.read_text())
    trace = read_trace(path)
    assert (trace.format, trace.time_unit, trace.block_size, len(trace)) == ("qwen-bailian", "s", 16, 1)
    found = trace.rows.row(0, named=True)
    assert (found["input_tokens"], found["output_tokens"]) == (row["input_length"], row["output_length"])
    assert (found["prefix_blocks"], found["session"], found["turn"]) == (row["hash_ids"], "0", 1)


def test_seconds_are_seconds(jsonl):
    trace = read_trace(jsonl([chat(1, time=61.114), chat(2, time=62.2)]))
    assert trace.rows["arrival_s"].to_list() == [0.0, 1.086]


def test_a_session_is_the_root_of_the_chain(jsonl):
    rows = [chat(1), chat(2, 1, turn=2), chat(7), chat(3, 2, turn=3), chat(4, 1, turn=2), chat(8, None)]
    trace = read_trace(jsonl(rows))
    assert trace.rows["session"].to_list() == ["1", "1", "7", "1", "1", "8"]
    assert trace.rows["turn"].to_list() == [1, 2, 1, 3, 2, 1]


def test_children_may_stand_before_their_parents(jsonl):
    trace = read_trace(jsonl([chat(3, 2), chat(2, 1), chat(1)]))
    assert trace.rows["session"].to_list() == ["1", "1", "1"]


def test_parents_before_the_file_still_make_one_session(jsonl):
    trace = read_trace(jsonl([chat(10, 5), chat(11, 5), chat(12, 11), chat(13)]))
    assert trace.rows["session"].to_list() == ["5", "5", "5", "13"]
    assert any("2 requests follow a chat that is not in the file" in note for note in trace.notes)


def test_circles_of_parents_end(jsonl):
    trace = read_trace(jsonl([chat(1, 3), chat(2, 1), chat(3, 2), chat(4, 4), chat(5, 4)]))
    sessions = trace.rows["session"].to_list()
    assert sessions[0] == sessions[1] == sessions[2]
    assert sessions[3] == sessions[4] == "4"
    assert any("2 requests name a parent that follows from them" in note for note in trace.notes)


def test_a_very_long_chain_does_not_overflow(jsonl):
    rows = [chat(0)] + [chat(n, n - 1, tokens=16) for n in range(1, 5000)]
    assert set(read_trace(jsonl(rows)).rows["session"]) == {"0"}
    assert set(read_trace(jsonl(rows[::-1])).rows["session"]) == {"0"}


def test_ids_are_content_and_types_are_told(jsonl):
    trace = read_trace(jsonl([chat(1), chat(2, type="image"), chat(3, type="image")]))
    assert any("content of blocks, not whole prefixes" in note for note in trace.notes)
    assert any("requests by type: 2 image, 1 text" in note for note in trace.notes)


@pytest.mark.parametrize("ids", [[1], [1, 2, 3, 4], [1, 2, -3], [1, 2, 2**64], [1, 2, 3.5], "123"])
def test_ids_that_do_not_fit(jsonl, ids):
    path = jsonl([chat(1), chat(2, hash_ids=ids)])
    with pytest.raises(TraceError, match=r":2: hash_ids"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    assert (len(trace), trace.left_out[0].first_line) == (1, 2)


def test_another_block_size_is_found_in_enough_rows(jsonl):
    rows = [chat(n, tokens=900 + 37 * n, hash_ids=list(range(-(-(900 + 37 * n) // 64)))) for n in range(12)]
    trace = read_trace(jsonl(rows))
    assert trace.block_size == 64
    assert any("blocks of 64 tokens, by the number of hash_ids" in note for note in trace.notes)

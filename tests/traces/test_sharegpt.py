"""ShareGPT: every answer is a request, with all that was said before."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace


def human(text):
    return {"from": "human", "value": text}


def gpt(text):
    return {"from": "gpt", "value": text}


def test_all_turns_are_requests_with_growing_context(write):
    talk = [{"id": "a", "conversations": [human("1"), gpt("2"), human("3"), gpt("4")]}]
    trace = read_trace(write("s.json", json.dumps(talk)))
    assert trace.format == "sharegpt"
    assert trace.rows["prompt_text"].to_list() == [
        "user:\n1\n\nassistant:\n",
        "user:\n1\n\nassistant:\n2\n\nuser:\n3\n\nassistant:\n",
    ]
    assert trace.rows["output_text"].to_list() == ["2", "4"]
    assert trace.rows.select("session", "turn").rows() == [("a", 1), ("a", 2)]
    assert trace.duration_s is None
    assert trace.notes[0].startswith("1 conversations with 2 answers")


@pytest.mark.parametrize("key", ["conversations", "conversation", "items"])
def test_spellings(jsonl, key):
    turns = [{"role": "User", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert read_trace(jsonl([{"id": 1, key: turns}])).rows["output_text"].to_list() == ["a"]


def test_odd_conversations_are_counted(jsonl):
    rows = [
        {"id": "empty", "conversations": []},
        {"id": "answer first", "conversations": [gpt("x"), human("y"), gpt("z")]},
        {"id": "two answers", "conversations": [human("p"), gpt("q"), gpt("r")]},
        {"id": "no last answer", "conversations": [human("s"), gpt("t"), human("u")]},
    ]
    trace = read_trace(jsonl(rows))
    assert trace.rows["output_text"].to_list() == ["z", "q", "r", "t"]
    assert [(entry.rows, entry.first_line) for entry in trace.left_out] == [(1, 2), (2, 1)]


def test_two_conversations_of_the_same_id_are_two_sessions(jsonl):
    trace = read_trace(jsonl([{"id": "a", "conversations": [human("q"), gpt("r")]}] * 2))
    assert trace.rows["session"].to_list() == ["a", "a #2"]


def test_an_answer_without_text_failed(jsonl):
    rows = [{"id": "a", "conversations": [human("q"), gpt("")]}, {"id": "b", "conversations": [human("q"), gpt("r")]}]
    assert read_trace(jsonl(rows)).rows["session"].to_list() == ["b"]


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        ({"from": "alien", "value": "x"}, r"conversations\[1\] is from text of 5 characters"),
        ({"from": "human", "value": None}, r"messages\[1\]\.content is null"),
        ("x", r"conversations\[1\] is from null"),
    ],
)
def test_wrong_turns_are_named(jsonl, turn, says):
    good = {"id": "a", "conversations": [human("q"), gpt("r")]}
    path = jsonl([good, {"id": "b", "conversations": [human("q"), turn, gpt("r")]}])
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: " + says):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1


@pytest.mark.parametrize("id_name", ["conversation_id", "conversation_hash"])
def test_lmsys_and_wildchat(jsonl, id_name):
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}] * 2
    rows = [{id_name: "c1", "model": "gpt-4", "conversation": turns, "timestamp": "2023-04-09 00:02:53"}]
    trace = read_trace(jsonl(rows))
    assert trace.rows.select("session", "turn", "model").rows() == [("c1", 1, "gpt-4"), ("c1", 2, "gpt-4")]
    # One time for the conversation would make its turns arrive together.
    assert not trace.has("arrival_s")
    assert any("not the arrival of each request" in note for note in trace.notes)


def test_slices_of_a_longer_conversation_are_told_from_numbered_ones(jsonl):
    pair = [human("q"), gpt("r")]
    slices = [{"id": "QW_0", "conversations": pair * 2}, {"id": "QW_4", "conversations": pair}]
    numbered = [{"id": f"identity_{n}", "conversations": pair * 2} for n in range(6)]
    notes = read_trace(jsonl(slices + numbered)).notes
    assert any(note.startswith("1 conversations continue a longer one") for note in notes)
    assert not any("continue a longer one" in note for note in read_trace(jsonl(numbered)).notes)

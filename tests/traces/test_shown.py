"""What messages and notes show: numbers, times and names of fields; texts only by their length."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferdoc.errors import TraceError
from inferdoc.traces import FORMATS, read_trace, shown

GOOD = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}\n'


@pytest.mark.parametrize(
    "number",
    ["-5", "2748", "1e9", "1.5e-3", "12ms", "12 s", "3,000", "2024-05-10 00:00:00.5", "2024-05-10T00:00:00Z", "NaN",
     "-inf", "null", "none", "True", "100k", "2023-11-16 18:17:03.9799600+00:00", "5%"],
)  # fmt: skip
def test_what_reads_as_a_number_or_a_time_is_shown(number):
    assert shown.value(number) == f"'{number}'"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("alice@example.com", "text of 17 characters"),
        ("x", "text of 1 character"),
        ("nancy", "text of 5 characters"),
        ("5 apples", "text of 8 characters"),
        ("4Tea", "text of 4 characters"),
        ("/home/7", "text of 7 characters"),
        ("", "text of 0 characters"),
        ("1" * 41, "text of 41 characters"),
        ("x" * 1200, "text of 1,200 characters"),
        (["secret", "b", "c"], "a list of 3"),
        ({"secret": 1}, "an object"),
        (None, "null"),
        (True, "true"),
        (-1, "'-1'"),
        (float("nan"), "'nan'"),
    ],
)
def test_other_values_are_told_by_kind_and_length(given, told):
    assert shown.value(given) == told


def test_keys_that_read_as_prose_are_counted():
    given = [
        "timestamp",
        "Prompt Length",
        "alice@example.com",
        "/home/alice",
        "call 123-45-6789",
        "a b c d e",
        "k" * 41,
        "4242",
    ]
    assert shown.keys(given) == "timestamp, Prompt Length and 6 that read as no field's name"
    assert shown.keys(["a@b"]) == "1 that reads as no field's name"
    assert shown.keys([]) == "none"
    assert shown.keys([f"k{n}" for n in range(25)]) == ", ".join(f"k{n}" for n in range(20)) + ", ..."


@pytest.mark.parametrize("header", [["please", "a@b", "this"], ["please help"], ["hunter2"], ["", "SSN 123-45-6789"]])
def test_a_first_line_that_is_no_header_is_not_shown(header):
    assert "does not read as names of columns" in shown.columns(header)
    assert not any(cell and cell in shown.columns(header) for cell in header)


def test_columns_are_shown_as_they_are():
    assert shown.columns(["Session ID", "latency (ms)", ""]) == "Session ID, latency (ms), "


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 2748 610}', "column 12: expecting ',' delimiter, found '610'"),
        ('{"a": 1,024}', "column 9: expecting property name enclosed in double quotes, found '024'"),
        ('{"a": 1.2.3}', "column 10: expecting ',' delimiter, found '.3'"),
        ('{"a": None}', "column 7: expecting value, found 'None'"),
        ('{"a": "mail "bob@x.org about it"}', "found a letter"),
        ('{"a": "mail "123456789, it"}', "found a digit"),
        ('{"a": "mail "@x"}', "found another character"),
        ('{"a": nonesuch}', "found a letter"),
        ('{"a": }', "found '}'"),
    ],
)
def test_a_fault_in_json_shows_numbers_only(write, line, message):
    with pytest.raises(TraceError) as raised:
        read_trace(write("t.jsonl", GOOD + line + "\n" + GOOD))
    assert message in str(raised.value)
    assert not any(word in str(raised.value) for word in ("bob", "1234", "nonesuch", "about"))


SECRET = "alice@example.com"
LINES = {
    "messages is text of 43": {"messages": f"{SECRET} asked: what is my secret?"},
    "content is an object": {"messages": [{"role": "user", "content": {"a": SECRET}}]},
    "has no role: found text of 28": {"messages": [f"{SECRET} said hello"]},
    "found text of 24": f"{SECRET} secret",
    "found a list of 1": [SECRET],
}


@pytest.mark.parametrize("told", LINES)
def test_broken_chats_do_not_show_what_was_said(write, told):
    with pytest.raises(TraceError) as raised:
        read_trace(write("t.jsonl", GOOD + json.dumps(LINES[told]) + "\n" + GOOD))
    assert ":2: " in str(raised.value)
    assert told in str(raised.value)
    assert "alice" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["Dear alice@example.com, my SSN is 123-45\nplease, answer, this\n", "root:x:0:0:root:/root:/bin/alice\n",
     "4808,alice,10\n", '{"alice@example.com": {"x": 1}, "/home/alice/secret": 2}'],
)  # fmt: skip
@pytest.mark.parametrize("trace_format", [None, "csv", "azure", "burstgpt", "jsonl", "chat"])
def test_files_that_are_no_trace_are_not_quoted(write, text, trace_format):
    with pytest.raises(TraceError) as raised:
        read_trace(write("t.txt", text), trace_format=trace_format)
    assert "alice" not in str(raised.value)
    assert "SSN" not in str(raised.value)


MARK = "Zyxmarker jane@corp.example"
SHAPES = (
    {"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [1], "session_id": "s"},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}], "model": "m"},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "id": "x"},
    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [], "model": "m"}},
    {"custom_id": "a", "result": {"type": "succeeded", "message": {"usage": {"input_tokens": 1}, "content": []}}},
    {"requests": [{"type": "s", "in": 5, "out": 2, "t": 0.0, "hash_ids": [1]}], "id": "x", "block_size": 64},
    {"timestamp": "1", "input_length": "5", "output_length": "2", "hash_ids": {"sys_prompt": [1]}, "session_id": "1"},
    {"input_lens": [5], "output_lens": [2], "ttfts": [0.1], "itls": [[0.1]], "errors": [""], "max_concurrency": 4},
    {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "type": "text", "turn": 1, "input_length": 5,
     "output_length": 2, "hash_ids": [1]},
    {"id": "a", "startTime": "2025-01-01T00:00:00Z", "usageDetails": {"input": 5, "output": 2}, "type": "GENERATION"},
    {"input_tokens": 5, "output_tokens": 2, "timestamp": 1, "ttft_ms": 4, "model": "m", "prompt": "a"},
    {"prompt": "a", "turns": ["a", "b"]},
    {"timestamp": 1, "requests": [{"Prompt Length": 9, "Output Length": 2, "prompt": "x"}]},
)  # fmt: skip


def places(value, path=()):
    """All positions in nested JSON."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def with_mark(value, path, how):
    if not path:
        return {"text": MARK, "key": {MARK: value}, "list": [MARK], "inside": {"x": MARK}}[how]
    made = dict(value) if isinstance(value, dict) else list(value)
    made[path[0]] = with_mark(value[path[0]], path[1:], how)
    return made


@settings(max_examples=250, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    place=st.integers(0, 60),
    how=st.sampled_from(["text", "key", "list", "inside"]),
    good=st.integers(0, 2),
    cut=st.one_of(st.none(), st.floats(0, 1)),
    skip=st.booleans(),
    trace_format=st.one_of(st.none(), st.sampled_from(FORMATS)),
)
@example(SHAPES[2], 3, "text", 1, None, False, None)
def test_a_marked_text_is_never_told(shape, place, how, good, cut, skip, trace_format):
    found = list(places(shape))
    line = json.dumps(with_mark(shape, found[place % len(found)], how))
    if cut is not None:  # a stray quote makes broken JSON around the text
        at = int(cut * len(line))
        line = line[:at] + '"' + line[at:]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        path.write_text((json.dumps(shape) + "\n") * good + line + "\n" + json.dumps(shape) + "\n")
        try:
            trace = read_trace(path, trace_format=trace_format, skip_bad_rows=skip)
        except TraceError as error:
            told = str(error)
        else:
            told = " ".join([*trace.notes, *(entry.reason for entry in trace.left_out)])
    assert "Zyxmarker" not in told
    assert "jane" not in told


@settings(max_examples=100, deadline=None)
@given(
    before=st.text(st.sampled_from("ab ,;\t{[\"'1\n"), max_size=12),
    after=st.text(st.sampled_from("ab ,;\t}]\"'1\n"), max_size=12),
    trace_format=st.one_of(st.none(), st.sampled_from(FORMATS)),
)
def test_a_marked_text_file_is_never_told(before, after, trace_format):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.txt"
        path.write_text(f"{before}{MARK}{after}\n1,2\n")
        try:
            told = " ".join(read_trace(path, trace_format=trace_format, skip_bad_rows=True).notes)
        except TraceError as error:
            told = str(error)
    assert "Zyxmarker" not in told
    assert "jane" not in told

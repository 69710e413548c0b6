"""Chat JSONL: the prompt, the answer, and where lengths come from."""

from __future__ import annotations

import pytest

from inferdoc.errors import TraceError
from inferdoc.evidence import LeftOut
from inferdoc.traces import ideal_hits, read_trace, tokenize

ASK = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}


def characters(texts):
    return [[ord(c) for c in text] for text in texts]


def test_the_last_assistant_message_is_the_output(jsonl):
    trace = read_trace(jsonl([{"messages": [ASK, ANSWER]}, {"messages": [ASK, ANSWER, ASK], "output_length": 7}]))
    assert (trace.format, trace.content) == ("chat", "text")
    assert trace.rows["prompt_text"].to_list() == [
        "user:\nhi\n\nassistant:\n",
        "user:\nhi\n\nassistant:\nhello\n\nuser:\nhi\n\nassistant:\n",
    ]
    assert trace.rows["output_text"].to_list() == ["hello", None]
    assert trace.rows["output_tokens"].to_list() == [None, 7]
    assert trace.rows["input_tokens"].to_list() == [None, None]
    counted = tokenize(trace, characters)
    assert counted.rows["input_tokens"].to_list() == [21, 21 + len("hello\n\nuser:\nhi\n\nassistant:\n")]
    assert counted.rows["output_tokens"].to_list() == [5, 7]


@pytest.mark.parametrize(
    ("usage", "prompt", "output", "cached"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 5}, 100, 5, None),
        ({"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}, 100, 5, 64),
        ({"input_tokens": 100, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 64}}, 100, 5, 64),
        ({"input_tokens": 36, "output_tokens": 5, "cache_read_input_tokens": 64}, 100, 5, 64),
    ],
)
def test_usage_in_its_spellings(jsonl, usage, prompt, output, cached):
    trace = read_trace(jsonl([{"messages": [ASK], "usage": usage, "created": 1700000000, "model": "m"}]))
    row = trace.rows.row(0, named=True)
    assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"], row["model"]) == (
        prompt,
        output,
        cached,
        "m",
    )


def test_the_time_of_an_answer_is_told_from_that_of_a_request(jsonl):
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    rows = [{"messages": [ASK], "usage": usage, "created": 1_700_000_000 + 2 * i} for i in range(3)]

    def noted(trace):
        return any("those of completions, not of arrivals" in note for note in trace.notes)

    trace = read_trace(jsonl(rows))
    assert trace.rows["arrival_s"].to_list() == [0.0, 2.0, 4.0]
    assert noted(trace)
    for name in ("created_at", "timestamp", "request_time"):
        trace = read_trace(jsonl([row | {name: 1_700_000_000 + 0.5 * i} for i, row in enumerate(rows)]))
        assert trace.rows["arrival_s"].to_list() == [0.0, 0.5, 1.0]
        assert not noted(trace)
    without = [{name: value for name, value in row.items() if name != "usage"} for row in rows]
    assert not noted(read_trace(jsonl(without)))
    assert noted(read_trace(jsonl([row | {"choices": []} for row in without])))


def test_counts_of_zero_beside_a_text_are_unknown(jsonl):
    usage = {"prompt_tokens": 0, "completion_tokens": 0}
    trace = read_trace(jsonl([{"messages": [ASK, ANSWER], "usage": usage}]))
    assert trace.rows.select("input_tokens", "output_tokens").rows() == [(None, None)]


def test_empty_answers_failed(jsonl):
    empty = {"role": "assistant", "content": ""}
    trace = read_trace(jsonl([{"messages": [ASK, empty]}, {"messages": [ASK, ANSWER]}]))
    assert trace.rows["row"].to_list() == [2]
    assert trace.left_out[0].rows == 1


def test_an_answer_of_a_tool_call_is_an_output(jsonl):
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    assert "f" in read_trace(jsonl([{"messages": [ASK, call]}])).rows["output_text"][0]


def test_rows_without_any_output_stay_and_are_said(jsonl):
    trace = read_trace(jsonl([{"messages": [ASK]}, {"messages": [ASK, ANSWER]}]))
    assert trace.rows["output_tokens"].to_list() == [None, None]
    assert any("1 of 2 requests have no output" in note for note in trace.notes)
    runnable = tokenize(trace, characters).runnable()
    assert runnable.rows["row"].to_list() == [2]
    reason = "no output length: cannot be run"
    assert runnable.left_out == (LeftOut(reason=reason, rows=1, first_line=1, places=["1"]),)


def test_a_trace_without_any_output_cannot_be_run(jsonl):
    with pytest.raises(TraceError, match="no request has an output length"):
        tokenize(read_trace(jsonl([{"messages": [ASK]}])), characters).runnable()


@pytest.mark.parametrize(
    ("stamps", "unit", "seconds"),
    [
        ([5, 6.5], "s", [0.0, 1.5]),
        ([1700000000.25, 1700000001], "s", [0.0, 0.75]),
        ([1700000000250, 1700000001000], "ms", [0.0, 0.75]),
        (["2024-05-10T00:00:00Z", "2024-05-10T02:00:00.5+02:00"], "wall clock", [0.0, 0.5]),
        (["82", "83"], "s", [0.0, 1.0]),
    ],
)
def test_units_of_time(jsonl, stamps, unit, seconds):
    trace = read_trace(jsonl([{"messages": [ASK, ANSWER], "timestamp": stamp} for stamp in stamps]))
    assert (trace.time_unit, trace.rows["arrival_s"].to_list()) == (unit, seconds)


def test_sessions_with_their_history_are_whole_prompts(jsonl):
    history = [[ASK], [ASK, ANSWER, ASK], [ASK, ANSWER, ASK, ANSWER, ASK]]
    rows = [{"messages": [*h, ANSWER], "session_id": "s", "timestamp": t} for t, h in enumerate(history)]
    trace = tokenize(read_trace(jsonl(rows)), characters)
    # One character a token; a turn adds "hello", a blank line and the next question with its cue.
    turn = len("hello\n\nuser:\nhi\n\nassistant:\n")
    assert trace.rows["input_tokens"].to_list() == [21, 21 + turn, 21 + 2 * turn]
    assert trace.rows["turn"].to_list() == [1, 2, 3]
    assert any(note.startswith("2 of 2 later turns begin with the prompt of the turn before") for note in trace.notes)


def test_sessions_without_their_history_are_said(jsonl):
    asks = [{"role": "user", "content": text} for text in ("one", "two")]
    trace = read_trace(jsonl([{"messages": [ask, ANSWER], "session_id": "s"} for ask in asks]))
    assert any(note.startswith("0 of 1 later turns") for note in trace.notes)


def test_null_content_without_calls_is_an_error_with_line_and_field(jsonl):
    path = jsonl([{"messages": [ASK, ANSWER]}, {"messages": [{"role": "user", "content": None}, ANSWER]}])
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: messages\[0\]\.content is null and there are no tool calls"):
        read_trace(path)
    assert read_trace(path, skip_bad_rows=True).left_out[0].reason == "a message without content"


def test_an_answer_without_a_prompt_is_counted(jsonl):
    trace = read_trace(jsonl([{"messages": [ANSWER]}, {"messages": [ASK, ANSWER]}]))
    reason = "an answer without a prompt"
    assert trace.left_out == (LeftOut(reason=reason, rows=1, first_line=1, places=["1"]),)


@pytest.mark.parametrize("messages", [[], [5]])
def test_messages_that_are_no_messages(jsonl, messages):
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: messages"):
        read_trace(jsonl([{"messages": [ASK, ANSWER]}, {"messages": messages}]))


def test_different_images_share_nothing(jsonl):
    def row(url):
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "same text " * 20}]
        return {"messages": [{"role": "user", "content": parts}, ANSWER]}

    trace = read_trace(jsonl([row("https://example.org/a.png"), row("https://example.org/b.png")]))
    assert ideal_hits(tokenize(trace, characters), 16).hit_tokens == 0
    assert any("2 requests carry images" in note for note in trace.notes)
    same = read_trace(jsonl([row("https://example.org/a.png")] * 2))
    assert ideal_hits(tokenize(same, characters), 16).hit_tokens > 200


def test_images_without_identity_are_different_and_counted(jsonl):
    row = {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "x" * 99}]}, ANSWER]}
    trace = read_trace(jsonl([row, row]))
    assert ideal_hits(tokenize(trace, characters), 16).hit_tokens == 0
    assert any(note.startswith("2 requests carry images, audio or files without address") for note in trace.notes)


def test_a_system_prompt_beside_the_messages(jsonl):
    trace = read_trace(jsonl([{"system": "Be brief.", "messages": [ASK, ANSWER]}]))
    assert trace.rows["prompt_text"][0].startswith("system:\nBe brief.\n\nuser:\n")

"""Chat messages as one string: shared prefixes stay shared, and different images stay different."""

from __future__ import annotations

import pytest

from inferdoc.traces import render
from inferdoc.traces.ledger import RowError
from inferdoc.traces.messages import render_prompt

ASK = {"role": "user", "content": "hi"}


def image(url):
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it?"}]
    return {"role": "user", "content": parts}


def test_the_layout():
    messages = [{"role": "system", "content": "Be brief."}, ASK, {"role": "assistant", "content": "Hello"}, ASK]
    assert render(messages) == "system:\nBe brief.\n\nuser:\nhi\n\nassistant:\nHello\n\nuser:\nhi\n\nassistant:\n"


def test_a_prompt_and_its_answer_begin_the_next_prompt():
    first = render([ASK])
    second = render([ASK, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "more"}])
    assert second.startswith(first + "Hello")


def test_null_content_with_tool_calls_and_content_parts():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
    ]
    text = render(messages)
    assert text == 'assistant:\n<tool_call>{"name": "f", "arguments": "{}"}</tool_call>\n\nuser:\nhi\n\nassistant:\n'
    assert "None" not in text


def test_anthropic_parts():
    messages = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "42"}]}]},
    ]
    text = 'assistant:\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n\nuser:\n42\n\nassistant:\n'
    assert render(messages) == text


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "user"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": 5},
        {"role": "user", "content": [5]},
        {"content": "hi"},
        "hi",
    ],
)
def test_messages_that_say_nothing(message):
    with pytest.raises(RowError, match=r"messages\[1\]"):
        render([ASK, message])


def test_images_differ_by_address_from_their_first_character_on():
    a, b = render([image("https://example.org/a.png")]), render([image("https://example.org/b.png")])
    shared = next(at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    assert shared == len("user:\n<")
    assert a == render([image("https://example.org/a.png")])


def test_images_are_equal_whatever_their_description():
    plain = {"type": "image_url", "image_url": {"url": "u"}}
    marked = plain | {"detail": "low", "cache_control": {"type": "ephemeral"}}
    assert render([{"role": "user", "content": [plain]}]) == render([{"role": "user", "content": [marked]}])


def test_images_without_identity_are_all_different_and_counted():
    nameless = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}] * 2}
    first, second = render_prompt([nameless], row=1), render_prompt([nameless], row=2)
    assert first.text != second.text
    assert (first.media, first.unnamed) == (2, 2)
    assert first.text.count("<1.0.0 image_url>") == first.text.count("<1.0.1 image_url>") == 1


def test_tools_come_first_in_the_order_given():
    a, b = {"type": "function", "function": {"name": "a"}}, {"type": "function", "function": {"name": "b"}}
    one, other = render_prompt([ASK], row=1, tools=[a, b]).text, render_prompt([ASK], row=1, tools=[b, a]).text
    assert one.startswith("tools:\n[")
    assert one != other
    assert sorted(one) == sorted(other)

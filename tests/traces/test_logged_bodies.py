"""Bodies of model APIs as logs hold them: prompts, answers, token counts."""

from __future__ import annotations

import pytest

from inferdoc.traces.formats.logged_bodies import output_text, prompt_text, usage_of


@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        ("just text", "user:\njust text\n\nassistant:\n"),
        ({"prompt": ["one prompt"]}, "user:\none prompt\n\nassistant:\n"),
        ({"inputs": "tgi"}, "user:\ntgi\n\nassistant:\n"),
        ({"system": "S", "messages": [{"role": "user", "content": "U"}]}, "system:\nS\n\nuser:\nU\n\nassistant:\n"),
        ('{"instructions": "S", "input": "U"}', "system:\nS\n\nuser:\nU\n\nassistant:\n"),
        ([{"type": "human", "content": "U"}], "user:\nU\n\nassistant:\n"),
        ({"input": [{"type": "reasoning", "summary": []},
                    {"role": "user", "content": [{"type": "input_text", "text": "U"}]}]},
         "user:\nU\n\nassistant:\n"),
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": "T"}, {"type": "text", "text": "A"}]}],
         "assistant:\nTA\n\nassistant:\n"),
        ([{"role": "assistant", "content": None, "tool_calls": [{"name": "f", "args": {"x": 1}}]}],
         'assistant:\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\n\nassistant:\n'),
    ],
)  # fmt: skip
def test_prompts(request_body, expected):
    assert prompt_text(request_body, line=1) == expected


@pytest.mark.parametrize(
    "body", [None, "", 5, [], {}, {"content": "role"}, [{"a": 1}], [1, 2], '[{"role": "us', {"messages": "{"}]
)
def test_what_is_no_prompt(body):
    assert prompt_text(body, line=1) is None


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("plain", "plain"),
        ({"choices": [{"text": "A"}]}, "A"),
        ({"choices": [{"message": {"role": "assistant", "content": "A"}}]}, "A"),
        ({"content": [{"type": "text", "text": "A"}], "role": "assistant"}, "A"),
        ({"output": [{"type": "reasoning"}, {"type": "message", "role": "assistant",
                                              "content": [{"type": "output_text", "text": "A"}]}]}, "A"),
        ([{"generated_text": "A"}], "A"),
        ({"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]}, "A"),
        ([{"role": "user", "content": "U"}], None),
        ({"choices": []}, None),
        ('{"choices": [{"mess', None),
        (7, None),
    ],
)  # fmt: skip
def test_answers(response, expected):
    assert output_text(response, line=1) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}},
         {"input_tokens": 9, "output_tokens": 2, "cached_tokens": 4}),
        ({"usage": {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 0}}},
         {"input_tokens": 9, "output_tokens": 2, "cached_tokens": 0}),
        ({"usage": {"input_tokens": 9, "output_tokens": 2, "cache_read_input_tokens": 90,
                    "cache_creation_input_tokens": 1}},
         {"input_tokens": 9, "output_tokens": 2, "cache_read": 90, "cache_creation": 1}),
        ([{"usage": {"prompt_tokens": 1}}, {"usage": {"prompt_tokens": 9, "completion_tokens": 2}}, {"choices": []}],
         {"input_tokens": 9, "output_tokens": 2}),
        ({"details": {"generated_tokens": 3, "prefill": []}}, {"output_tokens": 3}),
        ("{}", {}),
        (None, {}),
    ],
)  # fmt: skip
def test_counts(body, expected):
    assert usage_of(body) == expected

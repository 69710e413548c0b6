"""OpenAI batch files: input, output, and both joined by `custom_id`."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

HI = "user:\nhi\n\nassistant:\n"


def asks(custom_id="a", url="/v1/chat/completions", **body):
    given = body or {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": given}


def answers(custom_id="a", status=200, error=None, response=True, **body):
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
    given = {
        "created": 1_700_000_000, "model": "m-1", "usage": usage,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}}],
    } | body  # fmt: skip
    found = {"status_code": status, "request_id": "r", "body": given} if response else None
    return {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": found, "error": error}


def test_the_shared_input_against_a_plain_loop(shared):
    path = shared / "traces/openai-batch/aibrix_sample_job_input.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    trace = read_trace(path)
    assert (trace.format, len(trace), trace.left_out) == ("openai-batch", 10, ())
    for text, record in zip(trace.rows["prompt_text"], records, strict=True):
        said = "".join(f"{message['role']}:\n{message['content']}\n\n" for message in record["body"]["messages"])
        assert text == said + "assistant:\n"
    # A limit of 1,000 tokens is not a length.
    assert trace.rows["output_tokens"].null_count() == trace.rows["input_tokens"].null_count() == 10
    assert any("max_tokens (1,000 to 1,000) is a limit, not an output length" in note for note in trace.notes)


def test_the_output_alone(jsonl):
    rows = [
        answers("b"),
        answers("a", response=False, error={"code": "expired", "message": "x"}),
        answers("c", status=500),
        answers("e", choices=None, data=[{"embedding": [0.5]}], usage={"prompt_tokens": 5}) | {},
        answers("d", usage={"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}),
    ]
    del rows[3]["response"]["body"]["choices"]
    trace = read_trace(jsonl(rows))
    assert trace.format == "openai-batch-output"
    assert trace.rows.select("input_tokens", "output_tokens", "cached_tokens", "output_text", "model").rows() == [
        (9, 4, 3, "yes", "m-1"),
        (7, 2, 1, "yes", "m-1"),
    ]
    # `created` is the second in which an answer was complete.
    assert not trace.has("arrival_s")
    assert sorted((entry.rows, entry.first_line) for entry in trace.left_out) == [(1, 4), (2, 2)]
    assert any("prompts are unknown" in note for note in trace.notes)


def test_both_are_joined_in_any_order(jsonl):
    rows = [answers("b"), asks("a"), asks("b"), answers("a", status=429), asks("c"), answers("d"), answers("b")]
    trace = read_trace(jsonl(rows))
    names = ("row", "prompt_text", "input_tokens", "output_tokens", "model")
    assert trace.rows.select(names).rows() == [
        (3, HI, 9, 4, "m-1"),
        (5, HI, None, None, "m"),
        (6, None, 9, 4, "m-1"),
    ]
    left = {entry.reason: (entry.rows, entry.first_line) for entry in trace.left_out}
    assert left["answers joined to their requests by custom_id"] == (2, 1)
    assert left["another answer of the same custom_id"] == (1, 7)
    # Every line is a request or is counted: 3 requests, 2 joined, 1 repeated, 1 failed.
    assert len(trace) + sum(count for count, _ in left.values()) == len(rows)


@pytest.mark.parametrize(
    ("url", "body", "prompt"),
    [
        ("/v1/completions", {"prompt": "once"}, "once"),
        ("/v1/completions", {"prompt": ["once"]}, "once"),
        ("/v1/responses", {"input": "hi"}, HI),
        ("/v1/responses", {"input": [{"role": "user", "content": "hi"}]}, HI),
        ("/v1/responses", {"input": "hi", "instructions": "be brief"}, "system:\nbe brief\n\n" + HI),
        ("", {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, HI),
    ],
)
def test_the_prompts_of_each_endpoint(jsonl, url, body, prompt):
    assert read_trace(jsonl([asks(url=url, **body)])).rows["prompt_text"].to_list() == [prompt]


def test_a_prompt_of_token_ids(jsonl):
    row = read_trace(jsonl([asks(url="/v1/completions", prompt=[3, 1, 2]), answers()])).rows.row(0, named=True)
    assert (row["prompt_text"], row["prompt_ids"], row["input_tokens"], row["output_tokens"]) == (None, [3, 1, 2], 3, 4)


def test_tool_calls_of_the_responses_api_are_part_of_the_prompt(jsonl):
    items = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "42"},
    ]
    (text,) = read_trace(jsonl([asks(url="/v1/responses", input=items)])).rows["prompt_text"]
    assert '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>' in text
    assert text.endswith("tool:\n42\n\nassistant:\n")


def test_the_answer_of_the_responses_api(jsonl):
    output = [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": "yes"}]}]
    body = {"output": output, "usage": {"input_tokens": 3, "output_tokens": 2}}
    record = {"custom_id": "a", "response": {"status_code": 200, "body": body}, "error": None}
    assert read_trace(jsonl([record])).rows["output_text"].to_list() == ["yes"]


@pytest.mark.parametrize(
    "embedding",
    [
        asks(url="/v1/embeddings", input="x", model="e"),
        asks(url="", input=["x", "y"], model="e"),
        asks(url="", input="x", encoding_format="float"),
        asks(url="/v1/moderations", input="x"),
    ],
)
def test_what_generates_no_text_is_left_out(jsonl, embedding):
    trace = read_trace(jsonl([asks("a"), embedding]))
    assert len(trace) == 1
    assert (trace.left_out[0].reason, trace.left_out[0].first_line) == (
        "embeddings and other requests that generate no text",
        2,
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (asks(model="m"), "body has no prompt"),
        (asks(messages=[]), "messages is not a list of messages"),
        (asks(messages=[{"content": "x"}]), r"messages\[0\] has no role"),
        (asks(prompt=["a", "b"]), "prompt is 2 prompts: expected one"),
        (asks(prompt=7), "prompt is '7': expected one"),
        (asks(input=7), "input is neither text nor a list"),
        (asks() | {"body": None}, "body is null"),
        (asks() | {"body": "{"}, "body is not a JSON object"),
        ({"custom_id": "x"}, "neither body nor response"),
        (answers(usage={"prompt_tokens": -1, "completion_tokens": 2}), "prompt_tokens is '-1'"),
    ],
)
def test_wrong_lines_are_named(jsonl, wrong, says):
    path = jsonl([asks("a"), wrong | {"custom_id": "b"}])
    with pytest.raises(TraceError, match=rf"trace\.jsonl:2: {says}"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1


def test_several_answers_to_one_prompt_have_no_one_text(jsonl):
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}}
    trace = read_trace(jsonl([answers(choices=[choice, choice])]))
    assert trace.rows.select("output_text", "output_tokens").rows() == [(None, 4)]


def test_the_two_files_of_a_batch_in_a_folder(write):
    write("input.jsonl", "".join(json.dumps(asks(name)) + "\n" for name in "ab"))
    path = write("output.jsonl", "".join(json.dumps(answers(name)) + "\n" for name in "ba"))
    trace = read_trace(path.parent)
    assert trace.rows.select("prompt_text", "output_tokens").rows() == [(HI, 4), (HI, 4)]
    assert [entry.places for entry in trace.left_out] == [["output.jsonl:1", "output.jsonl:2"]]

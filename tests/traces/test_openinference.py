"""OpenInference spans as Phoenix exports them, in lines and in columns."""

from __future__ import annotations

import csv
import io
import json

from inferdoc.traces import read_trace
from inferdoc.traces.formats.spans import WRAPPERS

FLAT = {
    "openinference.span.kind": "LLM", "llm.model_name": "m", "session.id": "s", "llm.token_count.prompt": 60,
    "llm.token_count.completion": 6, "llm.token_count.prompt_details.cache_read": 32,
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "You answer in one word." * 9,
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "Where?",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "map",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": "{}",
}  # fmt: skip
NESTED = {
    "openinference": {"span": {"kind": "LLM"}},
    "llm": {
        "model_name": "m",
        "token_count": {"prompt": 60, "completion": 6, "prompt_details": {"cache_read": 32}},
        "input_messages": [
            {"message": {"role": "system", "content": "You answer in one word." * 9}},
            {"message": {"role": "user", "content": "Where?"}},
        ],
        "output_messages": [
            {"message": {"role": "assistant", "tool_calls": [
                {"tool_call": {"function": {"name": "map", "arguments": "{}"}}}]}}
        ],
    },
    "session": {"id": "s"},
}  # fmt: skip
PROMPT = f"system:\n{'You answer in one word.' * 9}\n\nuser:\nWhere?\n\nassistant:\n"


def span(attributes, **other):
    return {
        "name": "llm", "context": {"trace_id": "t", "span_id": "a"}, "parent_id": None, "span_kind": "LLM",
        "start_time": "2026-01-01T00:00:00.000000+00:00", "end_time": "2026-01-01T00:00:02.500000+00:00",
        "status_code": "OK", "attributes": attributes,
    } | other  # fmt: skip


def check(row):
    assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"]) == (60, 6, 32)
    assert (row["model"], row["session"], row["e2e_s"]) == ("m", "s", 2.5)
    assert row["prompt_text"] == PROMPT
    assert row["output_text"] == '<tool_call>{"name": "map", "arguments": "{}"}</tool_call>'


def test_flat_and_nested_attributes(jsonl):
    chain = span({"openinference.span.kind": "CHAIN"}, context={"trace_id": "t", "span_id": "b"}, span_kind="CHAIN")
    nested = span(NESTED, context={"trace_id": "t", "span_id": "c"}, start_time="2026-01-01T00:00:00.000001+00:00",
                  end_time="2026-01-01T00:00:02.500001+00:00")  # fmt: skip
    trace = read_trace(jsonl([span(FLAT), chain, nested]))
    assert trace.format == "openinference"
    assert len(trace) == 2
    for row in trace.rows.to_dicts():
        check(row)
    assert {entry.reason: entry.rows for entry in trace.left_out} == {WRAPPERS: 1}


def test_columns_of_a_table(write):
    """Phoenix's table has a column for each attribute; lists and objects are JSON."""
    row = {
        "name": "llm", "span_kind": "LLM", "parent_id": "", "start_time": "2026-01-01 00:00:00.000000+00:00",
        "end_time": "2026-01-01 00:00:02.500000+00:00", "status_code": "OK", "context.span_id": "a",
        "context.trace_id": "t", "attributes.session.id": "s", "attributes.llm.model_name": "m",
        "attributes.llm.token_count.prompt": "60.0", "attributes.llm.token_count.completion": "6",
        "attributes.llm.token_count.prompt_details.cache_read": "32",
        "attributes.llm.input_messages": json.dumps(
            [{"message.role": "system", "message.content": "You answer in one word." * 9},
             {"message.role": "user", "message.content": "Where?"}]
        ),
        "attributes.llm.output_messages": json.dumps(NESTED["llm"]["output_messages"]),
    }  # fmt: skip
    failed = row | {"context.span_id": "b", "status_code": "ERROR"}
    text = io.StringIO()
    table = csv.DictWriter(text, row)
    table.writeheader()
    table.writerows([row, failed])
    trace = read_trace(write("spans.csv", text.getvalue()))
    assert (trace.format, len(trace)) == ("openinference", 1)
    check(trace.rows.to_dicts()[0])

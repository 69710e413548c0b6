"""Amazon Bedrock's invocation log: cached tokens on top, latencies inside bodies, no account in any message."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.formats.calls import EMBEDDINGS, REPEATED

ACCOUNT = "123456789012"


def entry(n=0, output=None, input=None, **other):
    return {
        "schemaType": "ModelInvocationLog", "schemaVersion": "1.0", "timestamp": f"2026-01-15T12:00:0{n}Z",
        "accountId": ACCOUNT, "region": "us-east-1", "requestId": f"q{n}", "operation": "Converse", "modelId": "m",
        "identity": {"arn": f"arn:aws:iam::{ACCOUNT}:user/someone"},
        "input": {"inputContentType": "application/json", "inputTokenCount": 20} | (input or {}),
        "output": {"outputContentType": "application/json", "outputTokenCount": 7} | (output or {}),
    } | other  # fmt: skip


def test_converse(jsonl):
    request = {
        "system": [{"text": "You are brief. " * 9}],
        "messages": [
            {"role": "user", "content": [{"text": "Sum?"}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "name": "add", "input": {"a": 1}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "1", "content": [{"json": {"sum": 2}}]}}]},
        ],
    }
    answer = {
        "output": {"message": {"role": "assistant", "content": [{"text": "Two."}]}},
        "metrics": {"latencyMs": 1250},
    }
    one = entry(0, {"outputBodyJson": answer}, {"inputBodyJson": request, "cacheReadInputTokenCount": 80,
                                                "cacheWriteInputTokenCount": 5})  # fmt: skip
    trace = read_trace(jsonl([one]))
    row = trace.rows.to_dicts()[0]
    assert trace.format == "bedrock"
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"], row["e2e_s"]) == (105, 80, 7, 1.25)
    assert row["output_text"] == "Two."
    assert row["prompt_text"] == (
        f"system:\n{'You are brief. ' * 9}\n\nuser:\nSum?\n\nassistant:\n"
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n\nuser:\n{"sum": 2}\n\nassistant:\n'
    )


def test_streams_tell_latencies_in_their_last_chunk(jsonl):
    chunks = [{"type": "message_start"}, {"type": "message_stop", "amazon-bedrock-invocationMetrics": {
        "inputTokenCount": 20, "outputTokenCount": 7, "invocationLatency": 2000, "firstByteLatency": 350}}]  # fmt: skip
    events = [{"messageStart": {}}, {"metadata": {"usage": {}, "metrics": {"latencyMs": 900}}}]
    trace = read_trace(jsonl([entry(0, {"outputBodyJson": chunks}), entry(1, {"outputBodyJson": events}), entry(2)]))
    assert trace.rows["e2e_s"].to_list() == [2.0, 0.9, None]
    assert trace.rows["ttft_s"].to_list() == [pytest.approx(0.35), None, None]


def test_what_is_left_out_and_said(jsonl):
    rows = [
        entry(0, input={"inputBodyS3Path": f"s3://bucket-{ACCOUNT}/x"}), entry(1, modelId="amazon.titan-embed-text-v2"),
        entry(2, errorCode="ThrottlingException", output={"outputTokenCount": None}), entry(0),
    ]  # fmt: skip
    trace = read_trace(jsonl(rows))
    found = {one.reason: one.rows for one in trace.left_out}
    assert (len(trace), found[EMBEDDINGS], found[REPEATED], sum(found.values())) == (1, 1, 1, 3)
    assert any("bodies of 1 calls are kept apart" in note for note in trace.notes)
    assert any("one second" in note for note in trace.notes)
    assert ACCOUNT not in json.dumps([trace.notes, list(found)])


def test_a_wrong_row_names_its_field_and_nobody(jsonl):
    with pytest.raises(TraceError, match=r":1: input\.inputTokenCount is '-5'") as raised:
        read_trace(jsonl([entry(0, input={"inputTokenCount": -5})]))
    assert ACCOUNT not in str(raised.value)

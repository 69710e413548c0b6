"""SageMaker Data Capture: bodies in JSON strings or Base64, streamed answers missing."""

from __future__ import annotations

import base64
import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.formats.sagemaker import NO_PROMPT

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Name the largest lake of the country, please." * 2}]}
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "It is this one."}}],
          "usage": {"prompt_tokens": 25, "completion_tokens": 5}}  # fmt: skip


def side(body, encoding="JSON"):
    text = body if isinstance(body, str) else json.dumps(body)
    data = base64.b64encode(text.encode()).decode() if encoding == "BASE64" else text
    return {"observedContentType": "application/json", "mode": "INPUT", "data": data, "encoding": encoding}


def capture(n=0, request=CHAT, response=ANSWER, encoding="JSON"):
    ends = {"endpointInput": side(request, encoding)}
    if response is not None:
        ends["endpointOutput"] = side(response, encoding)
    return {"captureData": ends, "eventVersion": "0",
            "eventMetadata": {"eventId": f"e{n}", "inferenceTime": f"2026-01-01T00:00:0{n}Z"}}  # fmt: skip


@pytest.mark.parametrize("encoding", ["JSON", "BASE64"])
def test_both_encodings(jsonl, encoding):
    trace = read_trace(jsonl([capture(0, encoding=encoding), capture(3, encoding=encoding)]))
    assert (trace.format, trace.duration_s) == ("sagemaker", 3.0)
    row = trace.rows.to_dicts()[0]
    assert (row["input_tokens"], row["output_tokens"], row["output_text"]) == (25, 5, "It is this one.")
    assert row["prompt_text"].startswith("user:\nName the largest lake")


def test_text_generation_inference(jsonl):
    answer = [{"generated_text": "Yes.", "details": {"generated_tokens": 2, "prefill": [{"id": 1}, {"id": 5}]}}]
    row = read_trace(jsonl([capture(0, {"inputs": "Is it?", "parameters": {}}, answer)])).rows.to_dicts()[0]
    assert (row["input_tokens"], row["output_tokens"], row["output_text"]) == (2, 2, "Yes.")
    assert row["prompt_text"] == "user:\nIs it?\n\nassistant:\n"


def test_streamed_answers_and_other_models(jsonl):
    rows = [capture(0), capture(1, response=None), capture(2, request="5.1,3.5,1.4", response="0")]
    trace = read_trace(jsonl(rows))
    assert trace.rows["output_tokens"].to_list() == [5, None]
    assert {entry.reason: entry.rows for entry in trace.left_out} == {NO_PROMPT: 1}
    assert any("1 calls have no captured response" in note for note in trace.notes)


@pytest.mark.parametrize("data", ["{broken", "****"])
def test_data_that_cannot_be_decoded(jsonl, data):
    bad = capture(1)
    bad["captureData"]["endpointInput"] |= {"data": data, "encoding": "JSON" if data[0] == "{" else "BASE64"}
    path = jsonl([capture(0), bad])
    with pytest.raises(TraceError, match=r":2: endpointInput\.data is not"):
        read_trace(path)
    assert len(read_trace(path, skip_bad_rows=True)) == 1

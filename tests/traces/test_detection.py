"""Formats are told by content; what is not read is refused by name."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

REFUSED = {
    "Dynamo": {"envelope": {"schema": "dynamo.request.trace.v1"}},
    "Bedrock": {"schemaType": "ModelInvocationLog", "input": {}},
    "SageMaker": {"captureData": {}, "eventMetadata": {}},
    "WEKA": {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": []},
    "RAGPulse": {"timestamp": "82", "input_length": 5, "output_length": 1, "hash_ids": {"sys_prompt": [1]}},
    "Qwen-Bailian": {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 0.5,
        "input_length": 5,
        "output_length": 1,
        "hash_ids": [1],
    },
    "agentic Mooncake": {"request_id": "a", "wait_for": [], "hash_ids": [1], "input_length": 5, "output_length": 1},
    "Mooncake with delays": {"session_id": "a", "delay": 5, "input_length": 5, "output_length": 1},
    "AIPerf profile export": {"metadata": {"request_start_ns": 1}, "metrics": {}},
    "AIPerf inputs": {"data": [{"session_id": "a", "payloads": []}]},
    "GuideLLM": {"benchmarks": []},
    "benchmark with details": {"input_lens": [1], "output_lens": [1], "ttfts": [0.1]},
    "--save-detailed": {"mean_ttft_ms": 5.0, "request_throughput": 1.0},
    "per_request": {"load_summary": {}, "successes": {}},
    "give profile_export.jsonl": {"schema_version": "1", "request_latency": {"avg": 1}},
    "individual_responses": {"results_ttft_s_mean": 1.0},
    "llmperf responses": {"error_code": None, "ttft_s": 0.1, "end_to_end_latency_s": 1.0},
    "inference-perf requests": {"start_time": 0, "end_time": 1, "request": "{}", "response": "", "info": {}},
    "OpenAI batch input": {"custom_id": "a", "method": "POST", "url": "/v1", "body": {}},
    "OpenAI batch output": {"custom_id": "a", "response": {}},
    "Anthropic message batch": {"custom_id": "a", "params": {}},
    "OTLP": {"resourceSpans": []},
    "OpenTelemetry spans": {"trace_id": "a", "spans": [{"attributes": {"gen_ai.system": "x"}}]},
    "OpenInference": {"attributes": {"llm.token_count.prompt": 5}},
    "Langfuse": {"trace": {}, "observations": []},
    "LiteLLM": {"call_type": "a", "startTime": 0, "endTime": 1, "prompt_tokens": 5, "completion_tokens": 1},
    "Databricks": {"databricks_request_id": "a"},
    "SGLang request log": {"event": "request.finished", "rid": "a"},
    "SGLang request metrics": {"request_parameters": "{}", "prompt_tokens": 5, "e2e_latency": 1.0},
    "Claude Code": {"type": "user", "sessionId": "a", "message": {}},
    "Codex": {"timestamp": "t", "type": "session_meta", "payload": {}},
    "TraceLab rounds": {"provider": "x", "session_id": "a", "round_index": 0, "newly_append_tokens": 5},
    "SWE-agent": {"trajectory": [], "history": []},
    "vLLM engine dump": {"input_toks": 5, "output_toks": 1, "queued_ts": 0, "first_token_ts": 1, "last_token_ts": 2},
    "LLMServingSim": {"input_toks": 5, "output_toks": 1, "arrival_time_ns": 0},
    "Baseten": {"timestamp_start_unix_ms": 0, "input_tokens": 5, "output_tokens": 1},
    "AIBrix": {"timestamp": 21, "requests": []},
    "MT-bench": {"question_id": 81, "turns": ["a", "b"]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_known_json_formats_are_refused_by_name(jsonl, name):
    with pytest.raises(TraceError, match=name):
        read_trace(jsonl([REFUSED[name]]))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("session_id,round_idx,prefix_len,input_len,output_len\n0,0,10,5,1\n", "TraceLab sessions"),
        ("Run Info,Run Info,Benchmark\nModel,Backend,Strategy\n", "benchmarks.json"),
        ("Metric,avg,min,max\nTTFT,1,1,1\n", "profile_export.jsonl"),
        ("t,prompt_throughput,gen_throughput,running\n1,2,3,4\n", "gauges"),
        (
            "(APIServer pid=1) INFO 02-13 11:33:33 [logger.py:49] Received request c-1: params: S(n=1, 2)\n",
            "vLLM server",
        ),
        ("[2025-06-05 03:20:05] Decode batch. #running-req: 1, gen throughput (token/s): 1\n", "SGLang server"),
    ],
)
def test_known_text_formats_are_refused_by_name(write, text, name):
    with pytest.raises(TraceError, match=name):
        read_trace(write("trace.csv", text))


def test_an_unknown_format_prints_keys_seen_and_formats_considered(jsonl):
    with pytest.raises(TraceError) as raised:
        read_trace(jsonl([{"colour": "red"}, {"shape": "round"}]))
    message = str(raised.value)
    assert "keys seen: colour, shape" in message
    for name in ("Mooncake", "ShareGPT", "chat JSONL", "JSONL by column names", "Dynamo request trace"):
        assert name in message
    assert "--trace-format (mooncake, azure, chat, sharegpt, csv, jsonl)" in message


def test_an_unknown_table_prints_its_columns(write):
    with pytest.raises(TraceError, match="keys seen: colour, shape; formats considered: Azure"):
        read_trace(write("trace.csv", "colour,shape\nred,round\n"))


def test_a_table_without_header_is_named(write):
    with pytest.raises(TraceError, match="no header row"):
        read_trace(write("trace.csv", "2023-11-16 18:17:03.9799600,4808,10\n"))


def test_the_format_can_be_chosen(jsonl):
    rows = [
        {"timestamp": 0, "input_length": 5, "output_length": 1},
        {"timestamp": 60, "input_length": 5, "output_length": 1},
    ]
    assert read_trace(jsonl(rows)).duration_s == 0.06
    assert read_trace(jsonl(rows), trace_format="jsonl").duration_s == 60.0


@pytest.mark.parametrize(("trace_format", "says"), [("vidur", "unknown trace format 'vidur'"), ("csv", "file is JSON")])
def test_a_wrong_choice_is_named(jsonl, trace_format, says):
    with pytest.raises(TraceError, match=says):
        read_trace(jsonl([{"input_tokens": 1, "output_tokens": 1}]), trace_format=trace_format)


def test_azure_can_only_be_chosen_for_its_columns(write):
    with pytest.raises(TraceError, match="needs columns contexttokens, generatedtokens, timestamp"):
        read_trace(write("t.csv", "input_tokens,output_tokens\n1,1\n"), trace_format="azure")


def test_a_text_that_looks_like_a_log_line_is_still_a_table(write):
    text = 'prompt,output_tokens\n"Received request a-1: what is it?",5\n'
    assert read_trace(write("t.csv", text)).format == "csv"


def test_json_without_objects(write):
    with pytest.raises(TraceError, match="holds no JSON object"):
        read_trace(write("t.json", json.dumps([])))

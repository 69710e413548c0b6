"""Formats are told by content; what is not read is refused by name."""

from __future__ import annotations

import json

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import FORMATS, read_trace
from inferdoc.traces.detection import Content, detect
from inferdoc.traces.formats import BY_NAME

RECORDS = {
    "inferdoc": {"inferdoc": 1, "input_tokens": 5, "output_tokens": 1},
    "dynamo": {"envelope": {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": {}}},
    "bedrock": {"schemaType": "ModelInvocationLog", "input": {}},
    "sagemaker": {"captureData": {}, "eventMetadata": {}},
    "weka": {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": []},
    "ragpulse": {"timestamp": "82", "input_length": 5, "output_length": 1, "hash_ids": {"sys_prompt": [1]}},
    "qwen-bailian": {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 0.5,
        "input_length": 5,
        "output_length": 1,
        "hash_ids": [1],
    },
    "mooncake-agentic": {"request_id": "a", "wait_for": [], "hash_ids": [1], "input_length": 5, "output_length": 1},
    "mooncake": {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]},
    "aiperf": {"metadata": {"request_start_ns": 1}, "metrics": {}},
    "aiperf-inputs": {"data": [{"session_id": "a", "payloads": []}]},
    "guidellm": {"benchmarks": [{"requests": {"successful": []}}]},
    "sglang-bench": {"input_lens": [1], "output_lens": [1], "ttfts": [0.1], "total_output_tokens_retokenized": 1},
    "vllm-bench": {"input_lens": [1], "output_lens": [1], "ttfts": [0.1], "mean_ttft_ms": 1.0},
    "llmperf": {"error_code": None, "ttft_s": 0.1, "end_to_end_latency_s": 1.0},
    "inference-perf": {"start_time": 0, "end_time": 1, "request": "{}", "response": "", "info": {}, "error": None},
    "openai-batch": {"custom_id": "a", "method": "POST", "url": "/v1", "body": {}},
    "openai-batch-output": {"custom_id": "a", "response": {}, "error": None},
    "anthropic-batch": {"custom_id": "a", "params": {}},
    "otlp": {"resourceSpans": []},
    "otel-spans": {"trace_id": "a", "spans": [{"attributes": {"gen_ai.system": "x"}}]},
    "openinference": {"attributes": {"llm.token_count.prompt": 5, "openinference.span.kind": "LLM"}},
    "langfuse": {"trace": {}, "observations": []},
    "litellm": {"call_type": "a", "startTime": 0, "endTime": 1, "prompt_tokens": 5, "completion_tokens": 1},
    "databricks": {"databricks_request_id": "a", "request": "{}", "response": "{}"},
    "sglang-requests": {"event": "request.finished", "rid": "a"},
    "sglang-metrics": {"request_parameters": "{}", "prompt_tokens": 5, "e2e_latency": 1.0},
    "claude-code": {"type": "user", "sessionId": "a", "message": {}},
    "codex": {"timestamp": "t", "type": "session_meta", "payload": {}},
    "tracelab": {"provider": "x", "session_id": "a", "round_index": 0, "newly_append_tokens": 5},
    "swe-agent": {"trajectory": [], "history": []},
    "vllm-engine": {"input_toks": 5, "output_toks": 1, "queued_ts": 0, "first_token_ts": 1, "last_token_ts": 2},
    "llmservingsim": {"input_toks": 5, "output_toks": 1, "arrival_time_ns": 0},
    "baseten": {"timestamp_start_unix_ms": 0, "input_tokens": 5, "output_tokens": 1},
    "aibrix": {"timestamp": 21, "requests": [{"Prompt Length": 5, "Output Length": 1}]},
    "sharegpt": {"id": "a", "conversations": [{"from": "human", "value": "x"}]},
    "chat": {"messages": [{"role": "user", "content": "x"}]},
    "turns": {"question_id": 81, "turns": ["a", "b"]},
    "prompts": {"prompt": "x", "output_tokens": 5},
    "jsonl": {"prompt_tokens": 5, "completion_tokens": 1},
}
HEADERS = {
    "azure": "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
    "burstgpt": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "vidur": ",arrived_at,num_prefill_tokens,num_decode_tokens",
    "splitwise": "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size",
    "tracelab-sessions": "session_id,round_idx,prefix_len,input_len,output_len",
    "csv": "prompt_tokens,completion_tokens",
}
LOGS = {
    "vllm-log": "(APIServer pid=1) INFO 02-13 11:33:33 [logger.py:49] Received request c-1: params: S(n=1, 2)",
    "sglang-log": "[2025-06-05 03:20:05] Decode batch. #running-req: 1, gen throughput (token/s): 1",
}
AGGREGATES = {
    "--save-detailed": {"mean_ttft_ms": 5.0, "request_throughput": 1.0, "completed": 3},
    "per_request": {"load_summary": {}, "successes": {}},
    "profile_export.jsonl": {"schema_version": "1", "request_latency": {"avg": 1}},
    "individual_responses": {"results_ttft_s_mean": 1.0},
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_told_by_their_keys(name):
    assert detect(Content("JSON", "x", records=[RECORDS[name]])).name == name


@pytest.mark.parametrize("name", HEADERS)
def test_tables_are_told_by_their_header(name):
    assert detect(Content("CSV", "x", header=HEADERS[name].split(","), lines=[HEADERS[name]])).name == name


@pytest.mark.parametrize("name", LOGS)
def test_logs_are_told_by_their_lines(name):
    assert detect(Content("CSV", "x", header=LOGS[name].split(","), lines=["start", LOGS[name]])).name == name


def test_every_format_is_told_by_something_here_or_only_by_its_name():
    told = {*RECORDS, *HEADERS, *LOGS}
    tested_with_their_readers = {"genai-perf", "helicone", "openrouter", "langsmith", "openhands"}
    only_by_name = {name for name in FORMATS if not BY_NAME[name].detected}
    assert set(FORMATS) == told | tested_with_their_readers | only_by_name


@pytest.mark.parametrize("says", AGGREGATES)
def test_aggregates_are_refused_with_the_way_to_the_requests(says):
    with pytest.raises(TraceError, match=f"^x: is .*aggregates only.*{says}"):
        detect(Content("JSON", "x", records=[AGGREGATES[says]]))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("Run Info,Run Info,Benchmark", "benchmarks.json"),
        ("Metric,avg,min,max", "profile_export.jsonl"),
        ("t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct", "gauges"),
    ],
)
def test_tables_of_aggregates_are_refused(header, says):
    with pytest.raises(TraceError, match=f"^x: is .*{says}"):
        detect(Content("CSV", "x", header=header.split(",")))


def test_an_unknown_format_prints_keys_seen_and_formats_considered(jsonl):
    with pytest.raises(TraceError) as raised:
        read_trace(jsonl([{"colour": "red"}, {"shape": "round"}]))
    message = str(raised.value)
    assert "keys seen: colour, shape" in message
    for name in ("mooncake", "sharegpt", "chat", "jsonl", "dynamo"):
        assert f" {name}" in message
    assert "vidur" not in message


def test_an_unknown_table_prints_its_columns(write):
    with pytest.raises(TraceError, match=r"keys seen: colour, shape; formats considered: .*azure.*, csv;"):
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


@pytest.mark.parametrize(
    ("trace_format", "says"),
    [
        ("mine", "unknown trace format 'mine'; choose one of .*dynamo, "),
        ("csv", "the file is JSON; it looks like Mooncake"),
        ("vllm-bench", "does not fit: the file looks like Mooncake: leave --trace-format out"),
    ],
)
def test_a_wrong_choice_is_named(jsonl, trace_format, says):
    with pytest.raises(TraceError, match=says):
        read_trace(jsonl([{"input_length": 1, "output_length": 1}]), trace_format=trace_format)


def test_a_choice_against_a_refused_file_says_what_it_is(jsonl):
    with pytest.raises(TraceError, match="looks like vLLM benchmark result: aggregates only"):
        read_trace(jsonl([AGGREGATES["--save-detailed"]]), trace_format="chat")


def test_a_choice_that_fits_less_well_is_taken_and_said(jsonl):
    trace = read_trace(jsonl([RECORDS["qwen-bailian"]]), trace_format="mooncake")
    assert (trace.format, trace.time_unit) == ("mooncake", "ms")
    assert "read as mooncake, as asked; the file looks like Qwen-Bailian" in trace.notes


def test_azure_can_only_be_chosen_for_its_columns(write):
    with pytest.raises(TraceError, match="looks like CSV by column names"):
        read_trace(write("t.csv", "input_tokens,output_tokens\n1,1\n"), trace_format="azure")


def test_a_text_that_looks_like_a_log_line_is_still_a_table(write):
    text = 'prompt,output_tokens\n"Received request a-1: what is it?",5\n'
    assert read_trace(write("t.csv", text)).format == "csv"


def test_json_without_objects(write):
    with pytest.raises(TraceError, match="holds no JSON object"):
        read_trace(write("t.json", json.dumps([])))

"""Which format a file is in, by its content: the keys of its first records, or its header.

The order is that of specificity: a format that adds fields to another one stands before it. Formats that are known
but not read yet are refused by name, so that none is taken for a similar one with other units; results that hold only
aggregates are refused with the way to get per-request data from the same tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from inferdoc.errors import TraceError
from inferdoc.traces import aliases
from inferdoc.traces.ledger import shorten
from inferdoc.traces.readers import azure, sharegpt

FORMATS = ("mooncake", "azure", "chat", "sharegpt", "csv", "jsonl")
"""Formats that are read; ``csv`` and ``jsonl`` go by column names."""
TABLE_FORMATS = ("azure", "csv")
_KEYS_SHOWN = 20
_KEY_LENGTH = 40

Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Signature:
    """A format and what tells it. `format` is the reader; without one, `advice` says what to do instead."""

    name: str
    matches: Callable[[Keys], bool]
    format: str | None = None
    advice: str = "not read yet"


def _has(*names: str) -> Callable[[Keys], bool]:
    return lambda record: all(name in record for name in names)


def _list_with(field: str, *names: str) -> Callable[[Keys], bool]:
    """Field `field` is a list whose first element has all of `names`."""

    def matches(record: Keys) -> bool:
        values = record.get(field)
        return (
            isinstance(values, list)
            and bool(values)
            and isinstance(values[0], Mapping)
            and all(name in values[0] for name in names)
        )

    return matches


def _any_of(*tests: Callable[[Keys], bool]) -> Callable[[Keys], bool]:
    return lambda record: any(test(record) for test in tests)


def _all_of(*tests: Callable[[Keys], bool]) -> Callable[[Keys], bool]:
    return lambda record: all(test(record) for test in tests)


def _is_dynamo(record: Keys) -> bool:
    schemas = [record.get("schema"), *(v.get("schema") for v in record.values() if isinstance(v, Mapping))]
    return any(isinstance(schema, str) and schema.startswith("dynamo.") for schema in schemas)


def _has_prefix(*prefixes: str) -> Callable[[Keys], bool]:
    return lambda record: any(name.startswith(prefixes) for name in record)


def _has_lengths(record: Keys) -> bool:
    roles, _ = aliases.match(record)
    return "input_tokens" in roles and "output_tokens" in roles


_LENGTHS_ONLY = "not read yet; --trace-format jsonl reads its lengths and arrival times"
_LIFECYCLE = "set report.request_lifecycle.per_request: true and give per_request_lifecycle_metrics.json"
_BENCH = "aggregates only; run again with --save-detailed (vLLM) or --output-details (SGLang) for data of each request"

JSON_SIGNATURES = (
    Signature("Dynamo request trace", _is_dynamo),
    Signature("Bedrock invocation log", lambda record: record.get("schemaType") == "ModelInvocationLog"),
    Signature("SageMaker data capture", _has("captureData", "eventMetadata")),
    Signature("WEKA agentic trace", _all_of(_has("requests", "block_size"), _has_prefix("hash_id_scope", "tool_tok"))),
    Signature("RAGPulse", lambda record: isinstance(record.get("hash_ids"), Mapping)),
    Signature("Qwen-Bailian", _has("chat_id", "parent_chat_id", "hash_ids")),
    Signature("agentic Mooncake", _all_of(_has("request_id", "hash_ids"), _has_prefix("wait_for", "tool_wait_ms"))),
    Signature("Mooncake with delays", _all_of(_has("session_id"), _any_of(_has("delay"), _has("delay_ms")))),
    Signature("Mooncake", _has("input_length", "output_length"), "mooncake"),
    Signature("AIPerf profile export", _all_of(_has("metadata", "metrics"))),
    Signature("AIPerf inputs", _list_with("data", "session_id", "payloads")),
    Signature("GuideLLM benchmarks", _has("benchmarks")),
    Signature("vLLM or SGLang benchmark with details", _has("input_lens", "output_lens", "ttfts")),
    Signature("vLLM or SGLang benchmark", _has("mean_ttft_ms"), advice=_BENCH),
    Signature("vLLM or SGLang benchmark", _has("request_throughput", "completed"), advice=_BENCH),
    Signature("inference-perf summary", _has("load_summary", "successes"), advice=f"aggregates only; {_LIFECYCLE}"),
    Signature(
        "AIPerf summary", _has("schema_version", "request_latency"), advice="aggregates only; give profile_export.jsonl"
    ),
    Signature(
        "llmperf summary", _has_prefix("results_ttft_s"), advice="aggregates only; give *_individual_responses.json"
    ),
    Signature("llmperf responses", _has("error_code", "ttft_s", "end_to_end_latency_s")),
    Signature("inference-perf requests", _has("start_time", "end_time", "request", "response", "info")),
    Signature("OpenAI batch input", _has("custom_id", "body")),
    Signature("OpenAI batch output", _has("custom_id", "response")),
    Signature("Anthropic message batch", _all_of(_has("custom_id"), _any_of(_has("params"), _has("result")))),
    Signature("OpenTelemetry (OTLP/JSON)", _has("resourceSpans")),
    Signature("OpenTelemetry spans", _list_with("spans", "attributes")),
    Signature("OpenInference spans", lambda r: _has_prefix("llm.", "openinference.")(r.get("attributes") or {})),
    Signature("Langfuse export", _any_of(_has("trace", "observations"), _has("type", "usageDetails"))),
    Signature("LiteLLM log", _has("call_type", "startTime", "endTime", "prompt_tokens")),
    Signature("Databricks inference table", _has("databricks_request_id")),
    Signature("SGLang request log", lambda record: str(record.get("event", "")).startswith("request.")),
    Signature("SGLang request metrics", _has("request_parameters", "prompt_tokens", "e2e_latency")),
    Signature("Claude Code session", _has("type", "sessionId")),
    Signature("Codex session", _has("timestamp", "type", "payload")),
    Signature("TraceLab rounds", _has("provider", "session_id", "round_index", "newly_append_tokens")),
    Signature("SWE-agent trajectory", _has("trajectory", "history")),
    Signature("vLLM engine dump", _has("queued_ts", "first_token_ts", "last_token_ts"), advice=_LENGTHS_ONLY),
    Signature(
        "LLMServingSim workload",
        _any_of(_has("input_toks", "output_toks", "arrival_time_ns"), _has("sub_requests")),
        advice=_LENGTHS_ONLY,
    ),
    Signature("Baseten trace", _has("timestamp_start_unix_ms", "input_tokens")),
    Signature("AIBrix workload", _has("timestamp", "requests")),
    Signature("ShareGPT", lambda record: any(isinstance(record.get(key), list) for key in sharegpt.KEYS), "sharegpt"),
    Signature("chat JSONL", lambda record: isinstance(record.get("messages"), list), "chat"),
    Signature("multi-turn prompts (MT-bench)", _has("turns"), advice="not read yet; it holds no answers"),
    Signature("JSONL by column names", _has_lengths, "jsonl"),
    Signature("prompts with text", _any_of(_has("prompt"), _has("text"), _has("text_input")), "jsonl"),
)

TABLE_SIGNATURES = (
    Signature("Azure", lambda header: {name.lower() for name in header} >= azure.HEADER, "azure"),
    Signature("TraceLab sessions", _has("prefix_len", "input_len", "output_len")),
    Signature("GuideLLM CSV", _has("Run Info"), advice="aggregates only; give benchmarks.json"),
    Signature("AIPerf CSV", _has("Metric", "avg"), advice="aggregates only; give profile_export.jsonl"),
    Signature("engine gauges", _has("prompt_throughput", "running"), advice="gauges over time, not requests"),
    Signature("CSV by column names", _any_of(_has_lengths, _has("prompt")), "csv"),
)

_LOG_LINES = (
    ("vLLM server log", re.compile(r"Received request \S+:|Avg prompt throughput:")),
    ("SGLang server log", re.compile(r"(Receive|Finish): obj=|(Prefill|Decode) batch[. ,]")),
)


def detect_records(records: Sequence[Keys], where: str) -> str:
    """The format of JSON records.

    Raises:
        TraceError: a format that is known but not read, or an unknown one (with keys seen and formats considered).
    """
    return _first_match(JSON_SIGNATURES, records, where) or _refuse_unknown(JSON_SIGNATURES, records, where)


def detect_table(header: Sequence[str], head: str, where: str) -> str:
    """The format of a table with this header; `head` is the beginning of the file.

    Raises:
        TraceError: as `detect_records`; a server's log; a table without a header.
    """
    keys = dict.fromkeys(header)
    found = _first_match(TABLE_SIGNATURES, [keys], where)
    if found is not None:
        return found
    for name, pattern in _LOG_LINES:
        if pattern.search(head):
            raise TraceError(f"is a {name}: not read yet", where=where)
    if any(_is_number(name) for name in header):
        raise TraceError(
            f"has no header row (the first line is {shorten(','.join(header))}); put the column names there",
            where=where,
        )
    return _refuse_unknown(TABLE_SIGNATURES, [keys], where)


def check_format(trace_format: str, *, is_json: bool, where: str) -> str:
    """A format that the user named, if it can be this file's.

    Raises:
        TraceError: no such format, or one of the other family (JSON, CSV).
    """
    if trace_format not in FORMATS:
        raise TraceError(f"unknown trace format {trace_format!r}; choose one of {', '.join(FORMATS)}", where=where)
    if is_json == (trace_format in TABLE_FORMATS):
        family, fitting = ("JSON", "mooncake, chat, sharegpt, jsonl") if is_json else ("CSV", ", ".join(TABLE_FORMATS))
        raise TraceError(f"trace format {trace_format!r}: the file is {family}; choose one of {fitting}", where=where)
    return trace_format


def _first_match(signatures: Sequence[Signature], records: Sequence[Keys], where: str) -> str | None:
    for signature in signatures:
        if not any(signature.matches(record) for record in records):
            continue
        if signature.format is None:
            raise TraceError(f"is {signature.name}: {signature.advice}", where=where)
        return signature.format
    return None


def _refuse_unknown(signatures: Sequence[Signature], records: Sequence[Keys], where: str) -> NoReturn:
    keys = list(dict.fromkeys(key[:_KEY_LENGTH] for record in records for key in record))
    shown = ", ".join(keys[:_KEYS_SHOWN]) + (", ..." if len(keys) > _KEYS_SHOWN else "")
    considered = ", ".join(dict.fromkeys(signature.name for signature in signatures))
    raise TraceError(
        f"unknown trace format; keys seen: {shown or 'none'}; formats considered: {considered};"
        f" name the columns input_tokens and output_tokens, or choose --trace-format ({', '.join(FORMATS)})",
        where=where,
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

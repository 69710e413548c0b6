"""Amazon Bedrock's model invocation log (S3 or CloudWatch): one object a call, times of one second.

Cached tokens are counted beside the input tokens, not inside. Latencies stand only in some bodies: of Converse calls,
and of streamed InvokeModel calls. The log carries principals and account numbers: none of them is read.
Format: https://docs.aws.amazon.com/bedrock/latest/userguide/model-invocation-logging.html
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import EMBEDDINGS, Calls
from inferdoc.traces.formats.format import Format
from inferdoc.traces.formats.logged_bodies import output_text, prompt_text
from inferdoc.traces.formats.values import at, decoded, first, positive
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

_METRICS = "amazon-bedrock-invocationMetrics"
_NAMES = {
    "arrival": "timestamp",
    "input_tokens": "input.inputTokenCount",
    "output_tokens": "output.outputTokenCount",
    "cache_read": "input.cacheReadInputTokenCount",
    "e2e_s": "latencyMs",
    "ttft_s": "firstByteLatency",
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    moved = 0
    for line, record in records:
        if "embed" in str(record.get("modelId")).lower():
            calls.leave_out(line, EMBEDDINGS)
            continue
        given, answer = record.get("input"), record.get("output")
        moved += at(given, "inputBodyS3Path") is not None
        body, latencies = decoded(at(answer, "outputBodyJson")), _latencies(decoded(at(answer, "outputBodyJson")))
        row = {
            "arrival": record.get("timestamp"),
            "input_tokens": at(given, "inputTokenCount"),
            "output_tokens": at(answer, "outputTokenCount"),
            "cache_read": at(given, "cacheReadInputTokenCount"),
            "cache_creation": at(given, "cacheWriteInputTokenCount"),
            "e2e_s": positive(first(latencies, "latencyMs", "invocationLatency")),
            "ttft_s": positive(latencies.get("firstByteLatency")),
            "model": record.get("modelId"),
            "error": record.get("errorCode"),
            "prompt_text": prompt_text(at(given, "inputBodyJson"), line=line),
            "output_text": output_text(body, line=line) if isinstance(body, Mapping) else None,
        }
        calls.add(line, row, identity=record.get("requestId"))
    calls.notes.append("times have a resolution of one second: burstiness below it cannot be seen")
    if moved:
        calls.notes.append(f"bodies of {moved:,} calls are kept apart in S3: their texts and latencies are not here")
    return calls.draft("bedrock", _NAMES, units={"e2e_s": "ms", "ttft_s": "ms"})


def _latencies(body: Any) -> Mapping[str, Any]:
    """The measurements that a body ends with: of Converse, or in the last chunks of a stream."""
    for chunk in reversed(body) if isinstance(body, list) else (body,):
        for path in (("metrics",), ("metadata", "metrics"), (_METRICS,)):
            found = at(chunk, *path)
            if isinstance(found, Mapping):
                return found
    return {}


FORMAT = Format(
    "bedrock",
    "Amazon Bedrock invocation log",
    lambda record: record.get("schemaType") == "ModelInvocationLog",
    read,
)

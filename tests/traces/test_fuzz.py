"""Broken copies of real files: a trace or one clear error, never anything else."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferdoc.errors import TraceError
from inferdoc.traces import FORMATS, Trace, read_trace

FILES = (
    "aibrix/ten_requests.subset.jsonl",
    "aiperf/profile_export.jsonl",
    "azure/AzureLLMInferenceTrace_code.csv",
    "burstgpt/BurstGPT_3.first_rows.csv",
    "fastchat/mt_bench_question.jsonl",
    "fastchat/sharegpt_dummy_conversation.json",
    "guidellm/benchmarks_stripped_v0.3.json",
    "langfuse/openai-agents-2025-09-30.trace.json",
    "llmperf/groq_70b_individual_responses.json",
    "llmservingsim/workload_me2_01_mixed.jsonl",
    "llmservingsim/vllm_qwen3-32b_requests.jsonl",
    "mooncake/mooncake_trace.slice56.jsonl",
    "openai-batch/aibrix_sample_job_input.jsonl",
    "otel/simple_chain.json",
    "qwen-bailian/qwen_thinking_blksz_16.first_row.jsonl",
    "ragpulse/0_trace.jsonl",
    "sglang-bench/sglang_bench_serving_output_details.jsonl",
    "splitwise-sim/test_trace.csv",
    "swe-agent/marshmallow-1867_default.traj",
    "tracelab/claude_code_session.jsonl",
    "tracelab/codex_rollout.jsonl",
    "tracelab/round_trace.sanitized.jsonl",
    "tracelab/session_workload_example.csv",
    "vidur/splitwise_code.csv",
    "vllm-bench/vllm_bench_serve_save_detailed.json",
    "weka/trace_0026.json",
)
LOG = (
    b"(APIServer pid=9) INFO 02-13 11:33:33 [logger.py:49] Received request c-1: prompt: 'a', params: P(max_tokens=9)\n"
    b"INFO 02-13 11:33:39 [loggers.py:257] Engine 000: Avg prompt throughput: 0.8 tokens/s, Running: 0 reqs\n"
    b"[2025-06-05 03:20:05] Finish: obj=GenerateReqInput(rid='a'), out={'meta_info': {'prompt_tokens': 5,"
    b" 'completion_tokens': 2, 'cached_tokens': 0, 'e2e_latency': 0.5}}\n"
)
BYTES = 12_000
PIECES = [b"null", b"-1", b'"x"', b"[]", b"{}", b"NaN", b"1e999", b"\n", b",", b'"', b"}", b"\xff", b"\x00", b"9" * 25]
EDITS = st.tuples(
    st.sampled_from(["insert", "delete", "repeat", "replace", "cut"]), st.floats(0, 1), st.sampled_from(PIECES)
)


@cache
def beginning(path):
    return LOG if path is None else path.read_bytes()[:BYTES]


def mutated(data, edits):
    for kind, place, piece in edits:
        at = int(place * len(data))
        data = {
            "insert": data[:at] + piece + data[at:],
            "delete": data[:at] + data[at + len(piece) :],
            "repeat": data[:at] + data[max(0, at - 200) :],
            "replace": _value_replaced(data, at, piece),
            "cut": data[: max(at, 1)],
        }[kind]
    return data


def _value_replaced(data, at, piece):
    """The value behind the next colon or comma is another one: most such files are still of their format."""
    start = min((found + 1 for found in (data.find(b":", at), data.find(b",", at)) if found >= 0), default=at)
    end = min((found for found in (data.find(b",", start), data.find(b"}", start)) if found >= 0), default=len(data))
    return data[:start] + piece + data[end:]


@pytest.mark.parametrize("name", [*FILES, None], ids=str)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(EDITS, min_size=1, max_size=4),
    skip=st.booleans(),
    trace_format=st.one_of(st.none(), st.none(), st.sampled_from(FORMATS)),
)
def test_mutated_files_give_a_trace_or_one_error(shared, name, edits, skip, trace_format):
    original = None if name is None else shared / "traces" / name
    with TemporaryDirectory() as folder:
        path = Path(folder) / (original.name if original else "server.log")
        path.write_bytes(mutated(beginning(original), edits))
        try:
            trace = read_trace(path, trace_format=trace_format, skip_bad_rows=skip)
        except TraceError as error:
            message = str(error)
            assert message.startswith(str(path))
            assert "\n" not in message
            return
        assert isinstance(trace, Trace)
        assert len(trace) > 0
        trace.fingerprint()
        trace.workload()

"""Every public trace opens with exactly the requests that it holds, or is refused with the reason and a way on.

The numbers are those of the list of the folder (its README), which was made by other programs than ours.
"""

from __future__ import annotations

import re

import polars as pl
import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace

WEKA = {
    26: 3, 34: 7, 86: 24, 129: 24, 167: 18, 174: 6, 242: 3, 274: 105, 277: 53, 291: 32, 301: 71, 358: 15, 455: 51,
    504: 3, 505: 8, 527: 51,
}  # fmt: skip
OTEL = {
    "code_review_workflow": 15, "customer_support_escalation": 9, "fan_in_dependencies": 4, "multi_agent_research": 12,
    "parallel_requests": 5, "prefix_sharing_example": 7, "simple_chain": 3, "simple_chain_alt": 3,
    "software_architecture_review": 15,
}  # fmt: skip
SIMULATED = "llmservingsim/vllm_llama-3.1-8b_rtx4090", "llmservingsim/vllm_qwen3-32b"
ARXIV = "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"

# Format, requests in the file, and how many of them failed.
REQUESTS: dict[str, tuple[str, int, int]] = {
    "aibrix/ten_requests.subset.jsonl": ("aibrix", 3, 0),
    "aiperf/inputs.json": ("aiperf-inputs", 105, 0),
    "aiperf/profile_export.jsonl": ("aiperf", 105, 2),
    "azure/AzureLLMInferenceTrace_code.csv": ("azure", 8819, 0),
    "azure/AzureLLMInferenceTrace_conv.csv": ("azure", 19366, 0),
    "burstgpt/BurstGPT_1.first_rows.csv": ("burstgpt", 3, 0),
    "burstgpt/BurstGPT_3.first_rows.csv": ("burstgpt", 4, 0),
    "fastchat/mt_bench_question.jsonl": ("turns", 80 * 2, 0),
    "fastchat/sharegpt_dummy_conversation.json": ("sharegpt", 1000, 0),
    "guidellm/benchmarks_stripped_v0.3.json": ("guidellm", 1, 0),
    "guidellm/benchmarks_v0.8.1.json": ("guidellm", 80, 1),
    "hf-inference-benchmarker/chat.json": ("sharegpt", 7, 0),
    "langfuse/claude-agent-2025-12-22.trace.json": ("langfuse", 4, 0),
    "langfuse/langgraph-python-2025-08-22.trace.json": ("langfuse", 2, 0),
    "langfuse/openai-agents-2025-09-30.trace.json": ("langfuse", 2, 0),
    **{f"llmperf/{name}_70b_individual_responses.json": ("llmperf", 150, 0) for name in ("anyscale", "groq")},
    "llmperf/bedrock_70b_individual_responses.json": ("llmperf", 150, 49),
    "llmservingsim/example_trace.jsonl": ("llmservingsim", 10, 0),
    "llmservingsim/workload_me2_01_mixed.jsonl": ("llmservingsim", 608, 0),
    "llmservingsim/sharegpt-qwen3-32b-300-sps10.blocks16.jsonl": ("llmservingsim", 300, 0),
    **{f"{name}_requests.jsonl": ("vllm-engine", 300, 0) for name in SIMULATED},
    "mooncake/conversation_trace.jsonl": ("mooncake", 12031, 0),
    "mooncake/mooncake_trace.slice56.jsonl": ("mooncake", 56, 0),
    "mooncake/synthetic_trace.jsonl": ("mooncake", 3993, 0),
    "openai-batch/aibrix_sample_job_input.jsonl": ("openai-batch", 10, 0),
    **{f"otel/{name}.json": ("otel-spans", count, 0) for name, count in OTEL.items()},
    "qwen-bailian/qwen_thinking_blksz_16.first_row.jsonl": ("qwen-bailian", 1, 0),
    "ragpulse/0_trace.jsonl": ("ragpulse", 7106, 0),
    "sglang-bench/sglang_bench_serving_output_details.jsonl": ("sglang-bench", 50, 1),
    "splitwise-sim/test_trace.csv": ("splitwise", 3, 0),
    "swe-agent/ctf_crypto_katy.traj": ("swe-agent", 18, 0),
    "swe-agent/marshmallow-1867_default.traj": ("swe-agent", 11, 0),
    "swe-agent/marshmallow-1867_function_calling_replace.traj": ("swe-agent", 11, 0),
    "swe-agent/pydicom-1458_gpt4.traj": ("swe-agent", 12, 0),
    "tracelab/claude_code_session.jsonl": ("claude-code", 10, 0),
    "tracelab/codex_rollout.jsonl": ("codex", 9, 0),
    "tracelab/multi_session_large.csv": ("tracelab-sessions", 303, 0),
    "tracelab/round_trace.sanitized.jsonl": ("tracelab", 19, 0),
    "tracelab/session_workload_example.csv": ("tracelab-sessions", 11, 0),
    ARXIV: ("vidur", 28257, 0),
    "vidur/splitwise_code.csv": ("vidur", 8819, 0),
    "vidur/splitwise_conv.csv": ("vidur", 19366, 0),
    "vllm-bench/vllm_bench_serve_save_detailed.json": ("vllm-bench", 120, 3),
    **{f"weka/trace_{number:04}.json": ("weka", count, 0) for number, count in WEKA.items()},
}
TABLES = ("1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search")
REFUSED: dict[str, str] = {
    "aiperf/profile_export_aiperf.csv": "aggregates only; give the profile_export.jsonl",
    "aiperf/profile_export_aiperf.json": "aggregates only; give the profile_export.jsonl",
    "guidellm/benchmarks_v0.8.1.csv": "aggregates only.*benchmarks.json",
    "guidellm/guidellm_report_v2_no_request_samples.json": r"no samples of its requests \(4 ran\)",
    "inference-perf/stage_3_lifecycle_metrics.json": "aggregates only; set .*per_request: true",
    "inference-perf/summary_lifecycle_metrics.json": "aggregates only; set .*per_request: true",
    **{
        f"llmperf/{name}_70b_summary.json": "aggregates only; give the .*_individual_responses.json"
        for name in ("anyscale", "bedrock", "groq")
    },
    **{f"{name}_meta.json": "settings of a benchmark run.*requests.jsonl" for name in SIMULATED},
    **{f"{name}_timeseries.csv": "gauges once a second, not requests.*requests.jsonl" for name in SIMULATED},
    **{f"ragpulse/{name}.jsonl": "it holds no requests; give 0_trace.jsonl" for name in TABLES},
}
FAILURES = re.compile("failed requests|too few tokens")


def test_no_file_is_forgotten(shared):
    folder = shared / "traces"
    data = {path for path in folder.rglob("*") if path.is_file() and "LICENSES" not in path.parts}
    files = {path.relative_to(folder).as_posix() for path in data} - {"README.md", "FORMATS.md"}
    assert files == {*REQUESTS, *REFUSED}
    assert len(files) == 87


def test_the_captured_workloads_have_the_numbers_of_the_list():
    assert sum(WEKA.values()) == 474
    assert sum(OTEL.values()) == 73
    assert sum(count for name, (_, count, _) in REQUESTS.items() if name.startswith("swe-agent/")) == 52


@pytest.mark.parametrize("name", REQUESTS)
def test_every_request_is_read_or_counted_as_failed(shared, name):
    trace = read_trace(shared / "traces" / name)
    failed = sum(entry.rows for entry in trace.left_out if FAILURES.search(entry.reason))
    assert (trace.format, len(trace) + failed, failed) == REQUESTS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_holds_no_requests_is_refused_with_a_way_on(shared, name):
    path = shared / "traces" / name
    with pytest.raises(TraceError, match=REFUSED[name]) as raised:
        read_trace(path)
    assert str(raised.value).startswith(f"{path}: is ")
    assert "\n" not in str(raised.value)


def test_a_folder_of_conversations_is_one_trace_without_a_rate(shared):
    trace = read_trace(shared / "traces/weka")
    assert (len(trace), trace.rows["segment"].n_unique()) == (474, 16)
    assert (trace.duration_s, trace.rate_per_s) == (None, None)
    starts = trace.rows.group_by("segment").agg(pl.col("arrival_s").min())["arrival_s"]
    assert starts.to_list() == [0.0] * 16


def test_a_pattern_takes_some_files(shared):
    trace = read_trace(f"{shared}/traces/azure/*.csv")
    assert len(trace) == 8819 + 19366
    assert trace.source == "*.csv (2 files)"


def test_a_folder_of_several_formats_names_two_of_them(shared):
    with pytest.raises(TraceError, match=r"is a file of the settings of a benchmark run: .*|is vLLM .*, but .* is LLM"):
        read_trace(shared / "traces/llmservingsim")

"""The formats that are read, and those that are refused by name; one small module for each.

The order is that of specificity: a format that adds fields to another one stands before it, and what goes by the names
of columns stands last. Refusals (results that hold only aggregates) are looked at after the formats that they could be
taken for, and before the general ones.
"""

from __future__ import annotations

from types import ModuleType

from inferdoc.traces.formats import (
    aibrix,
    aiperf,
    anthropic_batch,
    azure,
    baseten,
    bedrock,
    burstgpt,
    canonical,
    chat,
    claude_code,
    codex,
    databricks,
    dynamo,
    genai_perf,
    guidellm,
    helicone,
    inference_perf,
    langfuse,
    langsmith,
    litellm,
    llmperf,
    llmservingsim,
    mooncake,
    mooncake_variants,
    openai_batch,
    openhands,
    openinference,
    openrouter,
    otel_spans,
    otlp,
    prompts,
    qwen_bailian,
    ragpulse,
    sagemaker,
    sglang_bench,
    sglang_log,
    sglang_metrics,
    sharegpt,
    splitwise,
    swe_agent,
    table,
    tracelab,
    tracelab_sessions,
    turns,
    vidur,
    vllm_bench,
    vllm_engine,
    vllm_log,
    weka,
)
from inferdoc.traces.formats.format import Format, Refusal

_SPECIFIC: tuple[ModuleType, ...] = (
    canonical, dynamo, bedrock, sagemaker, weka, ragpulse, qwen_bailian, mooncake_variants, mooncake, aiperf, guidellm,
    sglang_bench, vllm_bench, genai_perf, llmperf, inference_perf, openai_batch, anthropic_batch, otlp, otel_spans,
    openinference, langfuse, litellm, databricks, sglang_log, sglang_metrics, helicone, openrouter, langsmith,
    claude_code, codex, tracelab, swe_agent, openhands, vllm_engine, llmservingsim, baseten, aibrix, azure, burstgpt,
    vidur, splitwise, tracelab_sessions, vllm_log,
)  # fmt: skip
_GENERAL: tuple[ModuleType, ...] = (sharegpt, chat, turns, prompts, table)


def _formats(modules: tuple[ModuleType, ...]) -> list[Format]:
    return [entry for module in modules for entry in getattr(module, "FORMATS", None) or (module.FORMAT,)]


def _refusals(modules: tuple[ModuleType, ...]) -> list[Refusal]:
    return [entry for module in modules for entry in getattr(module, "REFUSALS", ())]


REGISTRY: tuple[Format | Refusal, ...] = (
    *_formats(_SPECIFIC),
    *_refusals(_SPECIFIC + _GENERAL),
    *_formats(_GENERAL),
)
FORMATS: tuple[str, ...] = tuple(entry.name for entry in REGISTRY if isinstance(entry, Format))
"""Names of the formats that are read, as ``--trace-format`` takes them."""
BY_NAME: dict[str, Format] = {entry.name: entry for entry in REGISTRY if isinstance(entry, Format)}

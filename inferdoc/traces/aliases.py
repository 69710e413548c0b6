"""What the columns of logs mean, by the names that people give them."""

from __future__ import annotations

from collections.abc import Iterable

from inferdoc.traces.columns import split_unit, words

ALIASES: dict[str, tuple[str, ...]] = {
    "arrival": (
        "timestamp", "ts", "time", "arrival", "arrived_at", "arrival_time", "arrival_timestamp", "start_time",
        "request_time", "created", "created_at", "t",
    ),
    "input_tokens": (
        "input_tokens", "prompt_tokens", "input_length", "input_len", "prompt_len", "prompt_length", "context_tokens",
        "request_tokens", "num_prefill_tokens", "prompt_size", "input_toks", "in", "isl", "number_input_tokens",
    ),
    "output_tokens": (
        "output_tokens", "completion_tokens", "output_length", "output_len", "generated_tokens", "response_tokens",
        "num_decode_tokens", "token_size", "output_toks", "out", "osl", "number_output_tokens",
    ),
    "cached_tokens": ("cached_tokens", "cached_input_tokens", "num_cached_tokens", "input_cached_tokens"),
    "cache_read": ("cache_read_input_tokens",),
    "cache_creation": ("cache_creation_input_tokens",),
    "session": (
        "session_id", "session", "conversation_id", "chat_id", "thread_id", "x_correlation_id", "trace_id",
    ),
    "turn": ("turn", "turn_index", "round", "round_index"),
    "model": ("model", "model_name", "model_id"),
    "status": ("status", "status_code", "response_status"),
    "error": ("error", "error_code", "errors"),
    "ttft_s": ("ttft", "time_to_first_token"),
    "e2e_s": ("e2e", "e2e_latency", "end_to_end_latency", "elapsed_time", "request_latency", "latency", "total_time"),
    "queue_s": ("queue", "queue_time"),
    "prompt_text": ("prompt", "prompt_text", "text", "text_input", "input_text"),
    "output_text": ("output_text", "generated_text", "completion", "response"),
    "prompt_ids": ("prompt_ids", "prompt_token_ids", "input_ids", "input_token_ids", "input_tok_ids"),
    "output_ids": ("output_ids", "output_token_ids", "output_tok_ids"),
    "prefix_blocks": ("hash_ids", "prefix_blocks", "block_hashes"),
    "block_size": ("block_size",),
}  # fmt: skip
TIMED = ("arrival", "ttft_s", "e2e_s", "queue_s")
"""Roles whose column may end in a unit: ``arrival_time_ns``, ``ttft_ms``."""
_RANKS = {role: {"".join(words(alias)): rank for rank, alias in enumerate(names)} for role, names in ALIASES.items()}


def match(names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The column that plays each role (the first in the list of aliases where several would), and units by role."""
    found: dict[str, tuple[int, str]] = {}
    units: dict[str, str] = {}
    for name in names:
        base, unit = split_unit(name)
        plain = "".join(words(name))
        for role, ranks in _RANKS.items():
            rank = ranks.get(base if role in TIMED else plain)
            if rank is None or (role in found and found[role][0] <= rank):
                continue
            found[role] = (rank, name)
            units.pop(role, None)
            if role in TIMED and unit:
                units[role] = unit
    return {role: name for role, (_, name) in found.items()}, units

"""A new trace like a given one: other requests, with the same lengths, arrivals and reuse of prefixes.

Whole lineages (sessions, or prompts that continue one another) are drawn, so that what a prompt shares with earlier
ones keeps its depth and its distance. Each new copy of a lineage gets blocks of its own, but for prefixes that many
lineages have, which are taken as lasting (system prompts, common documents). Arrivals are drawn apart from that, as
stretches of gaps, see `resampling`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces.anonymize import anonymize
from inferdoc.traces.chains import Chains, Ints, as_lists, chain
from inferdoc.traces.comparison import HIT_RATE, Comparison, compare
from inferdoc.traces.lineages import lineages, users
from inferdoc.traces.prompt_blocks import recorded_blocks, unknown_prompts
from inferdoc.traces.resampling import arrival_times, draw_requests
from inferdoc.traces.trace import SCHEMA, Trace

LASTING = 20
"""Lineages that have a prefix from which on it stays the same in every copy (our limit)."""


@dataclass(frozen=True)
class Synthesized:
    trace: Trace
    comparison: Comparison
    notes: list[str]


def synthesize(trace: Trace, requests: int, *, seed: int = 0, block_size: int = 16) -> Synthesized:
    """`requests` new requests like those of `trace`. Equal seeds give equal traces.

    Args:
        block_size: tokens a block, where the trace has token ids or texts.

    Raises:
        TraceError: an empty trace, or parts with clocks of their own.
    """
    if not len(trace):
        raise TraceError("the trace has no requests", where=trace.source)
    if trace.independent_clocks:
        raise TraceError(
            "has parts with clocks of their own, so there is no arrival process to draw from: give one part",
            where=trace.source,
        )
    random = np.random.default_rng(seed)
    base = trace if trace.content in ("block hashes", "lengths only") else _hashed(trace, block_size)
    chains = chain(recorded_blocks(base)) if base.content == "block hashes" and unknown_prompts(base) is None else None
    lineage = lineages(base, chains)
    chosen, generation = draw_requests(lineage, requests, random)
    rows = base.rows.select("input_tokens", "output_tokens", "model", "turn")[chosen]
    rows = rows.with_columns(pl.int_range(1, pl.len() + 1).alias("row"), pl.lit("ok").alias("status"))
    if base.has("arrival_s"):
        arrivals = arrival_times(base.rows["arrival_s"].to_numpy(), requests, random)
        rows = rows.with_columns(pl.Series("arrival_s", arrivals))
    if base.has("session"):
        rows = rows.with_columns(_sessions(base.rows["session"], lineage, chosen, generation))
    if chains is not None:
        rows = rows.with_columns(_blocks(chains, lineage, chosen, generation))
    absent = [pl.lit(None, kind).alias(name) for name, kind in SCHEMA.items() if name not in rows.columns]
    made = Trace(
        rows=rows.with_columns(absent).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()),
        source="synthetic",
        format="inferdoc",
        time_unit="s" if base.has("arrival_s") else None,
        block_size=base.block_size if chains is not None else None,
    )
    comparison = compare(base, made)
    return Synthesized(made, comparison, _notes(trace, made, comparison, seed, int(lineage.max()) + 1))


def _hashed(trace: Trace, block_size: int) -> Trace:
    # Blocks are numbered anew in what is written, so the key hides nothing; a fixed one keeps equal seeds equal.
    return anonymize(trace, bytes(32), block_size=block_size).trace


def _sessions(names: pl.Series, lineage: Ints, chosen: Ints, generation: Ints) -> pl.Series:
    named = names.is_not_null().to_numpy()[chosen]
    pairs = zip(lineage[chosen].tolist(), generation.tolist(), named.tolist(), strict=True)
    return pl.Series("session", [f"s{own}.{copy}" if known else None for own, copy, known in pairs], dtype=pl.String)


def _blocks(chains: Chains, lineage: Ints, chosen: Ints, generation: Ints) -> pl.Series:
    """Chains of the requests chosen, each generation with numbers of its own but for those that are lasting."""
    count = chains.count[chosen]
    first = np.repeat(chains.first[chosen] - (np.cumsum(count) - count), count)
    numbers = chains.numbers[np.arange(int(count.sum())) + first]
    lasting = users(chains, lineage) >= LASTING
    copy = np.where(lasting[numbers], 0, np.repeat(generation, count) + 1)
    ids = np.unique(copy * len(chains) + numbers, return_inverse=True)[1].astype(np.uint64)
    return as_lists(ids, count)


def _notes(trace: Trace, made: Trace, comparison: Comparison, seed: int, lineage_count: int) -> list[str]:
    rates = next((entry for entry in comparison.numbers if entry.label == HIT_RATE), None)
    against = ""
    if rates is not None and rates.before is not None and rates.after is not None:
        against = f"; ideal hit rate {rates.after:.1%}, that of the trace {rates.before:.1%}"
    notes = [
        f"synthetic: {len(made):,} requests drawn from {len(trace):,} of a trace (seed {seed}),"
        f" {lineage_count:,} sessions or lines of prompts{against}",
        *(f"synthetic: {warning}" for warning in comparison.warnings),
    ]
    if len(made) < len(trace):
        notes.append("synthetic: shorter than the trace, so that more of its prompts are seen for the first time")
    if trace.has("arrival_s") and len(made) > len(trace):
        notes.append("synthetic: longer than the trace, whose course over time is gone through again and again")
    dropped = [name for name in ("ttft_s", "e2e_s", "cached_tokens") if trace.has(name)]
    if dropped:
        notes.append("synthetic: measured times and cached tokens belong to the trace's requests and are left out")
    return notes

"""All that a trace tells about the reuse of its prompts, in one result that is printed and stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from pydantic import Field

from inferdoc.errors import TraceError
from inferdoc.evidence import Contract
from inferdoc.traces.miss_ratio import CacheCurve, StackDistances, cache_curve, stack_distances
from inferdoc.traces.prefix_tree import PrefixTree, grow
from inferdoc.traces.prompt_blocks import (
    PromptBlocks,
    numbered,
    recorded_blocks,
    text_blocks,
    token_blocks,
    unknown_prompts,
)
from inferdoc.traces.reuse import (
    AnyPositionReuse,
    ReusedPrefix,
    SessionSharing,
    any_position,
    most_reused,
    session_numbers,
    session_sharing,
)
from inferdoc.traces.routing import RoutingResult, route
from inferdoc.traces.trace import Trace

Ints = npt.NDArray[np.int64]
TOKEN_BLOCK_SIZES = (16, 32, 64, 128, 256, 512)
RECORDED_MULTIPLES = (1, 2, 4)
_CYCLING = 0.1
_REQUESTS_TO_CYCLE = 100


class BlockSizeReuse(Contract):
    """Reuse in an unlimited cache with blocks of one size. Numbers are ``None`` with a `reason` where unknown."""

    block_size: int
    hit_tokens: int | None = None
    hit_rate: float | None = None
    """Cached prompt tokens over all prompt tokens."""
    hit_blocks: int | None = None
    block_hit_rate: float | None = None
    """Cached blocks over all blocks, partly filled ones included."""
    full_block_hit_rate: float | None = None
    """Cached blocks over full blocks."""
    mean_request_hit_rate: float | None = None
    """Mean over the requests of their own hit rates; not the share of tokens that a cache saves."""
    second_half_hit_rate: float | None = None
    """The hit rate of the later half of the requests, which finds what the earlier half brought."""
    shared_request_share: float | None = None
    """Requests that find at least one block."""
    median_shared_tokens: float | None = None
    cache: CacheCurve | None = None
    reason: str | None = None


class PrefixAnalysis(Contract):
    """Reuse between the prompts of a trace. Everything is ``None`` or empty where there is a `reason`."""

    reason: str | None = None
    """Why nothing is known; a trace without prefixes has no reuse of 0."""
    notes: list[str] = Field(default_factory=list)
    prompt_tokens: int | None = None
    estimated: bool = False
    """True where the tokens of some prompts are not counted but follow from the bytes of the texts."""
    block_size: int | None = None
    """Block of all that is not given for each block size."""
    block_sizes: list[BlockSizeReuse] = Field(default_factory=list)
    unique_prompt_share: float | None = None
    """Different prompts, as far as full blocks and length tell, over requests."""
    common_prefix_tokens: int | None = None
    """Full blocks, in tokens, with which every prompt of at least one full block begins."""
    per_model_hit_rate: float | None = None
    """The hit rate where models (adapters) share nothing; ``None`` for a single model."""
    any_position: AnyPositionReuse | None = None
    sessions: SessionSharing | None = None
    most_reused: list[ReusedPrefix] = Field(default_factory=list)
    routing: list[RoutingResult] = Field(default_factory=list)


def analyse_prefixes(
    trace: Trace,
    *,
    block_sizes: Sequence[int] | None = None,
    capacities_tokens: Sequence[int] | None = None,
    replicas: Sequence[int] = (1, 2, 4, 8),
) -> PrefixAnalysis:
    """Ideal reuse, reuse in caches of any size, over block sizes, by session and under routing.

    `block_sizes`: tokens; 16 to 512 for token ids and texts, the recorded block and its double and fourfold for
    recorded hashes. The first one that is known is the block of all else. `capacities_tokens`: sizes of the KV cache
    (of each replica) to give hit rates for, besides the curve. Texts that no tokenizer has encoded are compared by
    bytes.

    Raises:
        ValueError: a block size, capacity or number of replicas below 1.
        TraceError: the trace has block hashes of unknown size.
    """
    capacities = list(capacities_tokens or ())
    if min([*(block_sizes or ()), *capacities, *replicas], default=1) < 1:
        raise ValueError(f"below 1: {block_sizes=} {capacities_tokens=} {replicas=}")
    if not len(trace):
        return PrefixAnalysis(reason="the trace has no requests")
    reason = unknown_prompts(trace)
    if reason is not None and trace.content != "text":
        return PrefixAnalysis(reason=reason)
    blocks, sizes, unknown = _blocks(trace, block_sizes)
    if not sizes:
        return PrefixAnalysis(
            reason="none of the block sizes asked for can be told from the trace", block_sizes=unknown
        )
    tree = grow(blocks)
    joined = sizes[0] // tree.block_size
    sessions = session_numbers(trace)
    total = int(tree.tokens.sum())
    # The router decides one request after another in Python; numpy counts distances outside of the interpreter's lock.
    with ThreadPoolExecutor(1) as pool:
        routing = pool.submit(route, tree, sessions, replicas, joined=joined, capacities_tokens=capacities)
        reused: list[ReusedPrefix] = Field(default_factory=list)
        known = []
        for size in sizes:
            distances = stack_distances(tree, size // tree.block_size)
            known.append(_of_size(tree, distances, capacities))
            if size == sizes[0]:
                reused = most_reused(trace, tree, distances, joined)
        of_models = _per_model(trace, tree, joined)
        unique = _distinct_prompts(tree) / len(trace)
        return PrefixAnalysis(
            notes=_notes(trace, blocks, known, unique, of_models),
            prompt_tokens=total,
            estimated=blocks.estimated,
            block_size=sizes[0],
            block_sizes=sorted([*known, *unknown], key=lambda entry: entry.block_size),
            unique_prompt_share=unique,
            common_prefix_tokens=_common_blocks(tree, joined) * sizes[0],
            per_model_hit_rate=of_models,
            any_position=any_position(trace, blocks, tree),
            sessions=session_sharing(tree, sessions, joined),
            most_reused=reused,
            routing=routing.result(),
        )


def _blocks(trace: Trace, asked: Sequence[int] | None) -> tuple[PromptBlocks, list[int], list[BlockSizeReuse]]:
    """The prompts' blocks, the block sizes that are multiples of them, and the sizes that cannot be told."""
    if trace.content == "block hashes":
        recorded = trace.block_size
        if recorded is None:
            raise TraceError("the block size of the recorded hashes is not known", where=trace.source)
        sizes = list(dict.fromkeys(asked or (recorded * multiple for multiple in RECORDED_MULTIPLES)))
        reason = f"the trace records blocks of {recorded} tokens: only multiples of {recorded} can be told"
        unknown = [BlockSizeReuse(block_size=size, reason=reason) for size in sizes if size % recorded]
        return recorded_blocks(trace), [size for size in sizes if size % recorded == 0], unknown
    sizes = list(dict.fromkeys(asked or TOKEN_BLOCK_SIZES))
    make = token_blocks if unknown_prompts(trace) is None else text_blocks
    return make(trace, math.gcd(*sizes)), sizes, []


def _of_size(tree: PrefixTree, distances: StackDistances, capacities: Sequence[int]) -> BlockSizeReuse:
    size = distances.block_size
    joined = size // tree.block_size
    found = tree.hit_blocks(tree.seen_before, joined)
    hits, total = int(found.sum()), int(tree.tokens.sum())
    full = int((tree.count // joined).sum())
    later = slice(len(found) // 2, None)
    return BlockSizeReuse(
        block_size=size,
        hit_tokens=hits * size,
        hit_rate=hits * size / total,
        hit_blocks=hits,
        block_hit_rate=hits / int((-(-tree.tokens // size)).sum()),
        full_block_hit_rate=hits / full if full else None,
        mean_request_hit_rate=float((found * size / tree.tokens).mean()),
        second_half_hit_rate=int(found[later].sum()) * size / int(tree.tokens[later].sum()),
        shared_request_share=float((found > 0).mean()),
        median_shared_tokens=float(np.median(found)) * size,
        cache=cache_curve(distances, total, capacities),
    )


def _per_model(trace: Trace, tree: PrefixTree, joined: int) -> float | None:
    models = numbered(trace.rows["model"]) if trace.has("model") else np.zeros(1, dtype=np.int64)
    if models.max() == 0:
        return None
    found = tree.hit_blocks(tree.seen_before_within(models), joined)
    return int(found.sum()) * joined * tree.block_size / int(tree.tokens.sum())


def _distinct_prompts(tree: PrefixTree) -> int:
    """Prompts that differ in a full block or in length. Those below one full block are told by their length."""
    node = np.repeat(np.arange(len(tree.begin)), np.diff(tree.starts))
    # A prompt is repeated in full where a node that others are in too holds its last block.
    whole = tree.end[node] == tree.count[tree.requests]
    last = np.full(len(tree.count), -2, dtype=np.int64)
    last[tree.count == 0] = -1
    last[tree.requests[whole]] = node[whole]
    alone = last == -2
    keys = (last[~alone] + 1) * (int(tree.tokens.max()) + 1) + tree.tokens[~alone]
    return int(alone.sum()) + len(np.unique(keys))


def _common_blocks(tree: PrefixTree, joined: int) -> int:
    able = int((tree.count >= joined).sum())
    everywhere = (np.diff(tree.starts) >= able) & (able > 1)
    return int(tree.end[everywhere].max(initial=0)) // joined


def _notes(
    trace: Trace, blocks: PromptBlocks, known: list[BlockSizeReuse], unique: float, per_model: float | None
) -> list[str]:
    first = known[0]
    notes = list(blocks.notes)
    notes.append(
        f"the first sight of a block is a miss, so rates grow with the length of a trace: over the later half of the"
        f" requests the ideal hit rate is {first.second_half_hit_rate:.1%}, over all {first.hit_rate:.1%}; a slice of"
        " longer traffic begins with an empty cache, which makes its rates a lower bound"
    )
    for entry in known[1:]:
        if first.median_shared_tokens and not entry.median_shared_tokens:
            notes.append(
                f"half of the requests share less than one block of {entry.block_size} tokens with earlier ones"
                f" (in blocks of {first.block_size}: {first.median_shared_tokens:,.0f} tokens): smaller blocks keep"
                " those hits"
            )
            break
    if len(trace) >= _REQUESTS_TO_CYCLE and unique < _CYCLING:
        notes.append(
            f"only {unique:.1%} of the prompts are different: a few prompts are sent again and again, as by a load"
            " generator; such hit rates do not carry over to real traffic"
        )
    if per_model is not None:
        notes.append(
            f"requests of different models (adapters) cannot share a cache: kept apart, the ideal hit rate is"
            f" {per_model:.1%} instead of {first.hit_rate:.1%}"
        )
    return notes

"""Whose prompts repeat, which parts of them, and what repeats outside the leading run that a prefix cache can serve."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from inferdoc.evidence import Contract
from inferdoc.traces.miss_ratio import StackDistances
from inferdoc.traces.prefix_tree import PrefixTree
from inferdoc.traces.prompt_blocks import PromptBlocks, numbered
from inferdoc.traces.trace import Trace

Ints = npt.NDArray[np.int64]
_ROWS_AT_ONCE = 100_000
_TOP = 10


class SessionSharing(Contract):
    """Shares of the ideal hits, by who brought the tokens that a request finds. ``None`` with a `reason`."""

    same_session_share: float | None
    """Tokens that an earlier request of the same session had brought, whoever else had."""
    first_by_same_session_share: float | None
    """Tokens whose very first request was one of the same session."""
    last_by_same_session_share: float | None
    """Tokens whose most recent request was one of the same session."""
    reason: str | None = None


class AnyPositionReuse(Contract):
    """Reuse without regard to what stands before: what a position-independent cache could serve. Tokens of prompts."""

    unit: str
    """What is compared: blocks at multiples of the block size, or named components."""
    hit_tokens: int
    hit_rate: float
    """Tokens in blocks (components) that an earlier request has anywhere in its prompt, over all prompt tokens."""
    note: str | None = None


class ReusedPrefix(Contract):
    """A part of prompts that the same requests share. Parts do not overlap: their savings add up to the ideal hits."""

    from_tokens: int
    """Where the part begins in the prompt; what is before it is shared by more requests."""
    depth_tokens: int
    """Where it ends."""
    requests: int
    saved_tokens: int
    """Prompt tokens that an unlimited cache serves from this part."""
    first_seen_s: float | None
    """Arrival of the first request that has it, s; ``None`` without times."""
    median_interval_s: float | None
    """Median time between two requests that follow one another in using it, s; within one clock only."""
    median_distance_tokens: float
    """Median of the distinct tokens that other requests bring between two such requests."""


def session_numbers(trace: Trace) -> Ints | None:
    """The session of each request, numbered by first appearance; a request without one is a session of its own."""
    return numbered(trace.rows["session"], unnamed_alone=True) if trace.has("session") else None


def session_sharing(tree: PrefixTree, sessions: Ints | None, joined: int = 1) -> SessionSharing:
    """`sessions` as of `session_numbers`; blocks of `joined` of the tree's."""
    visits = tree.visits(joined)
    hit = _served(tree, joined)
    total = int(hit.sum())
    if sessions is None or not total:
        reason = "the trace names no sessions" if sessions is None else "no prompt repeats a full block of another"
        return SessionSharing(
            same_session_share=None, first_by_same_session_share=None, last_by_same_session_share=None, reason=reason
        )
    starts = np.flatnonzero(visits.previous < 0)
    first = np.repeat(visits.request[starts], np.diff(starts, append=len(visits.request)))
    mine = sessions[visits.request]
    within = tree.hit_blocks(tree.seen_before_within(sessions), joined)
    return SessionSharing(
        same_session_share=int(within.sum()) / total,
        first_by_same_session_share=int(hit[sessions[first] == mine].sum()) / total,
        last_by_same_session_share=int(hit[sessions[visits.previous] == mine].sum()) / total,
    )


def most_reused(trace: Trace, tree: PrefixTree, distances: StackDistances, joined: int = 1) -> list[ReusedPrefix]:
    """The ten parts of prompts that save most tokens; of equal ones, the one whose first requests came first.

    `distances` are those of the same tree and `joined`.
    """
    visits = tree.visits(joined)
    saved = np.bincount(visits.node, weights=_served(tree, joined), minlength=len(tree.begin)).astype(np.int64)
    block = tree.block_size * joined
    arrival = trace.rows["arrival_s"].to_numpy() if trace.rows["arrival_s"].null_count() == 0 else None
    segment = trace.rows["segment"].fill_null(0).to_numpy()
    found = []
    starts = tree.starts[:-1]
    # Not by their place in the tree, which depends on the ids.
    ranked = np.lexsort((tree.begin, tree.requests[starts + 1], tree.requests[starts], -saved))
    for node in ranked[:_TOP].tolist():
        if not saved[node]:
            break
        users = tree.requests[tree.starts[node] : tree.starts[node + 1]]
        intervals = np.empty(0)
        if arrival is not None:
            intervals = np.diff(arrival[users])[np.diff(segment[users]) == 0]
        between = distances.between_of(users[1:], users[:-1])
        found.append(
            ReusedPrefix(
                from_tokens=int(tree.begin[node]) // joined * block,
                depth_tokens=int(tree.end[node]) // joined * block,
                requests=len(users),
                saved_tokens=int(saved[node]) * block,
                first_seen_s=None if arrival is None else float(arrival[users[0]]),
                median_interval_s=float(np.median(intervals)) if len(intervals) else None,
                median_distance_tokens=float(np.median(between)) * block,
            )
        )
    return found


def _served(tree: PrefixTree, joined: int) -> Ints:
    """Blocks that an unlimited cache serves in each visit: none in the first one of a node."""
    visits = tree.visits(joined)
    served = np.where(visits.previous >= 0, visits.blocks, 0)
    found = tree.seen_before // joined
    computed_again = found - tree.hit_blocks(tree.seen_before, joined)
    # Of a complete prompt the last block is computed again: it belongs to the visit that ends there.
    last = (visits.previous >= 0) & (visits.begin + visits.blocks == found[visits.request])
    return served - np.where(last, computed_again[visits.request], 0)


def any_position(trace: Trace, blocks: PromptBlocks, tree: PrefixTree) -> AnyPositionReuse:
    """Reuse of components where the trace names them, else of blocks wherever they stand in a prompt.

    A block that an earlier place of the same prompt has brought does not count. As for prefixes, the block of the last
    token is computed.
    """
    total = int(blocks.tokens.sum())
    if trace.has("components"):
        return _components(trace, total)
    unit = f"blocks of {blocks.block_size} tokens"
    largest = int(blocks.ids.max(initial=0))
    names = None if largest < 4 * len(blocks.ids) + 1024 else np.unique(blocks.ids)
    size = largest + 1 if names is None else len(names)
    if _distinct(blocks, names, size) == _distinct_prefixes(tree):
        hits = int(tree.hit_blocks(tree.seen_before).sum()) * blocks.block_size
        note = "each id stands for one prefix only, so at other positions nothing is known to repeat"
        return AnyPositionReuse(unit=unit, hit_tokens=hits, hit_rate=hits / total, note=note)
    first = np.full(size, len(blocks.count), dtype=np.int64)
    for owner, name in _parts(blocks, names, blocks.count, last_first=True):
        first[name[::-1]] = owner[::-1]
    servable = np.minimum(blocks.count, (blocks.tokens - 1) // blocks.block_size)
    found = sum(int((first[name] < owner).sum()) for owner, name in _parts(blocks, names, servable))
    hits = found * blocks.block_size
    return AnyPositionReuse(unit=unit, hit_tokens=hits, hit_rate=hits / total)


def _distinct(blocks: PromptBlocks, names: npt.NDArray[np.uint64] | None, size: int) -> int:
    seen = np.zeros(size, dtype=bool)
    for _, name in _parts(blocks, names, blocks.count):
        seen[name] = True
    return int(seen.sum())


def _distinct_prefixes(tree: PrefixTree) -> int:
    width = tree.end - tree.begin
    return int(width.sum()) + int(tree.count.sum()) - int((width * np.diff(tree.starts)).sum())


def _parts(
    blocks: PromptBlocks, names: npt.NDArray[np.uint64] | None, count: Ints, *, last_first: bool = False
) -> Iterator[tuple[Ints, Ints]]:
    """Requests and numbers of the ids of the first `count` blocks of each prompt, some prompts at a time."""
    starts = range(0, len(count), _ROWS_AT_ONCE)
    for start in reversed(starts) if last_first else starts:
        some = count[start : start + _ROWS_AT_ONCE]
        ends = np.cumsum(some)
        owner = np.repeat(np.arange(start, start + len(some)), some)
        ids = blocks.ids[
            np.arange(len(owner)) + np.repeat(blocks.first[start : start + len(some)] - (ends - some), some)
        ]
        yield owner, (ids.astype(np.int64) if names is None else np.searchsorted(names, ids))


def _components(trace: Trace, total: int) -> AnyPositionReuse:
    parts = (
        trace.rows.select("components")
        .with_row_index("request")
        .explode("components")
        .unnest("components")
        .drop_nulls("id")
        .with_columns(first=pl.col("request").min().over("kind", "id"))
    )
    unknown = parts["tokens"].null_count()
    hits = int(parts.filter(pl.col("first") < pl.col("request"))["tokens"].sum())
    note = f"{unknown:,} components have no known length and are not counted" if unknown else None
    return AnyPositionReuse(unit="components", hit_tokens=hits, hit_rate=hits / total, note=note)

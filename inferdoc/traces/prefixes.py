"""What an ideal prefix cache would serve: nothing is ever evicted, and every earlier prompt is there.

Only whole blocks are shared. Of a prompt of ``n`` tokens at most ``(n - 1) // block_size`` blocks are served, since an
engine computes at least the last token. Answers are not counted as cached: they count when they come back in a later
prompt. The rate is the ratio of the sums, cached prompt tokens over prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inferdoc.traces.miss_ratio import CacheCurve, cache_curve, stack_distances
from inferdoc.traces.prefix_tree import PrefixTree, grow
from inferdoc.traces.prompt_blocks import numbered, recorded_blocks, recorded_multiple, token_blocks, unknown_prompts
from inferdoc.traces.trace import Trace


@dataclass(frozen=True)
class IdealHits:
    """Reuse between the prompts of a trace, in tokens. Shares and rates are ``None`` with a `reason`, never 0."""

    block_size: int
    """The block that was used; coarser than asked for where the trace records coarser ones (`note`)."""
    prompt_tokens: int | None
    hit_tokens: int | None
    """Prompt tokens that an earlier prompt had already brought."""
    hit_rate: float | None
    compulsory_tokens: int | None
    """Prompt tokens seen for the first time, or in blocks that cannot be shared."""
    shared_request_share: float | None
    """Share of the requests that find at least one block of an earlier request."""
    median_shared_tokens: float | None
    """Median over the requests of the tokens that they find, 0 for those that find nothing."""
    reason: str | None = None
    note: str | None = None

    @property
    def compulsory_share(self) -> float | None:
        """Share of the prompt tokens that no cache, however large, could have held."""
        if self.prompt_tokens is None or self.compulsory_tokens is None:
            return None
        return self.compulsory_tokens / self.prompt_tokens


def ideal_hits(trace: Trace, block_size: int, *, per_model: bool = False) -> IdealHits:
    """Reuse at a block of `block_size` tokens; `per_model` keeps the prompts of different models (adapters) apart.

    Recorded block hashes are joined where their block divides `block_size`. Where `block_size` divides theirs, sharing
    below their block is unknown, so their own block is used and `note` says so.

    Raises:
        TraceError: neither block size divides the other.
        ValueError: a block below one token.
    """
    source = _tree(trace, block_size)
    if isinstance(source, str):
        return IdealHits(block_size, None, None, None, None, None, None, source)
    tree, joined, note = source
    seen = tree.seen_before_within(numbered(trace.rows["model"])) if per_model else tree.seen_before
    used = tree.block_size * joined
    hits = tree.hit_blocks(seen, joined) * used
    total, hit = int(tree.tokens.sum()), int(hits.sum())
    return IdealHits(
        block_size=used,
        prompt_tokens=total,
        hit_tokens=hit,
        hit_rate=hit / total,
        compulsory_tokens=total - hit,
        shared_request_share=float((hits > 0).mean()),
        median_shared_tokens=float(np.median(hits)),
        note=note,
    )


@dataclass(frozen=True)
class WindowHits:
    """Reuse in a window of a trace that goes on from what came before it."""

    from_history: list[int]
    """Prompt tokens of each request that requests before the window have brought."""
    hit_rate: float | None
    """Share of the window's prompt tokens that any earlier request has brought; ``None`` with a `reason`."""
    reason: str | None = None


def window_hits(trace: Trace, start: int, count: int, block_size: int) -> WindowHits:
    """Like `ideal_hits`, for the `count` requests from position `start` on, with everything before them in the cache.

    Raises:
        TraceError: neither block size divides the other.
    """
    source = _tree(replace(trace, rows=trace.rows.head(start + count)), block_size)
    if isinstance(source, str):
        return WindowHits([0] * count, None, source)
    tree, joined, _ = source
    used = tree.block_size * joined
    before = tree.hit_blocks(tree.seen_before_request(start), joined)[start:] * used
    whole = tree.hit_blocks(tree.seen_before, joined)[start:] * used
    return WindowHits(before.tolist(), int(whole.sum()) / int(tree.tokens[start:].sum()))


def cache_hits(trace: Trace, block_size: int, capacities_tokens: Sequence[int]) -> CacheCurve | str:
    """Hit rates under LRU, by size of the KV cache and at the sizes asked for; or why the prompts are not known.

    The block is that of `ideal_hits`.

    Raises:
        TraceError: neither block size divides the other.
    """
    source = _tree(trace, block_size)
    if isinstance(source, str):
        return source
    tree, joined, _ = source
    return cache_curve(stack_distances(tree, joined), int(tree.tokens.sum()), capacities_tokens)


def _tree(trace: Trace, block_size: int) -> tuple[PrefixTree, int, str | None] | str:
    """The prompts' tree, how many of its blocks make the one used, and a remark; or why the prompts are not known."""
    if block_size < 1:
        raise ValueError(f"block_size {block_size}")
    if trace.content == "block hashes":
        _, joined, note = recorded_multiple(trace, block_size)
        return unknown_prompts(trace) or (grow(recorded_blocks(trace)), joined, note)
    return unknown_prompts(trace) or (grow(token_blocks(trace, block_size)), 1, None)

"""Hit rate of a prefix cache of any size, in one pass over the trace: exact LRU stack distances.

Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970: under
LRU a block is cached at capacity C exactly when at most C distinct blocks, itself included, were touched since its last
use. A request touches its full blocks at one moment, the head of the prompt as the most recent one (engines free the
tail first), so what is cached of a prompt is always a leading part of it.

For request ``t``, let ``p`` be the last earlier request that touched the block at depth ``d``. The blocks of ``t`` with
that same ``p`` are a *run* from depth ``m`` on, and the distance of the block is ``S + (d - m) + 1`` with ``S`` the
distinct blocks touched by requests between ``p`` and ``t``. So a run of ``w`` blocks gives ``clip(C - S, 0, w)`` hits
at a capacity of ``C`` blocks, for every C at once. A block counts for S at its first touch after ``p``:

    S = first touches after p and before t
      = (touches before t whose previous toucher is at most p, or none) - (touches up to p)

the first of which `dominance.earlier_not_above` counts for all runs together.

A real engine differs in two ways: blocks of running requests are pinned, so a cache of the same size holds fewer
others, and answers stay in the cache too, where they take room and may be hit by a next turn. Neither is modelled here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import Field

from inferdoc.evidence import Contract
from inferdoc.traces.dominance import earlier_not_above
from inferdoc.traces.prefix_tree import PrefixTree

Ints = npt.NDArray[np.int64]
_SHARES = (0.5, 0.9, 0.99)
_GRID_POINTS = 33


class CachePoint(Contract):
    """The hit rate at one size of the KV cache."""

    capacity_tokens: int
    hit_rate: float
    """Cached prompt tokens over all prompt tokens."""
    ideal_share: float | None
    """Hits over those of an unlimited cache; ``None`` where that has none."""


class CacheReach(Contract):
    """The smallest cache that reaches a share of the hits of an unlimited one."""

    ideal_share: float
    capacity_tokens: int
    hit_rate: float


class CacheCurve(Contract):
    """Hit rate under LRU against the size of the KV cache."""

    block_size: int
    points: list[CachePoint]
    """A logarithmic grid up to the smallest cache that gives every ideal hit."""
    at: list[CachePoint] = Field(default_factory=list)
    """The sizes that were asked for."""
    reach: list[CacheReach]
    reason: str | None = None
    """Why there is no curve."""


@dataclass(frozen=True)
class StackDistances:
    """The runs of all requests, request by request, from the head of each prompt to its tail."""

    block_size: int
    request: Ints
    previous: Ints
    """The request that last touched the run's blocks."""
    between: Ints
    """Distinct blocks touched after `previous` and before `request`."""
    blocks: Ints
    """Blocks of the run that can be served: not the last full block of a prompt that would be complete."""

    def hits(self, capacity_tokens: int) -> int:
        """Prompt tokens served by an LRU cache of that size."""
        return self._hit_blocks(capacity_tokens // self.block_size) * self.block_size

    def between_of(self, request: Ints, previous: Ints) -> Ints:
        """`between` of the runs of these requests with these previous ones, all of which exist."""
        # Within a request, `previous` falls with depth.
        count = int(self.request.max(initial=0)) + 1
        return self.between[
            np.searchsorted(self.request * count + count - self.previous, request * count + count - previous)
        ]

    def smallest_capacity(self, hit_blocks: int) -> int:
        """The fewest tokens of cache that serve at least that many blocks."""
        low, high = 0, int(self._ends[0][-1]) if len(self.request) else 0
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._hit_blocks(middle) >= hit_blocks else (middle + 1, high)
        return low * self.block_size

    def _hit_blocks(self, capacity: int) -> int:
        # clip(C - S, 0, w) = max(C - S, 0) - max(C - (S + w), 0)
        opened, closed = (
            capacity * (at := int(np.searchsorted(values, capacity))) - int(sums[at])
            for values, sums in (self._begins, self._ends)
        )
        return opened - closed

    @cached_property
    def _begins(self) -> tuple[Ints, Ints]:
        return _sorted_with_sums(self.between)

    @cached_property
    def _ends(self) -> tuple[Ints, Ints]:
        return _sorted_with_sums(self.between + self.blocks)


def _sorted_with_sums(values: Ints) -> tuple[Ints, Ints]:
    ordered = np.sort(values)
    return ordered, np.concatenate(([0], np.cumsum(ordered)))


def stack_distances(tree: PrefixTree, joined: int = 1) -> StackDistances:
    """LRU stack distances of all shared blocks, in blocks of `joined` of the tree's."""
    visits = tree.visits(joined)
    at = visits.of_requests(visits.previous >= 0)
    return _distances(
        tree, joined, visits.request[at], visits.previous[at], visits.blocks[at], np.arange(len(tree.count))
    )


def stack_distances_within(tree: PrefixTree, part: Ints, joined: int = 1) -> StackDistances:
    """Like `stack_distances` for caches of their own for requests with different numbers in `part`.

    The streams of the parts follow one another, as if each began after the end of the one before; no block is then
    found again across them.
    """
    visits = tree.visits(joined)
    place = np.empty(len(part), dtype=np.int64)
    order = np.argsort(part, kind="stable")
    place[order] = np.arange(len(part))
    # Node by node, part by part, in order: one number, so that a plain sort does.
    by_part = np.lexsort((place[visits.request], visits.node))
    request, node = visits.request[by_part], visits.node[by_part]
    again = np.zeros(len(request), dtype=bool)
    again[1:] = (node[1:] == node[:-1]) & (part[request[1:]] == part[request[:-1]])
    previous = np.concatenate(([-1], request[:-1]))[: len(request)]
    kept = np.flatnonzero(again)
    kept = kept[np.lexsort((node[kept], place[request[kept]]))]
    return _distances(tree, joined, request[kept], previous[kept], visits.blocks[by_part][kept], place)


def _distances(
    tree: PrefixTree, joined: int, request: Ints, previous: Ints, blocks: Ints, place: Ints
) -> StackDistances:
    """From the visits that find something, request by request in the order of `place` and by depth."""
    full = tree.count // joined
    if not len(request):
        none = np.empty(0, dtype=np.int64)
        return StackDistances(tree.block_size * joined, none, none, none, none)
    begins = np.flatnonzero(np.concatenate(([True], (request[1:] != request[:-1]) | (previous[1:] != previous[:-1]))))
    request, previous, blocks = request[begins], previous[begins], np.add.reduceat(blocks, begins)
    found = np.bincount(request, weights=blocks, minlength=len(full)).astype(np.int64)
    touched = np.empty_like(full)
    new = np.empty_like(full)
    touched[place] = full
    new[place] = full - found
    touched, new = np.cumsum(touched), np.cumsum(new) - new
    before, last = place[request], place[previous]
    between = new[before] + earlier_not_above(last, blocks) - touched[last]
    # The last run of a prompt loses the block that an engine computes again.
    limit = (tree.tokens - 1) // (tree.block_size * joined)
    ends = np.append(np.flatnonzero(request[1:] != request[:-1]), len(request) - 1)
    blocks[ends] -= np.maximum(found - limit, 0)[request[ends]]
    return StackDistances(tree.block_size * joined, request, previous, between, blocks)


def cache_curve(distances: StackDistances, prompt_tokens: int, capacities_tokens: Sequence[int] = ()) -> CacheCurve:
    """The hit rate over sizes of the cache, at the sizes asked for, and the sizes that reach shares of the ideal."""
    block = distances.block_size
    ideal = int(distances.blocks.sum())

    def point(capacity: int) -> CachePoint:
        hits = distances.hits(capacity)
        share = hits / (ideal * block) if ideal else None
        return CachePoint(capacity_tokens=capacity, hit_rate=hits / prompt_tokens, ideal_share=share)

    at = [point(capacity) for capacity in capacities_tokens]
    if not ideal:
        reason = f"no full block of {block} tokens is used twice: a cache of any size serves nothing"
        return CacheCurve(block_size=block, points=[], at=at, reach=[], reason=reason)
    first, enough = (distances.smallest_capacity(blocks) // block for blocks in (max(1, ideal // 100), ideal))
    sizes = np.unique(np.round(np.geomspace(first, enough, _GRID_POINTS)).astype(np.int64)) * block
    reach = []
    for share in _SHARES:
        capacity = distances.smallest_capacity(int(np.ceil(share * ideal)))
        hit_rate = distances.hits(capacity) / prompt_tokens
        reach.append(CacheReach(ideal_share=share, capacity_tokens=capacity, hit_rate=hit_rate))
    return CacheCurve(block_size=block, points=[point(int(size)) for size in sizes], at=at, reach=reach)

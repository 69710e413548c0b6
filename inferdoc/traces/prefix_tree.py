"""The prompts of a trace as a radix tree: which requests walk through which shared runs of blocks.

    request 0   A B C D E        node 0: A B    requests 0 1 2
    request 1   A B C X          node 1: C      requests 0 1
    request 2   A B Y            D E X Y are seen once: they belong to no node, only their number counts

A node is a run of blocks that the same two or more requests share; a *visit* is one request in one node. A trace of a
million requests has a few million visits, however many blocks it has, so everything else is computed on visits.

The tree grows by depth: requests that agree so far are one group, and a group is split where its next blocks differ.
Blocks are compared by their recorded ids within a group, that is behind equal leading blocks, so no hash of prefixes is
needed and none can collide.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from inferdoc.traces.prompt_blocks import PromptBlocks

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Visits:
    """Visits in nodes of blocks of one size, node by node, in each node in the order of the requests."""

    request: Ints
    node: Ints
    previous: Ints
    """The request that was in the node before, -1 for the first."""
    begin: Ints
    """Blocks of the prompt before the node."""
    blocks: Ints
    """Blocks of the prompt in the node, at least 1."""

    def of_requests(self, chosen: Flags) -> Ints:
        """Positions of the chosen visits, request by request, from the head of each prompt to its tail."""
        at = np.flatnonzero(chosen)
        # Nodes are numbered parents first, so the position orders the visits of a request by depth.
        keys = (self.request[at].astype(np.uint64) << np.uint64(32)) | at.astype(np.uint64)
        keys.sort()
        return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


@dataclass(frozen=True)
class PrefixTree:
    """The shared runs of blocks of `block_size` tokens, in the order in which they end; parents before children."""

    block_size: int
    count: Ints
    """Full blocks of each prompt."""
    tokens: Ints
    """Length of each prompt, tokens."""
    requests: Ints
    """The requests of each node, node by node, in order."""
    starts: Ints
    """Where each node's requests begin in `requests`, and the end of the last."""
    begin: Ints
    """Blocks of a prompt before each node."""
    end: Ints
    """Blocks of a prompt up to the end of each node."""

    def visits(self, joined: int = 1) -> Visits:
        """Visits in blocks that are `joined` of the tree's. A joined block is shared where its last part is."""
        sizes = np.diff(self.starts)
        begin, end = self.begin // joined, self.end // joined
        node = np.repeat(np.arange(len(sizes)), sizes)
        previous = np.empty_like(self.requests)
        previous[1:] = self.requests[:-1]
        previous[self.starts[:-1]] = -1
        if joined == 1:
            return Visits(self.requests, node, previous, begin[node], (end - begin)[node])
        kept = (end > begin)[node]
        node = node[kept]
        return Visits(self.requests[kept], node, previous[kept], begin[node], (end - begin)[node])

    @cached_property
    def seen_before(self) -> Ints:
        """Leading full blocks of each prompt that an earlier prompt has brought."""
        again = np.ones(len(self.requests), dtype=bool)
        again[self.starts[:-1]] = False
        return self._sum_of(again)

    def seen_before_request(self, first: int) -> Ints:
        """Leading full blocks of each prompt that prompts before the request `first` have brought."""
        oldest = np.repeat(self.requests[self.starts[:-1]], np.diff(self.starts))
        return self._sum_of((oldest < first) & (oldest < self.requests))

    def seen_before_within(self, part: Ints) -> Ints:
        """Like `seen_before`, where only requests with the same number in `part` share what they bring."""
        node = np.repeat(np.arange(len(self.begin)), np.diff(self.starts))
        parts = int(part.max(initial=0)) + 1
        key, size = node * parts + part[self.requests], len(self.begin) * parts
        if size > 16 * len(key) + 1024:
            key, size = ranks(key), len(key)
        position = np.arange(len(key))
        first = np.empty(size, dtype=np.int64)
        first[key[::-1]] = position[::-1]
        return self._sum_of(first[key] < position)

    def hit_blocks(self, seen: Ints, joined: int = 1) -> Ints:
        """Blocks of `joined` that are served of each prompt, of which `seen` leading blocks of the tree are cached."""
        return np.minimum(seen // joined, (self.tokens - 1) // (self.block_size * joined))

    def _sum_of(self, chosen: Flags) -> Ints:
        blocks = np.repeat(self.end - self.begin, np.diff(self.starts))[chosen]
        return np.bincount(self.requests[chosen], weights=blocks, minlength=len(self.count)).astype(np.int64)


def grow(blocks: PromptBlocks) -> PrefixTree:
    """The tree of all prompts. Time and memory grow with the blocks that are shared, not with all blocks."""
    row = np.flatnonzero(blocks.count > 0)
    at, left = blocks.first[row], blocks.count[row]
    starts = np.zeros(min(len(row), 1), dtype=np.int64)
    last_id = len(blocks.ids) - 1
    nodes = _Nodes()
    began = np.zeros(len(starts), dtype=np.int64)
    depth = 0
    while len(row):
        goes_on = left > 0
        value = blocks.ids[np.minimum(at, last_id)]
        apart = ~goes_on
        apart[1:] |= value[1:] != value[:-1]
        apart[starts] = ~goes_on[starts]
        splits = np.logical_or.reduceat(apart, starts) if depth else np.ones(1, dtype=bool)
        if splits.any():
            sizes = np.diff(starts, append=len(row))
            in_split = np.repeat(splits, sizes)
            if depth:
                nodes.add(row[in_split], sizes[splits], began[splits], depth)
            moves = in_split & goes_on
            group = np.repeat(np.arange(len(sizes)), sizes)[moves]
            order, new_sizes = _groups(group, value[moves])
            order = np.flatnonzero(moves)[order]
            keeps = np.concatenate((np.flatnonzero(~in_split), order))
            row, at, left = row[keeps], at[keeps], left[keeps]
            sizes = np.concatenate((sizes[~splits], new_sizes))
            starts = np.cumsum(sizes) - sizes
            began = np.concatenate((began[~splits], np.full(len(new_sizes), depth)))
        at += 1
        left -= 1
        depth += 1
    return nodes.tree(blocks)


def _groups(group: Ints, value: npt.NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Positions by (group, value), in order within each, and how many there are; those alone are left out."""
    rank = ranks(value)
    label = ranks(group * (int(rank.max(initial=0)) + 1) + rank)
    # Sorted as one number, which keeps equal labels in order and is several times faster than a stable argsort.
    keys = (label.astype(np.uint64) << np.uint64(32)) | np.arange(len(label), dtype=np.uint64)
    keys.sort()
    order = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    sizes = np.bincount(label)
    shared = sizes > 1
    return order[np.repeat(shared, sizes)], sizes[shared]


def ranks(values: npt.NDArray[np.uint64] | Ints) -> Ints:
    """Values numbered by size from 0, equal ones alike."""
    order = np.argsort(values)
    ordered = values[order]
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.cumsum(np.concatenate(([False], ordered[1:] != ordered[:-1]))[: len(values)])
    return ranks


class _Nodes:
    """Collects nodes as they end."""

    def __init__(self) -> None:
        self._requests: list[Ints] = [np.empty(0, dtype=np.int64)]
        self._sizes: list[Ints] = [np.empty(0, dtype=np.int64)]
        self._begin: list[Ints] = [np.empty(0, dtype=np.int64)]
        self._end: list[Ints] = [np.empty(0, dtype=np.int64)]

    def add(self, requests: Ints, sizes: Ints, begin: Ints, end: int) -> None:
        self._requests.append(requests)
        self._sizes.append(sizes)
        self._begin.append(begin)
        self._end.append(np.full(len(sizes), end))

    def tree(self, blocks: PromptBlocks) -> PrefixTree:
        sizes = np.concatenate(self._sizes)
        return PrefixTree(
            block_size=blocks.block_size,
            count=blocks.count,
            tokens=blocks.tokens,
            requests=np.concatenate(self._requests),
            starts=np.concatenate(([0], np.cumsum(sizes))),
            begin=np.concatenate(self._begin),
            end=np.concatenate(self._end),
        )

"""What a router leaves of the prefix reuse: hit rates with several replicas, each with a cache of its own.

Prefix-aware routing sends a request to the replica that has seen most of its leading blocks, unless that one is
overloaded. The idea is that of SGLang's cache-aware router and of Preble (Srivatsa et al., arXiv:2407.00023). Here the
router remembers every block that it ever sent to a replica, and load is the sum of the prompt tokens sent so far, since
a trace has no service times. Round-robin deals requests in turn, session-sticky deals sessions in turn, by their first
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from pydantic import Field

from inferdoc.evidence import Contract
from inferdoc.traces.miss_ratio import stack_distances_within
from inferdoc.traces.prefix_tree import PrefixTree

Ints = npt.NDArray[np.int64]
MOST_LOAD = (6, 5)
"""A replica gets no request for its prefixes while it has had more than 6/5 of the mean load."""
_REQUESTS_AT_ONCE = 50_000


class Policy(StrEnum):
    """How requests are given to replicas."""

    ROUND_ROBIN = "round-robin"
    SESSION_STICKY = "session-sticky"
    PREFIX_AWARE = "prefix-aware"


class RoutedAt(Contract):
    """The hit rate with an LRU cache of one size on each replica."""

    capacity_tokens_per_replica: int
    hit_rate: float


class RoutingResult(Contract):
    """The hit rate over all replicas under one policy."""

    policy: Policy
    replicas: int
    hit_rate: float | None
    """Cached over all prompt tokens, with a cache on each replica that never evicts; ``None`` with a `reason`."""
    at: list[RoutedAt] = Field(default_factory=list)
    busiest_load: float | None
    """Prompt tokens of the busiest replica over the mean of all."""
    reason: str | None = None


def route(
    tree: PrefixTree,
    sessions: Ints | None,
    replicas: Sequence[int],
    *,
    joined: int = 1,
    capacities_tokens: Sequence[int] = (),
) -> list[RoutingResult]:
    """Hit rates for each number of replicas and each policy, in blocks of `joined` of the tree's.

    `sessions`: a number for each request, by first appearance; ``None`` where the trace has none. Capacities are tokens
    of each replica.

    Raises:
        ValueError: a number of replicas below 1.
    """
    if any(count < 1 for count in replicas):
        raise ValueError(f"replicas {list(replicas)}")
    by_prefix = prefix_aware(tree, replicas, joined)
    results = []
    for count in replicas:
        chosen: dict[Policy, Ints | None] = {
            Policy.ROUND_ROBIN: np.arange(len(tree.count)) % count,
            Policy.SESSION_STICKY: None if sessions is None else sessions % count,
            Policy.PREFIX_AWARE: by_prefix[count],
        }
        for policy, replica in chosen.items():
            if replica is None:
                reason = "the trace names no sessions"
                none = RoutingResult(policy=policy, replicas=count, hit_rate=None, busiest_load=None, reason=reason)
                results.append(none)
            else:
                results.append(_result(tree, policy, count, replica, joined, capacities_tokens))
    return results


def _result(
    tree: PrefixTree, policy: Policy, count: int, replica: Ints, joined: int, capacities: Sequence[int]
) -> RoutingResult:
    block, total = tree.block_size * joined, int(tree.tokens.sum())
    hits = int(tree.hit_blocks(tree.seen_before_within(replica), joined).sum()) * block
    load = np.bincount(replica, weights=tree.tokens, minlength=count)
    at = []
    if capacities:
        distances = stack_distances_within(tree, replica, joined)
        at = [
            RoutedAt(capacity_tokens_per_replica=capacity, hit_rate=distances.hits(capacity) / total)
            for capacity in capacities
        ]
    return RoutingResult(
        policy=policy, replicas=count, hit_rate=hits / total, at=at, busiest_load=float(load.max() * count / total)
    )


def prefix_aware(tree: PrefixTree, replicas: Sequence[int], joined: int = 1) -> dict[int, Ints]:
    """The replica of each request, for each number of replicas.

    Longest match first among the replicas that are not overloaded; of those with an equal match, and of all where
    nothing matches, the least loaded one, then the one with the lowest number.
    """
    choices = {count: np.zeros(len(tree.count), dtype=np.int64) for count in replicas}
    fleets = _fleets([count for count in choices if count > 1])
    visits = tree.visits(joined)
    at = visits.of_requests(np.ones(len(visits.request), dtype=bool))
    bounds = np.searchsorted(visits.request[at], np.arange(len(tree.count) + 1))
    # Which replicas of all fleets hold a node, a bit for each. A node's bits are among those of the nodes before it.
    holders = [0] * len(tree.begin)
    total = 0
    for start in range(0, len(tree.count) if fleets else 0, _REQUESTS_AT_ONCE):
        stop = min(start + _REQUESTS_AT_ONCE, len(tree.count))
        nodes = visits.node[at[bounds[start] : bounds[stop]]].tolist()
        ends = (bounds[start + 1 : stop + 1] - bounds[start]).tolist()
        begin = 0
        for end, tokens in zip(ends, tree.tokens[start:stop].tolist(), strict=True):
            path = nodes[begin:end]
            begin = end
            held = [bits for node in reversed(path) if (bits := holders[node])]
            total_allowed = total * MOST_LOAD[0] // MOST_LOAD[1]
            brought = 0
            for fleet in fleets:
                brought |= fleet.choose(held, tokens, total_allowed)
            total += tokens
            for node in path:
                holders[node] |= brought
        for fleet in fleets:
            choices[len(fleet.load)][start:stop] = fleet.chosen
            fleet.chosen.clear()
    return choices


def _fleets(replicas: Sequence[int]) -> list[_Fleet]:
    firsts = np.cumsum([0, *replicas]).tolist()
    return [_Fleet(count, first) for count, first in zip(replicas, firsts, strict=False)]


class _Fleet:
    """Replicas that share the requests: their loads, and their bits among those of all fleets."""

    __slots__ = ("_all", "_bit", "_members", "chosen", "load")

    def __init__(self, count: int, first_bit: int) -> None:
        self.load = [0] * count
        self.chosen: list[int] = []
        self._bit = [1 << (first_bit + replica) for replica in range(count)]
        self._all = sum(self._bit)
        self._members: dict[int, list[int]] = {}

    def choose(self, held: list[int], tokens: int, total_allowed: int) -> int:
        """The bit of the replica chosen. `held`: who holds the leading nodes of the request, the deepest node first."""
        load = self.load
        best = -1
        if held:
            limit = total_allowed // len(load)
            looked_at = 0
            for bits in held:
                mine = bits & self._all
                if mine == looked_at:  # nobody new with a shorter match
                    continue
                looked_at = mine
                members = self._members.get(mine)
                if members is None:
                    members = self._members[mine] = [r for r, bit in enumerate(self._bit) if mine & bit]
                least = limit + 1
                for replica in members:
                    if load[replica] < least:
                        best, least = replica, load[replica]
                if best >= 0:
                    break
        if best < 0:
            best = load.index(min(load))
        load[best] += tokens
        self.chosen.append(best)
        return self._bit[best]

"""Drawing times and orders that look like those of a trace."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_BLOCKS = 50
_SHORTEST_BLOCK = 16
_LONGEST_BLOCK = 2_000
_NEARBY = 0.02
JITTER = 8
"""Requests by which a lineage may begin earlier or later than in the trace."""


def passes(requests: int, of: int) -> int:
    """How often a trace of `of` requests is gone through to make `requests`."""
    return max(1, round(requests / of))


def arrival_times(arrival_s: Floats, requests: int, random: np.random.Generator) -> Floats:
    """Times from 0: stretches of consecutive gaps of the trace, put one behind the other.

    A stretch is taken from about the place of the trace that belongs to its own place, so that bursts within a stretch
    and slow changes (a day) both stay. Künsch, "The jackknife and the bootstrap for general stationary observations",
    Annals of Statistics 17(3), 1989, with the place of each block drawn nearby instead of anywhere.
    """
    gaps = np.diff(arrival_s)
    if not len(gaps) or requests < 2:
        return np.zeros(requests)
    length = min(len(gaps), max(_SHORTEST_BLOCK, min(_LONGEST_BLOCK, len(gaps) // _BLOCKS)))
    starts = np.arange(0, requests - 1, length)
    place = (starts / (requests - 1) * passes(requests, len(arrival_s))) % 1 * len(gaps)
    near = max(length / 2, _NEARBY * len(gaps))
    drawn = place + random.uniform(-near, near, len(starts))
    chosen = np.clip(drawn, 0, len(gaps) - length).astype(np.int64)
    taken: Floats = gaps[(chosen[:, None] + np.arange(length)).reshape(-1)[: requests - 1]]
    return np.concatenate(([0.0], np.cumsum(taken)))


def draw_requests(lineage: Ints, requests: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """Positions of the trace's requests for each new one, in order, and the generation that each belongs to.

    Whole lineages are drawn without replacement, all of them once a generation, and begin about where they begin in the
    trace, with the same distances between their requests. What would lie behind the end is left out, as in a trace.
    """
    count = len(lineage)
    members = np.argsort(lineage, kind="stable")
    sizes = np.bincount(lineage)
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    begins = members[bounds[:-1]]
    rounds = passes(requests, count)
    span = requests / rounds
    positions, sources, generations = [], [], []
    generation = 0
    for turn in range(rounds):
        wanted = round((turn + 1) * span) - round(turn * span)
        while wanted > 0:
            order = random.permutation(len(sizes))
            start = (turn + begins[order] / count) * span + random.uniform(-JITTER, JITTER, len(order))
            start = np.clip(start, 0, requests - 1)
            rows = members[_ranges(bounds[order], sizes[order])]
            at = np.repeat(start - begins[order], sizes[order]) + rows
            inside = at < requests
            kept = np.flatnonzero(inside)[:wanted]
            positions.append(at[kept])
            sources.append(rows[kept])
            generations.append(np.full(len(kept), generation))
            wanted -= len(kept)
            generation += 1
    order = np.argsort(np.concatenate(positions), kind="stable")
    return np.concatenate(sources)[order], np.concatenate(generations)[order]


def _ranges(first: Ints, length: Ints) -> Ints:
    """Consecutive numbers from each of `first` on, one range after the other."""
    ends = np.cumsum(length)
    numbers: Ints = np.arange(int(length.sum()), dtype=np.int64) + np.repeat(first - (ends - length), length)
    return numbers

"""Which requests belong together: sessions, or requests of which one continues the prompt of another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inferdoc.traces.chains import Chains
from inferdoc.traces.reuse import session_numbers
from inferdoc.traces.trace import Trace

Ints = npt.NDArray[np.int64]


def lineages(trace: Trace, chains: Chains | None) -> Ints:
    """The lineage of each request, numbered by first appearance.

    Where the trace names no sessions, a request continues the last one before it whose whole prompt, but for its last
    full block, it begins with. Requests that share less, such as a system prompt, do not belong together.
    """
    named = session_numbers(trace)
    if named is not None:
        return named
    count = len(trace)
    if chains is None:
        return np.arange(count, dtype=np.int64)
    ends: dict[int, int] = {}
    """The last request that ends with a chain, or one block before its end."""
    found = np.empty(count, dtype=np.int64)
    made = 0
    for request, (first, blocks) in enumerate(zip(chains.first.tolist(), chains.count.tolist(), strict=True)):
        own = chains.numbers[first : first + blocks].tolist()
        earlier = next((ends[number] for number in reversed(own) if number in ends), None)
        if earlier is None:
            found[request] = made
            made += 1
        else:
            found[request] = found[earlier]
        # A single block is not enough to tell a continuation from a common beginning.
        for number in own[-2:] if blocks > 2 else own[-1:] if blocks == 2 else ():
            ends[number] = request
    return found


def users(chains: Chains, lineage: Ints) -> Ints:
    """For each chain, how many lineages have it."""
    owner = np.repeat(lineage, chains.count)
    width = int(lineage.max(initial=0)) + 1
    pairs = np.sort(chains.numbers * width + owner)
    different = np.ones(len(pairs), dtype=bool)
    different[1:] = pairs[1:] != pairs[:-1]
    return np.bincount(pairs[different] // width, minlength=len(chains)).astype(np.int64)

"""What static batches waste: a batch lasts as long as its longest output, and rows that are done keep their slots.

Waste is ``1 - sum of lengths / sum over batches of (requests in it * longest of it)``: 0 for equal lengths. Sorting by
length before batching needs outputs that nobody knows beforehand, so what it leaves is a bound, not a forecast.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import Field

from inferdoc.evidence import Contract
from inferdoc.traces.trace import Trace

BATCH_SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
SORTED_BATCHES = 8
"""Batches' worth of requests that a scheduler might hold back to sort."""

Lengths = npt.NDArray[np.int64] | npt.NDArray[np.int32]


class BatchWaste(Contract):
    """Wasted share of the slot steps of static batches of `batch_size` requests."""

    batch_size: int
    arrival_order_share: float
    sorted_nearby_share: float
    """Outputs sorted by length among `SORTED_BATCHES` batches' worth of requests that follow each other."""
    sorted_all_share: float
    """The least that any batches of this size can waste."""
    useful_steps: int
    slot_steps: int
    """Both of arrival order."""


class BatchWasteAnalysis(Contract):
    n: int
    sizes: list[BatchWaste] = Field(default_factory=list)
    reason: str | None = None


def analyse_batch_waste(trace: Trace, sizes: tuple[int, ...] = BATCH_SIZES) -> BatchWasteAnalysis:
    """Waste by batch size over the requests with an output length, in order of arrival."""
    known = trace.rows["output_tokens"].drop_nulls()
    if not len(known):
        return BatchWasteAnalysis(n=0, reason="no request has an output length")
    outputs = known.to_numpy()
    useful = int(outputs.sum())
    if not useful:
        return BatchWasteAnalysis(n=len(outputs), reason="all outputs have 0 tokens")
    # Half the memory where 32 bits hold the lengths; sorted in place in ever longer stretches, then as a whole.
    nearby: Lengths = outputs.astype(np.int32) if int(outputs.max()) < 2**31 else outputs.copy()
    found = []
    for size in sorted(sizes):
        stretch = size * SORTED_BATCHES
        whole = len(nearby) // stretch * stretch
        nearby[:whole].reshape(-1, stretch).sort(axis=1)
        nearby[whole:].sort()
        slots = _slots(nearby[:whole], size) + _fewest_slots(nearby[whole:], size)
        found.append((size, _slots(outputs, size), slots))
    nearby.sort()
    return BatchWasteAnalysis(
        n=len(outputs),
        sizes=[
            BatchWaste(
                batch_size=size,
                arrival_order_share=1 - useful / in_order,
                sorted_nearby_share=1 - useful / slots,
                sorted_all_share=1 - useful / _fewest_slots(nearby, size),
                useful_steps=useful,
                slot_steps=in_order,
            )
            for size, in_order, slots in found
        ],
    )


def static_waste(outputs: Lengths, size: int) -> float:
    """1 - useful slot steps / all slot steps, for batches of `size` in the order given.

    A batch lasts as long as its longest output; the last, smaller batch counts with the slots that it has.

    Raises:
        ValueError: no output, or a batch of none.
    """
    if size < 1 or not len(outputs):
        raise ValueError(f"batches of {size} of {len(outputs)} requests")
    slots = _slots(outputs, size)
    return 1 - int(outputs.sum()) / slots if slots else 0.0


def _slots(outputs: Lengths, size: int) -> int:
    if not len(outputs):
        return 0
    longest = np.maximum.reduceat(outputs, np.arange(0, len(outputs), size)).astype(np.int64)
    last = len(outputs) - (len(longest) - 1) * size
    return int(longest[:-1].sum()) * size + int(longest[-1]) * last


def _fewest_slots(ascending: Lengths, size: int) -> int:
    """Slot steps of the best division of sorted outputs into batches of `size` and one of the rest.

    Filling the batches in order of length is best whichever place the smaller batch has: the i shortest batches of any
    division hold as many outputs that are at most as long as the i-th one's longest. So only its place is to choose.
    """
    n = len(ascending)
    full, rest = divmod(n, size)
    if not rest:
        return _slots(ascending, size)
    before = ascending[size - 1 :: size][:full].astype(np.int64)
    after = ascending[rest + size - 1 :: size].astype(np.int64)
    smaller = ascending[np.arange(full + 1) * size + rest - 1].astype(np.int64)
    upto, since = np.concatenate(([0], np.cumsum(before))), np.concatenate((np.cumsum(after[::-1])[::-1], [0]))
    return int((size * (upto + since) + rest * smaller).min())

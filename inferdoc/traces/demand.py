"""How many tokens of K/V are live over time, and what reserving more than that would waste.

A request holds its prompt from its start on; its output grows at an even pace from its first token to its last, when
all is freed. Starts, first tokens and ends are sorted once and swept: between two of them the demand is a straight
line. In blocks, a request goes straight from its prompt in whole blocks to its whole length in whole blocks, which is
within one block of the staircase. Nothing is shared between requests, and nobody waits for memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from inferdoc.evidence import Contract
from inferdoc.traces.clocks import Stretch, stretches
from inferdoc.traces.service import COLUMNS, Service, lives_of
from inferdoc.traces.sweep import Sweep
from inferdoc.traces.time_weighted import RELATIVE_ERROR, OverTime
from inferdoc.traces.token_seconds import HeavyRequest, Totals, next_power_of_two
from inferdoc.traces.trace import Trace

ROWS_AT_ONCE = 1 << 14
"""Few enough that the events of a part fit a processor's cache."""
DOUBLED = "prompt + output, rounded up to a power of two"
"""What a server reserves that is told the output's length, as the engine's contiguous baseline does."""


class BlockDemand(Contract):
    block_size: int
    tokens: OverTime
    """Places in the blocks that hold live tokens."""
    unwritten_share: float
    """Token-seconds of places without a token over those of all places."""


class Reservation(Contract):
    """Reserving a request's places all at once when it starts, over the live tokens."""

    kind: str
    tokens: OverTime | None = None
    waste_share: float | None = None
    """Token-seconds reserved and not written over those reserved."""
    too_long: int = 0
    """Requests longer than their reservation: they count in `tokens`, not in `waste_share`."""
    reason: str | None = None


class SegmentDemand(Contract):
    """Demand on one clock, from the first start to the last end."""

    segment: int | None
    requests: int
    left_out: int
    """Requests without an output length, or without service times."""
    service: str
    """Whose times: measured, modelled, or for how many requests which."""
    span_s: float = 0.0
    live_requests: OverTime | None = None
    live_tokens: OverTime | None = None
    max_at_s: float | None = None
    """When the most tokens are live, first."""
    quantile_error_share: float = RELATIVE_ERROR
    """Percentiles are off by less than this share of them and 1."""
    blocks: list[BlockDemand] = Field(default_factory=list)
    reservations: list[Reservation] = Field(default_factory=list)
    largest: list[HeavyRequest] = Field(default_factory=list)
    """Those with the most token-seconds."""
    notes: list[str] = Field(default_factory=list)
    reason: str | None = None


class DemandAnalysis(Contract):
    segments: list[SegmentDemand] = Field(default_factory=list)
    other_segments: int = 0
    reason: str | None = None

    @property
    def whole(self) -> SegmentDemand | None:
        """The demand, where the trace has one clock."""
        return self.segments[0] if len(self.segments) == 1 and not self.other_segments else None


def analyse_demand(
    trace: Trace,
    *,
    service: Service | None = None,
    block_sizes: Sequence[int] = (16,),
    max_model_len: int | None = None,
) -> DemandAnalysis:
    """Live tokens of `trace` over time, by recorded service times, and by `service` where there are none.

    Args:
        block_sizes: tokens a block, at least 1 each.
        max_model_len: tokens that a server without paging would reserve for every request.

    Raises:
        ValueError: a block size or `max_model_len` below 1.
    """
    if min(block_sizes, default=1) < 1 or (max_model_len is not None and max_model_len < 1):
        raise ValueError(f"block sizes {block_sizes}, max_model_len {max_model_len}")
    found, others, reason = stretches(trace)
    if reason is None and service is None and not trace.has("e2e_s"):
        reason = "the trace has no service times (`e2e_s`), and no service model was given"
    if reason is None and not (trace.has("input_tokens") and trace.has("output_tokens")):
        reason = "the trace has no input and output lengths (text not yet counted)"
    if reason is not None:
        return DemandAnalysis(reason=reason)
    return DemandAnalysis(
        segments=[_of_stretch(trace, stretch, service, block_sizes, max_model_len) for stretch in found],
        other_segments=others,
        reason="segments have clocks of their own: what is live together is not known" if len(found) > 1 else None,
    )


def _of_stretch(
    trace: Trace, stretch: Stretch, service: Service | None, block_sizes: Sequence[int], max_model_len: int | None
) -> SegmentDemand:
    sweep = Sweep(["tokens", *(f"blocks of {size}" for size in block_sizes), DOUBLED])
    totals = Totals(max_model_len)
    rows, start = trace.rows.slice(stretch.start, stretch.count).select(COLUMNS), 0
    while start < len(rows):
        # As many as are live already, so that a long queue of ends is not sorted again and again.
        upto = start + max(ROWS_AT_ONCE, sweep.unsettled)
        lives = lives_of(rows.slice(start, upto - start), service)
        horizon_s = float(rows["arrival_s"][upto]) if upto < len(rows) else np.inf
        start = upto
        whole = lives.prompts + lives.outputs
        doubled = next_power_of_two(whole)
        sizes = {"tokens": (lives.prompts, whole), DOUBLED: (doubled, doubled)}
        for size in block_sizes:
            sizes[f"blocks of {size}"] = (-(-lives.prompts // size) * size, -(-whole // size) * size)
        sweep.add(lives, sizes, horizon_s)
        totals.add(lives, doubled)
    found = SegmentDemand(
        segment=stretch.segment,
        requests=totals.requests,
        left_out=totals.left_out,
        service=_service_text(totals.requests, totals.measured),
        notes=_notes(totals),
    )
    if not totals.token_seconds:
        idle, unknown = "no request holds tokens for any time", "no request has both lengths and service times"
        why = idle if totals.requests else unknown
        return found.model_copy(update={"reason": why})
    live, tokens = sweep["requests"].summary(), sweep["tokens"].summary()
    blocks = [_of_blocks(size, sweep[f"blocks of {size}"].summary(), tokens) for size in block_sizes]
    return found.model_copy(
        update={
            "span_s": sweep["tokens"].seconds,
            "live_requests": live,
            "live_tokens": tokens,
            "max_at_s": sweep["tokens"].max_at,
            "blocks": blocks,
            "reservations": _reservations(totals, live, sweep[DOUBLED].summary(), max_model_len),
            "largest": totals.largest(),
        }
    )


def _of_blocks(size: int, places: OverTime, tokens: OverTime) -> BlockDemand:
    return BlockDemand(block_size=size, tokens=places, unwritten_share=1 - tokens.mean / places.mean)


def _reservations(totals: Totals, live: OverTime, doubled: OverTime, max_model_len: int | None) -> list[Reservation]:
    declared = Reservation(kind="prompt + declared maximum", reason="the trace has no declared maximum of outputs")
    rounded = Reservation(kind=DOUBLED, tokens=doubled, waste_share=totals.waste_doubled)
    if max_model_len is None:
        return [Reservation(kind="max-model-len", reason="no max-model-len was given"), declared, rounded]
    waste = totals.waste_longest
    longest = Reservation(
        kind="max-model-len",
        tokens=OverTime(**{name: value * max_model_len for name, value in live.model_dump().items()}),
        waste_share=waste,
        too_long=totals.too_long,
        reason=None if waste is not None else f"no request fits {max_model_len:,} tokens",
    )
    return [longest, declared, rounded]


def _service_text(requests: int, measured: int) -> str:
    if measured == requests:
        return "measured"
    return f"measured for {measured:,} of {requests:,} requests, else modelled" if measured else "modelled"


def _notes(totals: Totals) -> list[str]:
    notes = []
    if totals.without_first:
        notes.append(
            f"{totals.without_first:,} requests have no time to first token: their output grows over all of their time"
        )
    if totals.left_out:
        notes.append(f"{totals.left_out:,} requests are left out, so the demand is at least this")
    if totals.measured:
        notes.append("recorded times are those of the server under its load; a preempted request counts as live")
    return notes

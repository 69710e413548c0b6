"""A trace and another one made from it, in numbers beside each other."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from inferdoc.evidence import Contract
from inferdoc.traces.arrivals import SegmentArrivals, analyse_arrivals
from inferdoc.traces.chains import known_blocks
from inferdoc.traces.lengths import analyse_lengths
from inferdoc.traces.miss_ratio import stack_distances
from inferdoc.traces.prefix_tree import grow
from inferdoc.traces.trace import Trace

HIT_RATE = "ideal hit rate"
HIT_RATE_TOLERANCE = 0.01
_BLOCK_SIZE = 16
_SHARES = (0.5, 0.9)


class Compared(Contract):
    """One number of both traces, ``None`` where it is not known."""

    label: str
    unit: str
    before: float | None
    after: float | None


class Comparison(Contract):
    numbers: list[Compared]
    warnings: list[str] = Field(default_factory=list)


class Outline(Contract):
    """What a trace is, in the numbers that two traces are compared by."""

    values: dict[str, tuple[str, float | None]]

    @property
    def hit_rate(self) -> float | None:
        return self.values[HIT_RATE][1]


def outline(trace: Trace, block_size: int | None = None) -> Outline:
    """`block_size`: tokens a block of the hit rates, of recorded blocks a multiple; where not given theirs, or 16."""
    lengths, arrivals = analyse_lengths(trace), analyse_arrivals(trace).whole
    values: dict[str, tuple[str, float | None]] = {
        "requests": ("requests", float(len(trace))),
        "duration": ("s", trace.duration_s),
        "rate": ("requests/s", trace.rate_per_s),
        "CV of times between requests": ("", arrivals.interarrival_cv if arrivals else None),
    }
    values |= _dispersions(arrivals)
    for name, lengths_of in (("input", lengths.input), ("output", lengths.output)):
        values[f"{name}, mean"] = ("tokens", lengths_of.mean_tokens)
        values[f"{name}, p50"] = ("tokens", lengths_of.percentile(50))
        values[f"{name}, p99"] = ("tokens", lengths_of.percentile(99))
    values["rank correlation of input and output"] = ("", lengths.correlation_rank)
    return Outline(values=values | _reuse(trace, block_size))


def _reuse(trace: Trace, block_size: int | None) -> dict[str, tuple[str, float | None]]:
    blocks = known_blocks(trace, block_size or _BLOCK_SIZE)
    if blocks is None:
        return {HIT_RATE: ("share", None)}
    tree = grow(blocks)
    joined = max(1, (block_size or blocks.block_size) // blocks.block_size)
    distances = stack_distances(tree, joined)
    total, hits = int(tree.tokens.sum()), int(distances.blocks.sum())
    found: dict[str, tuple[str, float | None]] = {HIT_RATE: ("share", hits * distances.block_size / total)}
    for share in _SHARES:
        label = f"cache for {share:.0%} of the ideal hits in blocks of {distances.block_size} tokens"
        wanted = int(np.ceil(share * hits))
        found[label] = ("tokens", float(distances.smallest_capacity(wanted)) if hits else None)
    return found


def compare(before: Trace, after: Trace) -> Comparison:
    """Both outlines, with blocks of a size that both have."""
    size = after.block_size if after.content == "block hashes" and before.content != "lengths only" else None
    if before.block_size and size and size % before.block_size:
        size = None
    one, other = outline(before, size), outline(after, size)
    numbers = []
    for label in one.values | other.values:
        unit = (one.values.get(label) or other.values[label])[0]
        pair = [side.values.get(label, (unit, None))[1] for side in (one, other)]
        if pair != [None, None]:
            numbers.append(Compared(label=label, unit=unit, before=pair[0], after=pair[1]))
    return Comparison(numbers=numbers, warnings=_warnings(one, other))


def _warnings(before: Outline, after: Outline) -> list[str]:
    if before.hit_rate is None or after.hit_rate is None or after.hit_rate <= before.hit_rate + HIT_RATE_TOLERANCE:
        return []
    return [
        f"its ideal hit rate of {after.hit_rate:.1%} is above the {before.hit_rate:.1%} of what it stands for: what is"
        " measured with it flatters prefix caching and does not carry over"
    ]


def _dispersions(arrivals: SegmentArrivals | None) -> dict[str, tuple[str, float | None]]:
    found = {entry.asked_s: entry.dispersion for entry in (arrivals.dispersions if arrivals else ())}
    return {
        f"index of dispersion, {window:g} s": ("", found[window])
        for window in (1.0, 10.0, 60.0)
        if found.get(window) is not None
    }

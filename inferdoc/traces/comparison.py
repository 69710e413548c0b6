"""A trace and another one made from it, in numbers beside each other."""

from __future__ import annotations

from pydantic import Field

from inferdoc.evidence import Contract
from inferdoc.traces.arrivals import SegmentArrivals, analyse_arrivals
from inferdoc.traces.lengths import analyse_lengths
from inferdoc.traces.prefix_analysis import analyse_prefixes
from inferdoc.traces.trace import Trace

HIT_RATE_TOLERANCE = 0.01


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
        return self.values["ideal hit rate"][1]


def outline(trace: Trace, block_size: int | None = None) -> Outline:
    """`block_size`: tokens a block of the hit rates; the smallest one known where not given."""
    lengths, arrivals = analyse_lengths(trace), analyse_arrivals(trace).whole
    prefixes = analyse_prefixes(trace, block_sizes=None if block_size is None else (block_size,), replicas=())
    of_size = next((entry for entry in prefixes.block_sizes if entry.block_size == prefixes.block_size), None)
    reach = {
        entry.ideal_share: float(entry.capacity_tokens)
        for entry in (of_size.cache.reach if of_size and of_size.cache else ())
    }
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
    size = f" in blocks of {prefixes.block_size} tokens" if of_size else ""
    values["ideal hit rate"] = ("share", of_size.hit_rate if of_size else None)
    for share in (0.5, 0.9):
        values[f"cache for {share:.0%} of the ideal hits{size}"] = ("tokens", reach.get(share))
    return Outline(values=values)


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

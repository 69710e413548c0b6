"""What fits into the budget: the slice shrinks first, then pairs go, and earlier questions have the first claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inferdoc.engine.config import EngineConfig
from inferdoc.errors import MeasurementError
from inferdoc.evidence import PlanStep
from inferdoc.probes.context import ProbeContext, SliceRequest
from inferdoc.probes.paired import Pair, run_slice
from inferdoc.statistics import MIN_PAIRS
from inferdoc.traces import Trace, window_hits, with_token_ids

LARGEST_SLICE = 256
PAIRS = (10, 8, MIN_PAIRS)
"""Pairs to try, most first. With more than the fewest, one disturbed pair no longer sets the end of the interval."""
STACK_SHARE = 1.5
"""Time kept for measuring the stack, as a multiple of the longest saturated comparison."""
USABLE = 0.9
"""Share of the remaining time that is planned; estimates are off by some percent, and the report takes a moment."""


@dataclass(frozen=True)
class Plan:
    steps: list[PlanStep]
    run: list[Pair]
    """In the order of the questions; last, where time is left over, one pair that will not come to its end."""


def choose_window(trace: Trace, count: int, within: tuple[int, int] | None = None) -> tuple[int, int]:
    """Start and size of the run of `count` consecutive requests whose work is most like the whole trace's.

    Closest in mean prompt and mean output length (sum of the absolute log ratios); the earliest of equals.

    Args:
        within: start and size of a part of the trace, such as its peak: the run is taken there and is like it, where
            it has so many requests.
    """
    start, size = within if within is not None and within[1] >= count else (0, len(trace))
    count = min(count, size)
    rows = trace.rows.slice(start, size)
    distance = np.zeros(size - count + 1)
    for column in ("input_tokens", "output_tokens"):
        lengths = rows[column].to_numpy().astype(float)
        sums = np.concatenate(([0.0], np.cumsum(lengths)))
        distance += np.abs(np.log((sums[count:] - sums[:-count]) / count / lengths.mean()))
    return start + int(distance.round(12).argmin()), count


def largest_slice_tokens(trace: Trace) -> int:
    """Tokens of as many requests as a slice may have, at the trace's mean length."""
    lengths = (trace.rows["input_tokens"] + trace.rows["output_tokens"]).to_numpy()
    return int(lengths.mean() * min(LARGEST_SLICE, len(trace)))


def slice_requests(trace: Trace) -> list[SliceRequest]:
    rows = trace.rows
    return [
        SliceRequest(prompt, output, arrival)
        for prompt, output, arrival in zip(
            rows["prompt_ids"].to_list(), rows["output_tokens"].to_list(), rows["arrival_s"].to_list(), strict=True
        )
    ]


def smallest_slice(config: EngineConfig) -> int:
    """Requests below which a run is all ramp-up and tail: 16 and twice the batch."""
    return max(16, 2 * config.max_num_seqs)


def make_plan(context: ProbeContext, pairs: Sequence[Pair]) -> Plan:
    """Set the context's slice and number of pairs, and choose what to run.

    On the smallest slice (or the one asked for), as many pairs as let everything fit; then a larger slice. Where not
    even the fewest pairs fit, comparisons are dropped.
    """
    asked = context.settings.requests
    floor = min(asked or smallest_slice(context.base), len(context.trace))
    set_slice(context, floor)
    one_pair = {pair.id: _estimate(context, pair) for pair in pairs}
    left = context.left_s * USABLE
    # The stack of what is recommended comes last, and takes about three arms in place of two.
    longest = max((one_pair[pair.id] for pair in pairs if pair.load == "saturated"), default=0.0)
    wanted = sum(one_pair.values()) + STACK_SHARE * longest
    # One run of each arm warms up and is not counted.
    context.pairs = next((count for count in PAIRS if (count + 1) * wanted <= left), PAIRS[-1])
    runs = context.pairs + 1
    # A pair with a trial of its own does not run the slice, so its length does not grow with it.
    fixed = runs * sum(one_pair[pair.id] for pair in pairs if pair.trial is not None)
    growing = runs * wanted - fixed
    factor = max(1.0, (left - fixed) / growing) if growing else 1.0
    size = min(int(floor * factor), LARGEST_SLICE, len(context.trace)) if asked is None else floor
    if size > floor:
        set_slice(context, size)
    growth = size / floor
    estimates = {p.id: runs * one_pair[p.id] * (1.0 if p.trial is not None else growth) for p in pairs}
    kept = _choose(pairs, estimates, left)
    rest = left - sum(estimates[pair.id] for pair in kept)
    started = [
        pair
        for pair in pairs
        if pair not in kept and pair.load == "saturated" and 2 * estimates[pair.id] / runs <= rest
    ][:1]
    steps = [
        PlanStep(
            id=pair.id,
            question=pair.question,
            label=pair.label,
            pairs=context.pairs,
            estimated_s=estimates[pair.id],
            dropped=None
            if pair in kept
            else f"not within the budget: it would need about {estimates[pair.id]:.0f} s more",
        )
        for pair in pairs
    ]
    return Plan(steps, kept + started)


def _choose(pairs: Sequence[Pair], estimates: dict[str, float], left: float) -> list[Pair]:
    """The pairs that fit, earlier questions first; an open loop needs the saturation that it is loaded by."""
    kept: list[Pair] = []
    for pair in pairs:
        saturated = pair.load == "saturated" or any(k.technique == pair.technique for k in kept)
        if saturated and sum(estimates[k.id] for k in kept) + estimates[pair.id] <= left:
            kept.append(pair)
    return kept


def set_slice(context: ProbeContext, count: int) -> None:
    """Make the window of `count` requests that is most like the trace, or its peak, the measured slice."""
    set_window(context, *choose_window(context.trace, count, context.peak))


def set_window(context: ProbeContext, start: int, size: int) -> None:
    """Make `size` consecutive requests from position `start` on the measured slice."""
    context.slice_trace = with_token_ids(
        context.trace.window(start, size),
        vocab_size=context.spec.vocab_size,
        seed=context.settings.seed,
        reserved=context.loaded.eos_token_ids,
    )
    context.slice = slice_requests(context.slice_trace)
    context.slice_hits = window_hits(context.trace, start, size, context.base.block_size)
    prefixes = {tuple(r.prompt[:n]) for r, n in zip(context.slice, context.slice_hits.from_history, strict=True) if n}
    context.history = [list(prefix) for prefix in sorted(prefixes)]


def _estimate(context: ProbeContext, pair: Pair) -> float:
    """Seconds of one pair, by running both arms on modelled step times."""
    prediction = context.prediction()
    if pair.load == "open":
        saturated = run_slice(prediction, replace(pair, load="saturated"), pair.off).run
        prediction.saturation[pair.technique] = len(saturated.requests) / saturated.duration_s
    seconds = 0.0
    for config in (pair.off, pair.on):
        try:
            seconds += (pair.trial or run_slice)(prediction, pair, config).run.duration_s
        except MeasurementError:
            continue  # fails at once when measured, too
    return seconds

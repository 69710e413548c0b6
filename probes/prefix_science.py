"""Prefix reuse over the whole trace: in caches of any size, and what keeps prompts from sharing more."""

from __future__ import annotations

from inferdoc.evidence import Basis, Line, Question, Series
from inferdoc.probes.context import ProbeContext
from inferdoc.traces.breakers import BreakerAnalysis, analyse_breakers
from inferdoc.traces.prefixes import cache_hits

MOST_SENTENCES = 3
_PINNED = "LRU over whole blocks; room that running requests hold is not taken off, so it is an upper bound"


def observe_cache_sizes(context: ProbeContext) -> None:
    """The hit rate that the KV capacity allows, and the curve over other capacities."""
    capacity = context.kv_capacity_tokens
    found = cache_hits(context.trace, context.base.block_size, [capacity])
    curve, reason = (None, found) if isinstance(found, str) else (found, found.reason)
    at = curve.at[0] if curve and curve.at else None
    reach = next((each for each in curve.reach if each.ideal_share == 0.9), None) if curve else None
    for id, label, value, unit in (
        ("hit_rate_at_capacity", "hit rate of a cache of the whole KV capacity", at.hit_rate if at else None, "share"),
        (
            "capacity_for_90",
            "KV capacity that reaches 90% of the ideal hits",
            reach.capacity_tokens if reach else None,
            "tokens",
        ),
    ):
        context.found.add(
            f"prefix.{id}",
            label,
            value,
            unit,
            Basis.TRACE,
            exact=True,
            reason=None if value is not None else reason or "the trace has no reuse",
            note=_PINNED if value is not None else None,
        )
    if curve and curve.points:
        context.found.series.append(
            Series(
                id="prefix.hit_rate_by_capacity",
                question=Question.PREFIX_REDUNDANCY,
                title="Hit rate by size of the KV cache",
                kind="line",
                x_label="KV cache",
                x_unit="tokens",
                y_label="prompt tokens served",
                y_unit="share",
                x_log=True,
                lines=[
                    Line(
                        name=f"blocks of {curve.block_size} tokens",
                        x=[float(point.capacity_tokens) for point in curve.points],
                        y=[point.hit_rate for point in curve.points],
                    )
                ],
            )
        )


def observe_breakers(context: ProbeContext) -> None:
    """What differs early in prompts that agree later, and the hit rate with that mended."""
    tokenizer = context.loaded.tokenizer
    encode = (lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]) if tokenizer else None
    found = analyse_breakers(context.trace, block_size=context.base.block_size, encode=encode)
    known = found.ideal_hit_rate is not None and found.hit_rate is not None
    regained = found.ideal_hit_rate - found.hit_rate if known else None  # type: ignore[operator]
    note = _note(found)
    for id, label, value in (
        ("mended_hit_rate", "ideal hit rate with every breaker of prefixes mended", found.ideal_hit_rate),
        ("mended_share", "prompt tokens that mending the breakers would let a cache serve", regained),
    ):
        context.found.add(
            f"prefix.{id}",
            label,
            value,
            "share",
            Basis.TRACE,
            exact=True,
            n=found.requests_read or None,
            reason=None if value is not None else found.reason or "nothing was read",
            note=note if value is not None else None,
        )


def _note(found: BreakerAnalysis) -> str:
    said = [breaker.sentence for breaker in found.breakers[:MOST_SENTENCES]]
    more = len(found.breakers) - len(said)
    return "; ".join([*(said or ["no breaker was found"]), *([f"{more} more"] if more else []), *found.notes])

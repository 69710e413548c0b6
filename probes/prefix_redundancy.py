"""Question 2: do prompts repeat? Ideal reuse over the whole trace; the prefix cache measured off and on."""

from __future__ import annotations

from inferdoc.evidence import Basis, Question
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.paired import Pair, off_and_on
from inferdoc.probes.prefix_science import observe_breakers, observe_cache_sizes
from inferdoc.traces import ideal_hits

QUESTION = Question.PREFIX_REDUNDANCY


def comparisons(context: ProbeContext) -> list[Pair]:
    if context.trace.content == "lengths only":
        return []
    note = "the cache begins with the prefixes that requests before the slice would have left in it (not timed)"
    return off_and_on(
        QUESTION,
        "prefix_caching",
        "prefix caching",
        off=context.base,
        on=context.config(enable_prefix_caching=True),
        slo=context.settings.slo,
        notes=(note,),
    )


def observe(context: ProbeContext) -> None:
    observe_cache_sizes(context)
    observe_breakers(context)
    found = context.found
    whole = ideal_hits(context.trace, context.base.block_size)
    reason = None if whole.hit_rate is not None else whole.reason
    found.add(
        "prefix.ideal_hit_rate",
        "ideal hit rate over the whole trace (unlimited cache)",
        whole.hit_rate,
        "share",
        Basis.TRACE,
        exact=True,
        reason=reason,
        note=whole.note,
    )
    found.add(
        "prefix.shared_request_share",
        "requests with at least one shared block",
        whole.shared_request_share,
        "share",
        Basis.TRACE,
        exact=True,
        reason=reason,
    )
    found.add(
        "prefix.median_shared_tokens",
        "shared prefix of a request, median",
        whole.median_shared_tokens,
        "tokens",
        Basis.TRACE,
        exact=True,
        reason=reason,
    )
    found.add(
        "prefix.compulsory_share",
        "prompt tokens seen for the first time",
        whole.compulsory_share,
        "share",
        Basis.TRACE,
        exact=True,
        reason=reason,
    )
    if context.slice_hits is not None:
        found.add(
            "prefix.ideal_hit_rate_slice",
            "ideal hit rate of the measured slice, after the requests before it",
            context.slice_hits.hit_rate,
            "share",
            Basis.TRACE,
            exact=True,
            reason=context.slice_hits.reason,
        )
    run = context.runs.get("prefix_caching.saturated", {}).get("on")
    prompts = sum(request.prompt_length for request in run.requests) if run else 0
    rate = sum(request.num_cached for request in run.requests) / prompts if run else None
    note = None
    if rate is not None and whole.hit_rate is not None and rate > whole.hit_rate:
        note = "above the whole trace's ideal rate: the measured slice repeats more than the trace does"
        for comparison in found.comparisons.values():
            if comparison.technique == "prefix_caching":
                comparison.notes.append(note)
    found.add(
        "prefix.measured_hit_rate",
        "hit rate measured with prefix caching on, after the requests before the slice",
        rate,
        "share",
        Basis.MEASURED,
        n=len(run.requests) if run else None,
        exact=True,
        reason=None if run else (reason or "prefix caching was not run"),
        note=note,
    )

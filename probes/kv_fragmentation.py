"""Question 4: is KV memory fragmented? Contiguous reservation against paged blocks, at the real budget and below.

Smaller budgets are shares of the trace's 99th percentile of KV demand: they show below which memory paging starts to
pay, whether or not the card in front of us is that small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import RunResult
from inferdoc.engine.reserve import per_request_tokens
from inferdoc.engine.steplog import Step
from inferdoc.evidence import Basis, Comparison, Line, Question, Series
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.paired import Pair

QUESTION = Question.KV_FRAGMENTATION
BLOCK_SIZES = (16, 32, 64, 128)
SHARES = (25, 50, 100)


def comparisons(context: ProbeContext) -> list[Pair]:
    pairs = [_pair(context, "real", context.base.kv_tokens, "at the real budget")]
    demand, of_what = usual_demand(context)
    block = context.base.block_size
    smallest = _smallest_budget(context)
    for share in SHARES[::-1]:
        # Below this some request could not run at all, in one arm or the other.
        tokens = max(demand * share // 100, smallest)
        tokens = min(-(-tokens // block) * block, context.base.kv_tokens)
        if all(tokens != pair.off.kv_tokens for pair in pairs):
            pairs.append(_pair(context, f"p{share}", tokens, f"at {tokens / demand:.0%} of {of_what}"))
    return pairs


def _smallest_budget(context: ProbeContext) -> int:
    """Tokens of the largest per-request reservation in the trace, in whole blocks."""
    lengths = context.trace.rows.select("input_tokens", "output_tokens").unique().iter_rows()
    most = min(max(per_request_tokens(prompt, output) for prompt, output in lengths), context.base.max_model_len)
    return -(-most // context.base.block_size) * context.base.block_size


def usual_demand(context: ProbeContext) -> tuple[int, str]:
    """99th percentile of KV demand over time, and its name.

    A full batch of median requests where the trace has no arrival times, or nothing runs at 99% of its time.
    """
    value = context.found.quantities["fit.kv_demand_p99_tokens"].value
    if value is not None and value >= 1:
        return int(value), "the p99 demand"
    lengths = (context.trace.rows["input_tokens"] + context.trace.rows["output_tokens"]).to_numpy()
    return int(context.base.max_num_seqs * np.median(lengths)), "a full batch of usual requests"


def contiguous_baseline(config: EngineConfig) -> Literal["max-model-len", "per-request"]:
    """Reservation of max-model-len, or per request where the pool does not hold a single one of those."""
    return "max-model-len" if config.kv_tokens >= config.max_model_len else "per-request"


def _pair(context: ProbeContext, name: str, tokens: int, where: str) -> Pair:
    """Paging against its contiguous baseline in a pool of `tokens`."""
    on = context.config(num_kv_blocks=tokens // context.base.block_size)
    off = replace(on, reservation=contiguous_baseline(on))
    return Pair(
        id=f"paged_attention.{name}",
        question=QUESTION,
        technique="paged_attention",
        label=f"paged KV {where}",
        off=off,
        on=on,
        metrics=("throughput", "live_requests", "ttft_p50"),
        notes=(f"baseline: {off.reservation} reservation; KV budget {on.kv_tokens:,} tokens",),
    )


def observe(context: ProbeContext) -> None:
    found, base = context.found, context.base
    enough = base.max_num_seqs * base.max_model_len
    binds = context.kv_capacity_tokens < enough
    found.add(
        "fragmentation.budget_binds",
        "the real KV budget limits contiguous reservation",
        float(binds),
        "yes or no",
        Basis.MEASURED,
        exact=True,
        note=f"{base.max_num_seqs} sequences of {base.max_model_len:,} tokens reserve {enough:,} tokens; "
        f"{context.kv_capacity_tokens:,} fit",
    )
    found.add(
        "fragmentation.live_full",
        "requests that contiguous reservation of max-model-len holds at the real budget",
        float(min(base.max_num_seqs, context.kv_capacity_tokens // base.max_model_len)),
        "requests",
        Basis.MODELLED,
        exact=True,
    )
    comparison = found.comparisons.get("paged_attention.real")
    live = comparison.metrics["live_requests"].on_estimate if comparison else None
    found.add(
        "fragmentation.live_paged",
        "requests running at once with paged KV at the real budget",
        live.value if live else None,
        "requests",
        Basis.MEASURED,
        reason=None if live and live.value is not None else "not run",
    )
    _waste(context)
    _pressure(context)
    _block_sizes(context)
    _pays_below(context)


def _waste(context: ProbeContext) -> None:
    """Waste over time in the runs made: reserved and never written, last blocks, places free but not consecutive."""
    baselines = [run["off"] for id, run in context.runs.items() if id.startswith("paged_attention.") and "off" in run]
    full, request = (
        next((run for run in baselines if run.config.reservation == kind), None)
        for kind in ("max-model-len", "per-request")
    )
    paged = context.runs.get("paged_attention.real", {}).get("on")

    def add(
        id: str,
        label: str,
        run: RunResult | None,
        part: Callable[[Step], float],
        whole: Callable[[Step], float],
        missing: str,
    ) -> None:
        value = _share(run, part, whole) if run else None
        context.found.add(
            id, label, value, "share", Basis.MEASURED, exact=True, reason=None if value is not None else missing
        )

    add(
        "fragmentation.internal_waste_full",
        "reserved and not written, max-model-len reservation",
        full,
        lambda s: s.kv.reserved - s.kv.written,
        lambda s: s.kv.reserved,
        "max-model-len reservation was not run",
    )
    add(
        "fragmentation.internal_waste_request",
        "reserved and not written, per-request reservation",
        request,
        lambda s: s.kv.reserved - s.kv.written,
        lambda s: s.kv.reserved,
        "per-request reservation was not run: max-model-len fits every budget",
    )
    add(
        "fragmentation.tail_waste",
        "unwritten places in last blocks, paged",
        paged,
        lambda s: s.kv.tail,
        lambda s: s.kv.reserved,
        "paged KV was not run",
    )
    add(
        "fragmentation.external_waste_full",
        "free places in no run long enough, max-model-len reservation",
        full,
        lambda s: s.kv.external,
        lambda s: full.config.kv_tokens if full else 1,
        "max-model-len reservation was not run",
    )


def _pressure(context: ProbeContext) -> None:
    """Preemptions at the smallest budget that was run, and what torch's allocator holds but cannot hand out."""
    paged = [run["on"] for id, run in context.runs.items() if id.startswith("paged_attention.") and "on" in run]
    tight = min(paged, key=lambda run: run.config.kv_tokens, default=None)
    context.found.add(
        "fragmentation.preemptions_paged",
        f"preemptions with paged KV at {tight.config.kv_tokens:,} tokens" if tight else "preemptions with paged KV",
        float(sum(request.preemptions for request in tight.requests)) if tight else None,
        "preemptions",
        Basis.MEASURED,
        exact=True,
        n=len(tight.requests) if tight else None,
        reason=None if tight else "paged KV was not run",
    )
    on_card = context.device.kind == "cuda"
    context.found.add(
        "fragmentation.allocator_unusable_bytes",
        "split blocks that torch's allocator holds and does not use",
        torch.cuda.memory_stats(context.runner.device)["inactive_split_bytes.all.current"] if on_card else None,
        "bytes",
        Basis.MEASURED,
        exact=True,
        reason=None if on_card else "only on CUDA does torch's allocator tell",
    )


def _share(run: RunResult, part: Callable[[Step], float], whole: Callable[[Step], float]) -> float | None:
    total = sum(whole(step) * step.duration_s for step in run.steps)
    return sum(part(step) * step.duration_s for step in run.steps) / total if total else None


def _block_sizes(context: ProbeContext) -> None:
    """Waste in the last block when a request ends, over the whole trace, by block size."""
    lengths = (context.trace.rows["input_tokens"] + context.trace.rows["output_tokens"]).to_numpy()
    waste = {size: tail_waste(lengths, size) for size in BLOCK_SIZES}
    for size, share in waste.items():
        context.found.add(
            f"fragmentation.tail_waste_b{size}",
            f"waste in last blocks of {size} tokens, whole trace",
            share,
            "share",
            Basis.TRACE,
            exact=True,
        )
    worthwhile = [size for size, share in waste.items() if share < 0.04]
    context.found.add(
        "fragmentation.best_block_size",
        "largest block with less than 4% waste in last blocks",
        float(max(worthwhile)) if worthwhile else float(min(BLOCK_SIZES)),
        "tokens",
        Basis.TRACE,
        exact=True,
        note="4%: the waste that the PagedAttention paper reports for its engine (arXiv 2309.06180, abstract)",
    )
    context.found.series.append(
        Series(
            id="fragmentation.tail_waste_by_block",
            question=QUESTION,
            title="Waste in last blocks by block size",
            kind="line",
            x_label="block size",
            x_unit="tokens",
            y_label="wasted share",
            y_unit="share",
            x_log=True,
            lines=[Line(name="whole trace", x=[float(s) for s in waste], y=list(waste.values()))],
        )
    )


def tail_waste(lengths: np.ndarray, block_size: int) -> float:
    """1 - tokens / places in the blocks that hold them, at the end of each request."""
    places = -(-lengths // block_size) * block_size
    return float(1 - lengths.sum() / places.sum())


def _pays_below(context: ProbeContext) -> None:
    """Largest budget at which the gain's interval lies above 1, of those measured."""
    done: list[Comparison] = [c for id, c in context.found.comparisons.items() if id.startswith("paged_attention.")]
    decided = [c for c in done if c.metrics["throughput"].gain.interval is not None]
    paying = [c.kv_tokens for c in decided if (i := c.metrics["throughput"].gain.interval) and i.low > 1]
    reason = None
    if not paying:
        reason = "it does so at none of the budgets measured" if decided else "too few pairs were run"
    context.found.add(
        "fragmentation.pays_below_tokens",
        "largest measured KV budget at which paging raises throughput",
        float(max(paying)) if paying else None,
        "tokens",
        Basis.MEASURED,
        exact=True,
        reason=reason,
        note="budgets measured: " + ", ".join(f"{c.kv_tokens:,}" for c in decided) if decided else None,
    )

"""Every conclusion of every built-in rule, from hand-made evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferdoc.evidence import Basis, Conclusion

RECOMMENDED = Conclusion.RECOMMENDED
DOES_NOT_PAY = Conclusion.DOES_NOT_PAY
NOT_NEEDED = Conclusion.NOT_NEEDED
INCONCLUSIVE = Conclusion.INCONCLUSIVE
NOT_MEASURED = Conclusion.NOT_MEASURED

UP = (1.8, 1.6, 2.0)
FLAT = (1.0, 0.98, 1.02)
DOWN = (0.8, 0.75, 0.85)
OPEN = (1.06, 0.97, 1.15)
NO_INTERVAL = 1.8

Setup = Callable[[Any], Any]


def gains(technique: str, throughput: Any, ttft: Any, objective: str = "throughput") -> Setup:
    def setup(make: Any) -> Any:
        make.objective = objective
        make.fits().known("prefix.ideal_hit_rate", 0.6)
        make.known("prefix.ideal_hit_rate_slice", 0.52).known("prefix.measured_hit_rate", 0.5)
        make.compare(f"{technique}.saturated", throughput=throughput)
        return make.compare(f"{technique}.open", ttft_p50=ttft, tpot_p50=DOWN)

    return setup


def chunked(itl: Any, ttft: Any = FLAT, objective: str = "throughput", *, wanted: bool = True) -> Setup:
    """`wanted`: under throughput, an objective for gaps between tokens asks for it."""

    def setup(make: Any) -> Any:
        make.objective = objective
        if wanted and objective != "latency":
            make.objectives(itl_max=0.05)
        return make.fits().compare("chunked_prefill.interference", itl_max=itl, ttft_p50=ttft)

    return setup


def paged(binds: float | None, throughput: Any = None) -> Setup:
    def setup(make: Any) -> Any:
        make.fits()
        if binds is not None:
            make.known("fragmentation.budget_binds", binds, exact=True)
        return make.compare("paged_attention.real", throughput=throughput) if throughput is not None else make

    return setup


def known(values: dict[str, float], slo: dict[str, float] | None = None, headroom: float = 2.0) -> Setup:
    def setup(make: Any) -> Any:
        make.fits(headroom).objectives(**(slo or {}))
        for id, value in values.items():
            make.known(id, value)
        return make

    return setup


KEPT, LOST, BETTER = (1.003, 1.001, 1.005), (1.03, 1.02, 1.04), (0.988, 0.980, 0.996)
NEARLY = (1.01, 1.005, 1.015)
NEAR, FAR = (0.004, 0.003, 0.005), (0.03, 0.02, 0.04)
Bounds = tuple[float, float, float]


def fewer_bits(
    technique: str | float = "quantization",
    fraction: float = 0.5,
    *,
    headroom: float = 1.2,
    ratio: Bounds = KEPT,
    kl: Bounds = NEAR,
    throughput: Bounds | None = None,
    alone: Bounds | None = None,
    more_kv: float = 1.4,
) -> Setup:
    """Memory that is short (or a headroom in place of the technique), what fewer bits cost, and how fast they are."""
    name = technique if isinstance(technique, str) else "quantization"
    room = headroom if isinstance(technique, str) else technique

    def setup(make: Any) -> Any:
        make.fits(room, 0.95 if name == "sparsity" else fraction)
        make.known(f"quality.{name}.perplexity_ratio", ratio[0], ratio[1:], unit="x")
        make.known(f"quality.{name}.kl", kl[0], kl[1:], unit="nats").known(f"quality.{name}.top1", 0.97, unit="share")
        make.known(f"fit.frees_{name}_bytes", 2.0**30, exact=True).known(f"fit.buys_{name}_requests", 7, exact=True)
        make.known("fit.more_kv_quantization", more_kv, unit="x", exact=True)
        if throughput:
            make.compare(f"{name}.saturated", throughput=throughput)
        if alone:
            make.compare(f"{name}.alone", tpot_p50=alone)
        return make

    return setup


def drafts(method: str, alone: Any, full: Any, objective: str = "throughput") -> Setup:
    """Drafts of which a step would yield two tokens, and what they gain."""

    def setup(make: Any) -> Any:
        make.objective = objective
        make.fits().known(f"latency.{method}_tokens_per_step", 2.0, exact=True)
        make.known(f"latency.{method}_pays_up_to", 4, exact=True).known(f"latency.{method}_predicted_b1", 1.7)
        if alone:
            make.compare(f"speculative_{method}.alone", tpot_mean=alone)
        return make.compare(f"speculative_{method}.saturated", throughput=full) if full else make

    return setup


def saturated(technique: str, gain: Any, values: dict[str, float]) -> Setup:
    return lambda make: known(values)(make).compare(f"{technique}.saturated", throughput=gain)


def missed(setup: Setup) -> Setup:
    """The same with a TPOT limit that the model misses."""
    return lambda make: setup(make).objectives(**TPOT).known("latency.slo_share", 2.0)


TPOT = {"tpot_p95": 0.05}
ITL = {"itl_max": 0.05}
CASES: list[tuple[str, str, Setup, Conclusion, str]] = [
    # question 1
    ("tensor-parallelism", "fits with room", lambda m: m.fits(), NOT_NEEDED, "8.00 GiB of 16.0 GiB (50%)"),
    (
        "tensor-parallelism",
        "fits, demand unknown",
        lambda m: m.fits().unknown("fit.kv_headroom", "the trace has no arrival times"),
        NOT_NEEDED,
        "unknown (the trace has no arrival times)",
    ),
    ("tensor-parallelism", "fits without KV room", lambda m: m.fits(0.5), NOT_MEASURED, "not yet supported"),
    ("tensor-parallelism", "does not fit", lambda m: m.does_not_fit(4), RECOMMENDED, "fit on 4 devices"),
    ("tensor-parallelism", "devices unknown", lambda m: m.does_not_fit(None), NOT_MEASURED, "did not measure"),
    (
        "tensor-parallelism",
        "headroom straddles one",
        lambda m: m.fits().known("fit.kv_headroom", 1.0, (0.9, 1.1)),
        INCONCLUSIVE,
        "straddles 1.00",
    ),
    ("pipeline-parallelism", "fits", lambda m: m.fits(), NOT_NEEDED, "fits on one device"),
    ("pipeline-parallelism", "one node is enough", lambda m: m.does_not_fit(8), NOT_NEEDED, "8 devices, which one"),
    ("pipeline-parallelism", "more than a node", lambda m: m.does_not_fit(9), NOT_MEASURED, "not yet supported"),
    ("quantization", "room", lambda m: m.fits(2.0, 0.5), NOT_NEEDED, "2.00x the p99"),
    ("quantization", "over the line", lambda m: m.fits(2.0, 0.93), NOT_MEASURED, "93% of the memory budget"),
    ("quantization", "on the line", lambda m: m.fits(2.0, 0.9), NOT_MEASURED, "90% of the memory budget"),
    ("quantization", "short of KV room", lambda m: m.fits(1.2), NOT_MEASURED, "capacity is 1.20x"),
    ("quantization", "room, whatever it gains", fewer_bits(headroom=2.0, throughput=UP), NOT_NEEDED, "2.00x the p99"),
    ("quantization", "short, quality kept", fewer_bits(throughput=FLAT), RECOMMENDED, "room for 7 more requests"),
    ("quantization", "short, speed unknown", fewer_bits(), RECOMMENDED, "throughput unknown"),
    ("quantization", "over the line, quality kept", fewer_bits(2.0, 0.93, throughput=UP), RECOMMENDED, "93%"),
    ("quantization", "short, perplexity rises", fewer_bits(ratio=LOST), DOES_NOT_PAY, "1.03x [1.02..1.04]"),
    ("quantization", "short, text moves away", fewer_bits(ratio=BETTER, kl=FAR), DOES_NOT_PAY, "0.0400] nats a token"),
    ("quantization", "short, slower", fewer_bits(throughput=DOWN), DOES_NOT_PAY, "pays with time"),
    ("quantization", "short, frees little", fewer_bits(more_kv=1.02), DOES_NOT_PAY, "not what takes the room"),
    ("quantization", "short, quality straddles", fewer_bits(ratio=NEARLY), INCONCLUSIVE, "straddles 1.01x"),
    (
        "quantization",
        "demand unknown",
        lambda m: m.fits().unknown("fit.kv_headroom", "no arrival times"),
        NOT_MEASURED,
        "No arrival times.",
    ),
    ("kv-quantization", "room", lambda m: m.fits(2.0), NOT_NEEDED, "2.00x"),
    (
        "kv-quantization",
        "headroom straddles the line",
        lambda m: m.fits().known("fit.kv_headroom", 1.5, (1.3, 1.7), basis=Basis.MODELLED),
        INCONCLUSIVE,
        "1.50 [1.30..1.70] straddles 1.50",
    ),
    ("kv-quantization", "short", lambda m: m.fits(1.1), NOT_MEASURED, "did not measure quality.kv_quantization"),
    ("kv-quantization", "short, quality kept", fewer_bits("kv_quantization"), RECOMMENDED, "room for 7 more requests"),
    ("kv-quantization", "short, lost", fewer_bits("kv_quantization", ratio=LOST), DOES_NOT_PAY, "1.03x"),
    ("kv-quantization", "slower", fewer_bits("kv_quantization", throughput=DOWN), DOES_NOT_PAY, "at equal capacity"),
    ("kv-quantization", "does not fit", lambda m: m.does_not_fit(), NOT_MEASURED, "Does not fit."),
    ("sparsity", "room", lambda m: m.fits(2.0, 0.5), NOT_NEEDED, "asks for no sparse weights"),
    ("sparsity", "over the line", lambda m: m.fits(2.0, 0.95), NOT_MEASURED, "did not measure"),
    ("sparsity", "lost", fewer_bits("sparsity", ratio=LOST), DOES_NOT_PAY, "One-shot magnitude pruning, untrained"),
    ("sparsity", "no faster", fewer_bits("sparsity", throughput=FLAT), DOES_NOT_PAY, "less than 1.05x"),
    ("sparsity", "faster", fewer_bits("sparsity", throughput=UP), RECOMMENDED, "one-shot magnitude, untrained"),
    ("distillation", "no objective", lambda m: m.fits(), NOT_NEEDED, "No per-token objective"),
    ("distillation", "met", known({"latency.slo_share": 0.6}, TPOT), NOT_NEEDED, "60% of the objective"),
    ("distillation", "missed", known({"latency.slo_share": 1.6}, TPOT), NOT_MEASURED, "quality measured, elsewhere"),
    (
        "distillation",
        "missed by prompts that join",
        known({"latency.slo_share": 1.6, "fit.step_share": 0.8}, TPOT),
        NOT_NEEDED,
        "a decode step of a full batch takes 80% of it",
    ),
    (
        "distillation",
        "missed by decode steps",
        known({"latency.slo_share": 1.6, "fit.step_share": 1.2}, TPOT),
        NOT_MEASURED,
        "quality measured, elsewhere",
    ),
    # question 2
    ("prefix-caching", "both gain", gains("prefix_caching", UP, UP), RECOMMENDED, "1.80x [1.60..2.00], 6 pairs"),
    (
        "prefix-caching",
        "names the slice's own ideal rate",
        gains("prefix_caching", UP, UP),
        RECOMMENDED,
        "Of the measured slice's prompt tokens 52% could be served from a cache and 50% were (whole trace: 60%)",
    ),
    (
        "prefix-caching",
        "TTFT alone gains",
        gains("prefix_caching", FLAT, UP),
        DOES_NOT_PAY,
        "Median TTFT does gain, 1.80x [1.60..2.00], 6 pairs: --objective latency would ask for it",
    ),
    (
        "prefix-caching",
        "TTFT alone gains, cost asked",
        gains("prefix_caching", FLAT, UP, "cost"),
        DOES_NOT_PAY,
        "does not pay in throughput, which is what you asked for",
    ),
    (
        "prefix-caching",
        "throughput alone gains, latency asked",
        gains("prefix_caching", UP, FLAT, "latency"),
        DOES_NOT_PAY,
        "--objective throughput would ask for it",
    ),
    ("prefix-caching", "TTFT gains, latency asked", gains("prefix_caching", FLAT, UP, "latency"), RECOMMENDED, "1.80x"),
    (
        "prefix-caching",
        "TTFT loses, latency asked",
        gains("prefix_caching", UP, DOWN, "latency"),
        DOES_NOT_PAY,
        "loses",
    ),
    ("prefix-caching", "TTFT unknown", gains("prefix_caching", UP, None), RECOMMENDED, "unknown (no pairs)"),
    ("prefix-caching", "neither gains", gains("prefix_caching", FLAT, FLAT), DOES_NOT_PAY, "less than 1.05x"),
    ("prefix-caching", "objective loses", gains("prefix_caching", DOWN, UP), DOES_NOT_PAY, "For your objective"),
    ("prefix-caching", "other metric loses", gains("prefix_caching", DOWN, UP, "latency"), RECOMMENDED, "1.80x"),
    ("prefix-caching", "straddles", gains("prefix_caching", OPEN, FLAT), INCONCLUSIVE, "straddles 1.05x"),
    ("prefix-caching", "too few pairs", gains("prefix_caching", NO_INTERVAL, FLAT), INCONCLUSIVE, "no interval yet"),
    ("prefix-caching", "TTFT gains, throughput open", gains("prefix_caching", OPEN, UP), INCONCLUSIVE, "1.06x"),
    (
        "prefix-caching",
        "hardly repeats",
        lambda m: gains("prefix_caching", UP, UP)(m).known("prefix.ideal_hit_rate", 0.004),
        NOT_NEEDED,
        "0.4% of the prompt",
    ),
    (
        "prefix-caching",
        "no prefixes in the trace",
        lambda m: m.fits().unknown("prefix.ideal_hit_rate", "the trace has no prefixes"),
        NOT_MEASURED,
        "The trace has no prefixes.",
    ),
    (
        "prefix-caching",
        "runs dropped",
        lambda m: m.fits().known("prefix.ideal_hit_rate", 0.6).dropped("prefix_caching", "no time; needs 40 s"),
        NOT_MEASURED,
        "No time; needs 40 s.",
    ),
    (
        "prefix-caching",
        "runs failed",
        lambda m: (
            m.fits()
            .known("prefix.ideal_hit_rate", 0.6)
            .compare("prefix_caching.saturated", failure="out of memory")
            .compare("prefix_caching.open", failure="out of memory")
        ),
        NOT_MEASURED,
        "Out of memory.",
    ),
    ("prefix-caching", "does not fit", lambda m: m.does_not_fit(), NOT_MEASURED, "Does not fit."),
    ("prompt-reordering", "all reused", known({"prefix.ideal_hit_rate": 0.95}), NOT_NEEDED, "95%"),
    (
        "prompt-reordering",
        "a breaker",
        known({"prefix.ideal_hit_rate": 0.04, "prefix.mended_hit_rate": 0.83, "prefix.mended_share": 0.79}),
        NOT_MEASURED,
        "it would be 83%",
    ),
    (
        "prompt-reordering",
        "no breaker",
        known({"prefix.ideal_hit_rate": 0.4, "prefix.mended_hit_rate": 0.41, "prefix.mended_share": 0.01}),
        NOT_NEEDED,
        "too little to move anything for",
    ),
    (
        "prompt-reordering",
        "hashes only",
        lambda m: (
            m.fits().known("prefix.ideal_hit_rate", 0.4).unknown("prefix.mended_share", "block hashes hold no text")
        ),
        NOT_MEASURED,
        "Block hashes hold no text",
    ),
    (
        "prompt-reordering",
        "no prefixes",
        lambda m: m.fits().unknown("prefix.ideal_hit_rate", "the trace has no prefixes"),
        NOT_MEASURED,
        "The trace has no prefixes.",
    ),
    # question 3
    ("continuous-batching", "gains", gains("continuous_batching", UP, UP), RECOMMENDED, "1.80x"),
    ("continuous-batching", "costs TPOT", gains("continuous_batching", UP, UP), RECOMMENDED, "median TPOT: 0.80x"),
    (
        "continuous-batching",
        "first token only",
        gains("continuous_batching", FLAT, UP),
        DOES_NOT_PAY,
        "--objective latency would ask for it",
    ),
    (
        "continuous-batching",
        "first token asked for",
        gains("continuous_batching", FLAT, UP, "latency"),
        RECOMMENDED,
        "median TPOT: 0.80x",
    ),
    ("continuous-batching", "no gain", gains("continuous_batching", FLAT, FLAT), DOES_NOT_PAY, "less than 1.05x"),
    ("continuous-batching", "loses", gains("continuous_batching", DOWN, UP), DOES_NOT_PAY, "For your objective"),
    ("continuous-batching", "straddles", gains("continuous_batching", OPEN, OPEN), INCONCLUSIVE, "straddles"),
    ("continuous-batching", "not run", lambda m: m.fits(), NOT_MEASURED, "did not measure"),
    ("max-num-seqs", "no objective", lambda m: m.fits(), NOT_NEEDED, "No per-token objective"),
    ("max-num-seqs", "met", known({"latency.slo_share": 0.9}, TPOT), NOT_NEEDED, "90% of the objective"),
    (
        "max-num-seqs",
        "missed, a batch meets it",
        known({"latency.slo_share": 1.4, "latency.batch_in_slo": 16}, TPOT),
        NOT_MEASURED,
        "largest measured batch within the limit is 16; running it is not yet supported",
    ),
    (
        "max-num-seqs",
        "missed even alone",
        known({"latency.slo_share": 3.0, "latency.batch_in_slo": 0}, TPOT),
        NOT_MEASURED,
        "Even a batch of one",
    ),
    ("max-num-seqs", "missed, unknown", known({"latency.slo_share": 3.0}, TPOT), NOT_MEASURED, "is not known"),
    ("max-num-batched-tokens", "no objective", lambda m: m.fits(), NOT_NEEDED, "No objective for gaps"),
    ("max-num-batched-tokens", "held", known({"disagg.itl_slo_margin": 1.5}, TPOT), NOT_NEEDED, "within"),
    ("max-num-batched-tokens", "not held", known({"disagg.itl_slo_margin": 0.5}, TPOT), NOT_MEASURED, "not yet"),
    # question 4
    ("paged-attention", "budget does not bind", paged(0, UP), NOT_NEEDED, "raised throughput is unknown (this run did"),
    (
        "paged-attention",
        "pays at a smaller budget",
        lambda m: paged(0, UP)(m).known("fragmentation.pays_below_tokens", 1584),
        NOT_NEEDED,
        "paging raised throughput at a KV budget of 1,584 tokens",
    ),
    ("paged-attention", "binds and gains", paged(1, UP), RECOMMENDED, "1.80x [1.60..2.00]"),
    ("paged-attention", "binds, no gain", paged(1, FLAT), DOES_NOT_PAY, "less than 1.05x"),
    ("paged-attention", "binds, loses", paged(1, DOWN), DOES_NOT_PAY, "0.80x"),
    ("paged-attention", "binds, straddles", paged(1, OPEN), INCONCLUSIVE, "straddles 1.05x"),
    ("paged-attention", "binds, not run", paged(1), NOT_MEASURED, "did not measure"),
    ("paged-attention", "binding unknown", paged(None, UP), INCONCLUSIVE, "fragmentation.budget_binds"),
    (
        "block-size",
        "small tails",
        known({"fragmentation.tail_waste_b16": 0.02, "fragmentation.best_block_size": 32}),
        NOT_NEEDED,
        "the largest block that loses less than 4.0% has 32 tokens",
    ),
    (
        "block-size",
        "large tails",
        known({"fragmentation.tail_waste_b16": 0.2}),
        NOT_MEASURED,
        "larger blocks lose more",
    ),
    ("max-model-len", "budget does not bind", paged(0), NOT_NEEDED, "keep no request waiting"),
    ("max-model-len", "binds", paged(1), NOT_MEASURED, "not yet supported"),
    # question 5
    ("quantization-for-latency", "met", known({"latency.slo_share": 0.5}, TPOT), NOT_NEEDED, "not the limit"),
    ("quantization-for-latency", "missed", known({"latency.slo_share": 2}, TPOT), NOT_MEASURED, "did not measure"),
    (
        "quantization-for-latency",
        "missed, faster alone",
        missed(fewer_bits(2.0, alone=UP, throughput=FLAT)),
        RECOMMENDED,
        "a token 1.80x [1.60..2.00], 6 pairs faster at batch 1",
    ),
    (
        "quantization-for-latency",
        "missed, no faster",
        missed(fewer_bits(2.0, alone=FLAT, throughput=FLAT)),
        DOES_NOT_PAY,
        "less than 1.05x",
    ),
    (
        "quantization-for-latency",
        "missed, faster but lost",
        missed(fewer_bits(2.0, alone=UP, ratio=LOST)),
        DOES_NOT_PAY,
        "loses more quality than is allowed (1.01 times",
    ),
    (
        "quantization-for-latency",
        "no objective, more throughput",
        fewer_bits(2.0, alone=FLAT, throughput=UP),
        RECOMMENDED,
        "throughput at full batch 1.80x",
    ),
    (
        "quantization-for-latency",
        "no objective, faster alone only",
        fewer_bits(2.0, alone=UP, throughput=FLAT),
        DOES_NOT_PAY,
        "less than 1.05x where it is asked for",
    ),
    (
        "quantization-for-latency",
        "no fused kernel",
        lambda m: fewer_bits(2.0)(m).unknown("quantization.saturated.throughput.gain", "no fused kernel here"),
        NOT_MEASURED,
        "No fused kernel here.",
    ),
    (
        "quantization-for-latency",
        "no objective",
        known({"latency.tpot_b1": 0.002, "latency.tpot_full_batch": 0.006, "latency.tpot_at_load": 0.099}),
        NOT_MEASURED,
        "did not measure quality.quantization.perplexity_ratio",
    ),
    (
        "quantization-for-latency",
        "no open-loop runs",
        lambda m: m.fits().objectives(**TPOT).unknown("latency.slo_share", "no open-loop run was made"),
        NOT_MEASURED,
        "No open-loop run was made.",
    ),
    ("speculative-ngram", "no copies", known({"latency.ngram_tokens_per_step": 1.02}), DOES_NOT_PAY, "free checking"),
    ("speculative-ngram", "not run", known({"latency.ngram_tokens_per_step": 2.4}), NOT_MEASURED, "did not measure"),
    (
        "speculative-ngram",
        "pays in full batches",
        drafts("ngram", FLAT, UP),
        RECOMMENDED,
        "up to 4 running requests, off above",
    ),
    (
        "speculative-ngram",
        "pays alone, not asked for",
        drafts("ngram", UP, DOWN),
        DOES_NOT_PAY,
        "1.80x [1.60..2.00], 6 pairs (decode steps predicted 1.70x): --objective latency would ask for it",
    ),
    ("speculative-ngram", "pays alone", drafts("ngram", UP, DOWN, "latency"), RECOMMENDED, "of full batches"),
    (
        "speculative-ngram",
        "pays in full batches, not asked for",
        drafts("ngram", FLAT, UP, "latency"),
        DOES_NOT_PAY,
        "--objective throughput would ask for it",
    ),
    ("speculative-ngram", "no gain", drafts("ngram", FLAT, FLAT), DOES_NOT_PAY, "do not pay for drafting"),
    ("speculative-ngram", "straddles", drafts("ngram", UP, OPEN), INCONCLUSIVE, "straddles 1.05x"),
    (
        "speculative-ngram",
        "no text",
        lambda m: m.fits().unknown("latency.ngram_tokens_per_step", "the trace has no output text"),
        NOT_MEASURED,
        "The trace has no output text.",
    ),
    ("speculative-draft", "met", known({"latency.slo_share": 0.5}, TPOT), NOT_NEEDED, "without a draft model"),
    (
        "speculative-draft",
        "met, but there is a draft that pays",
        lambda m: drafts("draft", UP, UP)(m).objectives(**TPOT).known("latency.slo_share", 0.5),
        RECOMMENDED,
        "2.00 tokens a step",
    ),
    (
        "speculative-draft",
        "hopeless",
        lambda m: drafts("draft", DOWN, None)(m).known("latency.draft_pays_up_to", 0, exact=True),
        DOES_NOT_PAY,
        "at no batch size",
    ),
    (
        "speculative-draft",
        "loses alone, may pay in batches",
        drafts("draft", DOWN, None),
        INCONCLUSIVE,
        "did not measure",
    ),
    ("speculative-draft", "loses", drafts("draft", DOWN, DOWN), DOES_NOT_PAY, "0.80x [0.75..0.85]"),
    (
        "speculative-draft",
        "none given",
        lambda m: m.fits().unknown("latency.draft_tokens_per_step", "no draft model was given"),
        NOT_MEASURED,
        "No draft model was given.",
    ),
    (
        "cuda-graphs",
        "launches take long",
        saturated("cuda_graphs", UP, {"latency.launch_share": 0.44}),
        RECOMMENDED,
        "44% of the time",
    ),
    ("cuda-graphs", "launches are hidden", saturated("cuda_graphs", FLAT, {}), DOES_NOT_PAY, "less than 1.05x"),
    (
        "cuda-graphs",
        "no card",
        lambda m: m.fits().unknown("cuda_graphs.saturated.throughput.gain", "there is no CUDA device"),
        NOT_MEASURED,
        "There is no CUDA device.",
    ),
    ("fused-attention", "small share", known({"latency.attention_share": 0.04}), NOT_NEEDED, "4.0% of a step"),
    ("fused-attention", "large share", known({"latency.attention_share": 0.3}), NOT_MEASURED, "did not measure"),
    (
        "fused-attention",
        "the kernel pays",
        saturated("fused_attention", UP, {"latency.attention_share": 0.01}),
        RECOMMENDED,
        "1.80x [1.60..2.00]",
    ),
    ("fused-attention", "no faster", saturated("fused_attention", FLAT, {}), DOES_NOT_PAY, "less than 1.05x"),
    (
        "gqa-models",
        "heads are shared",
        known(
            {
                "latency.kv_share_of_step_bytes": 0.5,
                "latency.kv_head_sharing": 4,
                "latency.mha_kv_bytes_per_token": 6144,
            }
        ),
        NOT_NEEDED,
        "would take 6.00 KiB, 4.00x what it takes now",
    ),
    ("gqa-models", "small share", known({"latency.kv_share_of_step_bytes": 0.01}), NOT_NEEDED, "1.0%"),
    (
        "gqa-models",
        "large share",
        known({"latency.kv_share_of_step_bytes": 0.5, "latency.kv_head_sharing": 1}),
        NOT_MEASURED,
        "every query head has KV of its own",
    ),
    # question 6
    ("disaggregation", "small scale", known({"disagg.replicas_needed": 0.3}), NOT_NEEDED, "Not needed at this scale"),
    (
        "disaggregation",
        "one replica within the model's error",
        lambda m: m.fits().known("disagg.replicas_needed", 0.95, (0.82, 1.08), basis=Basis.MODELLED),
        INCONCLUSIVE,
        "straddles 1.00",
    ),
    (
        "disaggregation",
        "chunks hold the objective",
        known({"disagg.replicas_needed": 3, "disagg.itl_slo_margin": 2}, TPOT),
        DOES_NOT_PAY,
        "Chunked prefill already holds",
    ),
    (
        "disaggregation",
        "chunks do not hold it",
        known({"disagg.replicas_needed": 3, "disagg.itl_slo_margin": 0.5}, TPOT),
        INCONCLUSIVE,
        "comparing fleets, together against apart, is not yet supported",
    ),
    ("disaggregation", "no objective", known({"disagg.replicas_needed": 3}), INCONCLUSIVE, "not yet supported"),
    (
        "disaggregation",
        "load unknown",
        lambda m: m.fits().unknown("disagg.replicas_needed", "the trace has no arrival times"),
        NOT_MEASURED,
        "The trace has no arrival times.",
    ),
    ("chunked-prefill", "shortens the gap", chunked(UP), RECOMMENDED, "1.80x"),
    ("chunked-prefill", "nothing asks for it", chunked(UP, DOWN, wanted=False), NOT_NEEDED, "TTFT 0.80x [0.75..0.85]"),
    ("chunked-prefill", "does not", chunked(FLAT), DOES_NOT_PAY, "less than 1.05x"),
    ("chunked-prefill", "delays the prompt", chunked(UP, DOWN), RECOMMENDED, "prompt's own TTFT: 0.80x [0.75..0.85]"),
    (
        "chunked-prefill",
        "delays the prompt, latency asked",
        chunked(UP, DOWN, "latency"),
        DOES_NOT_PAY,
        "delays the first token of the long prompt itself",
    ),
    ("chunked-prefill", "delay not shown", chunked(UP, OPEN, "latency"), RECOMMENDED, "1.80x"),
    (
        "chunked-prefill",
        "no long prompts",
        lambda m: m.fits().unknown("disagg.itl_stall_chunked", "no prompt is longer than a step"),
        NOT_MEASURED,
        "No prompt is longer than a step.",
    ),
    (
        "chunked-prefill",
        "dropped by the planner",
        lambda m: (
            m.fits()
            .unknown("disagg.itl_stall_chunked", "not run")
            .dropped("chunked_prefill.interference", "not within the budget: about 40 s more")
        ),
        NOT_MEASURED,
        "Not within the budget: about 40 s more.",
    ),
    ("distillation", "gaps within their objective", known({"latency.slo_share": 0.6}, ITL), NOT_NEEDED, "60%"),
    ("quantization-for-latency", "gaps within", known({"latency.slo_share": 0.6}, ITL), NOT_NEEDED, "not the limit"),
    ("chunked-prefill", "straddles", chunked(OPEN), INCONCLUSIVE, "straddles 1.05x"),
]


@pytest.mark.parametrize(
    ("rule", "setup", "conclusion", "text"),
    [
        pytest.param(rule, setup, conclusion, text, id=f"{rule}: {name}")
        for rule, name, setup, conclusion, text in CASES
    ],
)
def test_the_rule_concludes(make: Any, judge: Any, rule: str, setup: Setup, conclusion: Conclusion, text: str) -> None:
    finding = judge.finding(setup(make), rule)
    assert finding.conclusion is conclusion, finding.text
    assert text in finding.text


def test_the_table_reaches_every_conclusion_that_a_rule_can_draw(pack: Any) -> None:
    drawn = {(rule, conclusion) for rule, _, _, conclusion, _ in CASES}
    can = {(loaded.rule.id, case.conclude) for loaded in pack.rules for case in loaded.rule.cases}
    assert can - drawn == set()

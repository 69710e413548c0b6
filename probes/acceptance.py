"""Acceptance of drafts on the trace's recorded outputs, or on the model's own where it records none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch

from inferdoc.engine.request import Request
from inferdoc.engine.spec_decode.replay import Places, Replay, model_places, ngram_places
from inferdoc.probes.context import LoadedDraft, ProbeContext
from inferdoc.probes.scoring import Span, teacher_forced_logits
from inferdoc.probes.sweep import DRAFTS

NGRAM = (2, 4)
"""Shortest and longest suffix that prompt lookup looks up."""
MOST_TOKENS = 200_000
"""Of the requests that are replayed, prompts included."""
_SHARE = 0.03
"""Of the time budget that a draft model may read, or the model write, for this."""
_GENERATED = 8
"""Requests whose outputs are generated where the trace records none."""


@dataclass(frozen=True)
class Outputs:
    """Prompts with known outputs of at least two tokens."""

    pairs: list[tuple[Sequence[int], Sequence[int]]]
    note: str
    reason: str | None = None
    sampled: bool = False
    """There are others, which are not replayed."""


def draft_lengths(context: ProbeContext) -> tuple[int, ...]:
    """Numbers of drafted tokens that are worked out: those whose check was timed, and the one that is run."""
    return tuple(sorted({*DRAFTS, context.settings.num_speculative_tokens}))


def replay_outputs(context: ProbeContext) -> None:
    """Set the context's `replays`. A draft model reads the outputs once; prompt lookup reads nothing."""
    outputs = known_outputs(context)
    lengths = draft_lengths(context)
    if outputs.reason is not None:
        context.replays = {method: Replay(reason=outputs.reason) for method in ("ngram", "draft")}
    else:
        began = time.perf_counter()
        places = [ngram_places(*pair, shortest=NGRAM[0], longest=NGRAM[1], most=max(lengths)) for pair in outputs.pairs]
        lookups = sum(len(output) - 1 for _, output in outputs.pairs)
        context.replays["ngram"] = Replay.of(
            places,
            lengths,
            sampled=outputs.sampled,
            note=f"n-grams of {NGRAM[0]} to {NGRAM[1]}, {outputs.note}",
            propose_s=(time.perf_counter() - began) / lookups,
        )
        if context.draft is not None:
            context.progress("reading the outputs with the draft model")
            read = [_model_places(context, context.draft, *pair) for pair in outputs.pairs]
            context.replays["draft"] = Replay.of(read, lengths, sampled=outputs.sampled, note=outputs.note)
    if context.draft is None:
        context.replays["draft"] = Replay(reason="no draft model was given (--draft-model)")


def known_outputs(context: ProbeContext) -> Outputs:
    """What is replayed: requests of the whole trace at equal distances, as many as the limits allow."""
    if not context.real_outputs:
        return Outputs([], "", "outputs are not real (no trained weights, or no text)")
    rows = context.trace.rows
    recorded = rows.filter(pl.col("output_ids").list.len() > 1)
    if not len(recorded):
        return _generated(context)
    tokens = recorded["prompt_ids"].list.len() + recorded["output_ids"].list.len()
    chosen = recorded[_spread(len(recorded), int(_most_tokens(context) // tokens.mean()))]  # type: ignore[operator]
    pairs = list(zip(chosen["prompt_ids"].to_list(), chosen["output_ids"].to_list(), strict=True))
    note = f"replayed on the recorded outputs of {len(chosen):,} of {len(rows):,} requests"
    return Outputs(pairs, note, sampled=len(chosen) < len(recorded))


def repeated_4grams(outputs: Sequence[Sequence[int]]) -> float | None:
    """Share of the 4-grams that occurred before in the same output; ``None`` where all are shorter."""
    grams = [[tuple(output[i : i + 4]) for i in range(len(output) - 3)] for output in outputs]
    total = sum(map(len, grams))
    return 1 - sum(len(set(each)) for each in grams) / total if total else None


def cut_at_end(output: Sequence[int], end_tokens: Sequence[int]) -> list[int]:
    """Up to the first end token, that included: what a model says after it is not text."""
    stop = next((i + 1 for i, token in enumerate(output) if token in end_tokens), len(output))
    return list(output[:stop])


def _generated(context: ProbeContext) -> Outputs:
    """The model's own greedy outputs up to their end tokens."""
    rows = context.trace.rows.filter(pl.col("prompt_ids").is_not_null())
    chosen = rows[_spread(len(rows), _GENERATED)]
    step_s = context.sweep.decode[-1].median
    most = int(np.clip(_SHARE * context.settings.budget_s / step_s, 16, 128))
    requests = [
        Request(i, prompt, max(1, min(most, length, context.base.max_model_len - len(prompt))))
        for i, (prompt, length) in enumerate(
            zip(chosen["prompt_ids"].to_list(), chosen["output_tokens"].to_list(), strict=True)
        )
    ]
    context.progress("generating outputs to draft for")
    context.engine(context.base).run(requests)
    outputs = [cut_at_end(request.output, context.loaded.eos_token_ids) for request in requests]
    pairs: list[tuple[Sequence[int], Sequence[int]]] = [
        (r.prompt, output) for r, output in zip(requests, outputs, strict=True) if len(output) > 1
    ]
    repeated = repeated_4grams(outputs)
    share = "" if repeated is None else f"; {repeated:.0%} of their 4-grams repeat"
    note = f"replayed on outputs generated for {len(pairs)} of {len(rows):,} requests, up to their end tokens{share}"
    return Outputs(pairs, note, None if pairs else "the model ends its outputs at once", sampled=len(pairs) < len(rows))


def _most_tokens(context: ProbeContext) -> float:
    """As many as the draft model reads in its share of the budget."""
    if context.draft is None:
        return MOST_TOKENS
    times, chunk = context.draft.times, context.base.max_num_batched_tokens
    per_token = times.token + times.base / chunk
    return min(MOST_TOKENS, _SHARE * context.settings.budget_s / per_token) if per_token else MOST_TOKENS


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` indices at equal distances, at least one."""
    return [int(i) for i in np.unique(np.linspace(0, count - 1, max(1, min(count, most))).astype(int))]


@torch.inference_mode()
def _model_places(context: ProbeContext, draft: LoadedDraft, prompt: Sequence[int], output: Sequence[int]) -> Places:
    """One pass of the draft model over the prompt and its output, each token given those before it."""
    config = replace(
        context.base, enforce_eager=True, compile=False, num_kv_blocks=draft.runner.kv_tokens // context.base.block_size
    )
    draft.runner.configure(config)
    tokens = [*prompt, *output]
    span = Span(0, tokens, len(prompt) + 1, len(tokens))
    chosen: list[int] = []
    for logits in teacher_forced_logits(draft.runner, config, span):
        chosen += logits[:, : context.spec.vocab_size].argmax(-1).tolist()
    return model_places([guess == token for guess, token in zip(chosen, output[1:], strict=True)])

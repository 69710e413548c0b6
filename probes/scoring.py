"""Two configurations of the engine on the same text, each token given those before it: sums of what they differ in.

Both read the text through the paged engine, in chunks. One arm's logits of a group of scored tokens are held while the
other computes its own, and the two are reduced to sums on the device:

    held      | text 0 | text 1 | text 2 |      all logits of the group
    other     | text 0 | text 1 | text 2 |      a chunk at a time, compared and forgotten
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.probes.context import Floats, ProbeContext
from inferdoc.probes.texts import Document

_COMPARED_AT_ONCE = 1 << 22
"""Logits, in float64."""


@dataclass(frozen=True)
class Span:
    """Scored tokens [first, end) of a text. Those before them are read again for each span."""

    document: int
    tokens: Sequence[int]
    first: int
    end: int

    @property
    def scored(self) -> int:
        return self.end - self.first


@dataclass(frozen=True)
class Losses:
    """Sums over the scored tokens of each document, in the order of the documents."""

    base: Floats
    """Negative log-likelihoods in nats; so is `variant`."""
    variant: Floats
    kl: Floats
    """KL(base || variant) in nats."""
    disagreements: Floats
    """Tokens whose most likely successor is not the same."""
    tokens: Floats


def spans(documents: Sequence[Document], longest: int, held: int, notes: list[str]) -> list[Span]:
    """What is scored of documents that are cut at `longest` tokens, in parts of at most `held` tokens."""
    kept = [document for document in documents if document.scored_from < min(len(document.tokens), longest)]
    parts = []
    for index, document in enumerate(kept):
        end = min(len(document.tokens), longest)
        starts = range(document.scored_from, end, held)
        parts += [Span(index, document.tokens, start, min(end, start + held)) for start in starts]
    outputs = sum(document.scored_from > 1 for document in kept)
    for count, note in (
        (outputs, "scored on the recorded output alone, given its prompt"),
        (len(kept) - outputs, "without a recorded output, scored whole"),
        (sum(len(document.tokens) > longest for document in kept), f"cut after {longest:,} tokens"),
        (len(documents) - len(kept), f"left out: nothing to score within {longest:,} tokens"),
    ):
        if count:
            notes.append(f"{count} of {len(documents)} texts {note}")
    return parts


@torch.inference_mode()
def score(
    context: ProbeContext,
    base: EngineConfig,
    variant: EngineConfig,
    parts: Sequence[Span],
    held: int,
    notes: list[str],
) -> Losses:
    """Run both configurations over the spans, as far as the budget goes.

    Args:
        parts: at least one, in the order of their documents.
        held: scored tokens whose logits are kept at once.
    """
    runner = context.runner
    # Neither graphs nor compilation change the numbers, and both take long to set up for text of any length.
    arms = tuple(replace(arm, enforce_eager=True, compile=False) for arm in (base, variant))
    documents = 1 + parts[-1].document
    sums = torch.zeros(documents, 4, dtype=torch.float64, device=runner.device)
    tokens = np.zeros(documents)
    first, other = 0, 1
    runner.configure(arms[first])
    for group in _groups(parts, held):
        if context.left_s <= 0:
            notes.append(f"its time ended after {np.count_nonzero(tokens)} of {documents} texts")
            break
        context.progress(f"quality: text {group[0].document + 1} of {documents}")
        kept = [torch.cat(list(teacher_forced_logits(runner, arms[first], span))) for span in group]
        runner.configure(arms[other])
        for span, logits in zip(group, kept, strict=True):
            targets = torch.tensor(span.tokens[span.first : span.end], device=runner.device)
            done = 0
            for chunk in teacher_forced_logits(runner, arms[other], span):
                part = slice(done, done + len(chunk))
                pair = (logits[part], chunk) if first == 0 else (chunk, logits[part])
                sums[span.document] += _compare(*pair, targets[part])
                done = part.stop
            tokens[span.document] += span.scored
        first, other = other, first  # the next group begins with the arm that is set up
    scored = tokens > 0
    nll, variant_nll, kl, disagreements = sums.cpu().numpy()[scored].T
    return Losses(nll, variant_nll, np.maximum(kl, 0.0), disagreements, tokens[scored])  # below 0 is rounding


@torch.inference_mode()
def losses_of(runner: ModelRunner, config: EngineConfig, parts: Sequence[Span]) -> Floats:
    """Negative log-likelihood of each span's scored tokens, in nats, under one model; it stays configured so."""
    runner.configure(replace(config, enforce_eager=True, compile=False))
    sums = np.zeros(len(parts))
    for index, span in enumerate(parts):
        scored = torch.cat(list(teacher_forced_logits(runner, config, span))).double()
        targets = torch.tensor(span.tokens[span.first : span.end], device=runner.device)
        sums[index] = float(torch.nn.functional.cross_entropy(scored, targets, reduction="sum"))
    return sums


def _groups(parts: Sequence[Span], held: int) -> Iterator[list[Span]]:
    """Consecutive spans of together at most `held` scored tokens."""
    group: list[Span] = []
    scored = 0
    for span in parts:
        if group and scored + span.scored > held:
            yield group
            group, scored = [], 0
        group.append(span)
        scored += span.scored
    yield group


def teacher_forced_logits(runner: ModelRunner, config: EngineConfig, span: Span) -> Iterator[Tensor]:
    """Logits [n, vocabulary] of the scored tokens' predecessors, chunk by chunk; n is 0 in those before the first."""
    request = Request(0, span.tokens[: span.end - 1], output_length=1)
    request.block_ids = list(range(-(-request.prompt_length // config.block_size)))
    while request.to_compute:
        start = request.num_computed
        row = Row(request, min(request.to_compute, config.max_num_batched_tokens), samples=True)
        at = np.arange(max(0, span.first - 1 - start), row.num_tokens)
        yield runner.logits(Batch([row], config.block_size), at)
        request.num_computed += row.num_tokens


def _compare(base: Tensor, variant: Tensor, targets: Tensor) -> Tensor:
    """Sums over the rows: both losses of the target tokens, KL(base || variant), different most likely tokens."""
    sums = torch.zeros(4, dtype=torch.float64, device=base.device)
    rows = max(1, _COMPARED_AT_ONCE // base.shape[1])
    for start in range(0, len(targets), rows):
        b, v, t = (tensor[start : start + rows] for tensor in (base, variant, targets))
        p, q = (torch.log_softmax(logits.double(), dim=-1) for logits in (b, v))
        # A token that the base rules out adds nothing, whatever the variant makes of it.
        kl = torch.where(p == -math.inf, 0.0, p.exp() * (p - q)).sum()
        losses = [-log.gather(1, t[:, None]).sum() for log in (p, q)]
        sums += torch.stack([*losses, kl, (b.argmax(-1) != v.argmax(-1)).sum()])
    return sums

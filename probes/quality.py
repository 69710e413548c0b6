"""What a technique costs in quality, on the user's own text: perplexity, KL divergence and top-1 agreement.

The unit is the document, not the token: tokens of one text depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inferdoc.devices import asked_bytes, describe, is_out_of_memory, release
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.quantize import quantized_by
from inferdoc.errors import InputError, MeasurementError
from inferdoc.evidence import Basis, Direction, QualityResult, Quantity
from inferdoc.probes.context import Collector, Floats, ProbeContext
from inferdoc.probes.scoring import Losses, Span, score, spans
from inferdoc.probes.texts import Document
from inferdoc.statistics import MIN_CLUSTERS, RATIO_METHOD, cluster_ratio_interval, share_of_nothing_seen

MIN_TOKENS = 381
"""Scored tokens below which no figure is given: ceil(1.96**2 * 0.99 * 0.01 / 0.01**2). With fewer, the 95% interval of
a top-1 agreement of 99% is wider than one point either way, even were tokens independent; and 99% of the reference is
what counts as equal quality (MLPerf Inference)."""
_HELD_BYTES = 1 << 28
"""Of one arm's logits, in float32."""
_LARGEST_LOSS = 700.0
"""Nats a token; beyond it exp overflows. Guessing among a million tokens costs 14."""


def measure_quality(
    context: ProbeContext,
    base: EngineConfig,
    variant: EngineConfig,
    technique: str,
    documents: Sequence[Document],
    *,
    held_tokens: int | None = None,
) -> QualityResult:
    """Compare two configurations on `documents`, and record what the second loses.

    What goes wrong in an arm becomes the result's `reason`. What the pool held is lost.

    Args:
        held_tokens: scored tokens whose logits are held at once; by default as many as 256 MiB take.
    """
    spec = context.spec
    notes: list[str] = []
    held = held_tokens or max(1, _HELD_BYTES // (4 * spec.vocab_size))
    parts = spans(documents, _longest(context, base, variant), held, notes)
    losses, reason = None, _why_not(context, parts)
    if reason is None:
        losses, reason = _try(context, base, variant, parts, held, notes)
    if losses and base.difference(variant) and not losses.kl.any():
        notes.append("the variant computed the same as the base in every token")
    by = spec.quantization or quantized_by(context.loaded.model)
    quantized = f", quantized as {by}" if by else ""
    if quantized:
        notes.append(f"understated: the base is {spec.name}{quantized}, not the model that it was made from")
    ratio, kl, top1 = _record(context.found, technique, losses, reason)
    result = QualityResult(
        technique=technique,
        base=f"{spec.name} in {context.loaded.dtype}{quantized}",
        variant=", ".join(f"{n}: {getattr(base, n)} -> {getattr(variant, n)}" for n in base.difference(variant)),
        text=documents[0].source if documents else "the trace",
        documents=len(losses.tokens) if losses else 0,
        tokens=int(losses.tokens.sum()) if losses else 0,
        base_perplexity=_perplexity(losses.base, losses.tokens) if losses else None,
        variant_perplexity=_perplexity(losses.variant, losses.tokens) if losses else None,
        perplexity_ratio=ratio,
        kl=kl,
        top1=top1,
        understated=bool(quantized),
        reason=reason,
        notes=notes,
    )
    context.found.quality[technique] = result
    return result


def _longest(context: ProbeContext, *configs: EngineConfig) -> int:
    """Tokens of the longest document that both arms can hold."""
    return min(context.runner.kv_tokens, *(min(config.max_model_len, config.kv_tokens) for config in configs))


def _why_not(context: ProbeContext, parts: Sequence[Span]) -> str | None:
    if not context.loaded.trained:
        return "the weights are random: quality counts with trained ones only"
    if not parts and context.loaded.tokenizer is None:
        return "the model has no tokenizer, so no text can be read"
    return _too_few(sum(span.scored for span in parts))


def _too_few(tokens: int) -> str | None:
    if tokens >= MIN_TOKENS:
        return None
    return f"{tokens} tokens, needs {MIN_TOKENS}: with fewer, a top-1 agreement of 99% is not known to within one point"


def _try(
    context: ProbeContext,
    base: EngineConfig,
    variant: EngineConfig,
    parts: Sequence[Span],
    held: int,
    notes: list[str],
) -> tuple[Losses | None, str | None]:
    """The losses, or why there are none."""
    try:
        losses = score(context, base, variant, parts, held, notes)
        reason = _too_few(int(losses.tokens.sum())) or _why_broken(losses)
        if reason and losses.tokens.size < 1 + parts[-1].document:
            reason = f"{notes[-1]}: {reason}"  # the time ended, as the last note says
        return (None, reason) if reason else (losses, None)
    except (MeasurementError, InputError) as error:
        return None, str(error)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        asked = asked_bytes(error)
    release()  # the error and the frames that it held are gone by now
    return None, describe(asked, context.device)


def _why_broken(losses: Losses) -> str | None:
    for arm, total in (("base", losses.base), ("variant", losses.variant)):
        mean = total.sum() / losses.tokens.sum()
        if not mean < _LARGEST_LOSS:  # nor is NaN
            return f"the {arm}'s logits are broken: its mean loss is {mean:.3g} nats a token"
    if not math.isfinite(losses.kl.sum()):
        return "the variant rules out tokens that the base does not, so the KL divergence is infinite"
    return None


def _perplexity(losses: Floats, tokens: Floats) -> float:
    return math.exp(losses.sum() / tokens.sum())


@dataclass(frozen=True)
class _Figure:
    value: float
    interval: tuple[float, float] | None
    method: str = RATIO_METHOD


def _figures(losses: Losses) -> tuple[_Figure, _Figure, _Figure]:
    """Perplexity ratio, KL divergence and top-1 agreement, with intervals by document."""
    documents, tokens = len(losses.tokens), losses.tokens
    added = losses.variant - losses.base
    log = cluster_ratio_interval(added, tokens)
    ratio = _Figure(_perplexity(added, tokens), log and (math.exp(log[0]), math.exp(log[1])))
    kl = _Figure(float(losses.kl.sum() / tokens.sum()), cluster_ratio_interval(losses.kl, tokens, positive=True))
    differing = cluster_ratio_interval(losses.disagreements, tokens, positive=True)
    if differing and losses.kl.any() and not losses.disagreements.any():
        # The arms do differ: that no token showed it does not mean that none ever will.
        bound = (1 - share_of_nothing_seen(documents), 1.0)
        return ratio, kl, _Figure(1.0, bound, f"exact bound for no difference in {documents} documents")
    share = float(losses.disagreements.sum() / tokens.sum())
    return ratio, kl, _Figure(1 - share, differing and (1 - min(1.0, differing[1]), 1 - differing[0]))


def _record(
    found: Collector, technique: str, losses: Losses | None, reason: str | None
) -> tuple[Quantity, Quantity, Quantity]:
    """Perplexity ratio, KL divergence and top-1 agreement as quantities."""
    figures = _figures(losses) if losses else (None, None, None)
    documents = len(losses.tokens) if losses else None
    few = documents is not None and documents < MIN_CLUSTERS

    def add(name: str, label: str, unit: str, direction: Direction, figure: _Figure | None) -> Quantity:
        id = f"quality.{technique}.{name}"
        found.add(
            id,
            f"{label}, {technique}",
            figure.value if figure else None,
            unit,
            Basis.MEASURED,
            interval=figure.interval if figure else None,
            method=figure.method if figure else RATIO_METHOD,
            n=documents,
            direction=direction,
            reason=reason,
            note=f"no interval: {documents} documents, needs {MIN_CLUSTERS}" if few else None,
        )
        return found.quantities[id]

    return (
        add("perplexity_ratio", "perplexity over the base's", "x", "lower", figures[0]),
        add("kl", "KL divergence from the base a token", "nats", "lower", figures[1]),
        add("top1", "tokens whose most likely successor is the base's", "share", "higher", figures[2]),
    )

"""What each compressed variant costs in quality on the user's text, within a share of the budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferdoc.errors import MeasurementError
from inferdoc.evidence import QualityResult
from inferdoc.probes.calibration import observe_calibration
from inferdoc.probes.compression import BITS, SPARSE, chosen_scheme
from inferdoc.probes.context import ProbeContext
from inferdoc.probes.quality import measure_quality
from inferdoc.probes.texts import Document, documents_of

SHARE, ASKED_SHARE = 0.08, 0.25
"""Of the budget, for the quality of all variants together: in a whole diagnosis, and where it is asked for alone."""
_OTHERS_DOCUMENTS = 24
"""For the variants that no rule asks for."""
_HELD_TOKENS = 256
"""Scored at once in either arm, so that the time is looked at often."""
_CALIBRATION_TOKENS = 512


@dataclass(frozen=True)
class Variant:
    """`technique`: what the quality is recorded under. `rules`: rules ask for it, so more text is scored."""

    technique: str
    changes: dict[str, Any]
    rules: bool


def variants(context: ProbeContext) -> list[Variant]:
    """What of the compressed variants could be set up, those that rules ask for first."""
    chosen = chosen_scheme(context) or next((scheme for scheme in BITS if _runs(context, scheme)), None)
    found = [Variant("quantization", {"weights": chosen}, rules=True)] if chosen else []
    found.append(Variant("kv_quantization", {"kv_cache_dtype": "fp8"}, rules=True))
    if _runs(context, SPARSE):
        found.append(Variant("sparsity", {"weights": SPARSE}, rules=True))
    others = [scheme for scheme in BITS if scheme != chosen and _runs(context, scheme)]
    return found + [Variant(scheme, {"weights": scheme}, rules=False) for scheme in others]


def measure_losses(context: ProbeContext, share: float = SHARE) -> None:
    """Record the quality of every variant; ends with the base configuration.

    Each may take half of the time that is left, so the first ones are known best; what it does not use is the next's.
    """
    documents, warning = _calibrate(context, documents_of(context))
    ends = time.perf_counter() + share * context.settings.budget_s
    for variant in variants(context):
        seconds = max(0.0, (ends - time.perf_counter()) / 2)
        wanted = documents if variant.rules else documents[:_OTHERS_DOCUMENTS]
        chosen = affordable(context, wanted, seconds)
        result = measure_quality(
            replace(context, deadline=min(context.deadline, time.perf_counter() + seconds)),
            context.base,
            context.config(**variant.changes),
            variant.technique,
            chosen,
            held_tokens=_HELD_TOKENS,
        )
        result.notes.append(f"{share:.0%} of the budget is for quality; this one had up to {seconds:.0f} s")
        if warning and variant.technique == "kv_quantization":
            result.notes.append(warning)
        if result.reason and context.loaded.trained and len(chosen) < len(wanted):
            _say_more_time(result, f"{len(chosen)} of {len(wanted)} texts go into the {seconds:.0f} s left for it")
        if result.perplexity_ratio.value is not None and result.perplexity_ratio.value < 1:
            result.notes.append("a perplexity below the base's is no quality gained: KL and top-1 show what changed")
    context.runner.configure(context.base)


def affordable(context: ProbeContext, documents: Sequence[Document], seconds: float) -> Sequence[Document]:
    """The first documents, as many as two arms read in time at the fitted cost of a prompt's token."""
    tokens = np.cumsum([len(document.tokens) for document in documents])
    both_arms = 2 * context.sweep.times.token * tokens
    return documents[: int(np.searchsorted(both_arms, seconds, side="right"))]


def _say_more_time(result: QualityResult, why: str) -> None:
    """Add to the reason what a longer run would do."""
    result.reason = f"{result.reason}; {why}, a longer --budget reads more"
    for figure in (result.perplexity_ratio, result.kl, result.top1):
        figure.reason = result.reason


def _calibrate(context: ProbeContext, documents: Sequence[Document]) -> tuple[Sequence[Document], str | None]:
    """Set the scales of e4m3 K/V on the last document, which is then left out of what is scored.

    Returns:
        What is scored, and a warning where the calibration text is not like the trace.
    """
    if len(documents) < 2:
        return documents, None
    *scored, last = documents
    text = list(last.tokens[: min(_CALIBRATION_TOKENS, context.base.max_model_len)])
    try:
        context.runner.calibrate_kv(text)
    except MeasurementError as error:
        return scored, str(error)
    of_trace = [document.tokens for document in scored] if last.source == "the trace" else []
    return scored, observe_calibration(context.found, of_trace, [text], seed=context.settings.seed)


def _runs(context: ProbeContext, scheme: str) -> bool:
    found = context.found.quantities.get(f"fit.fused_{scheme}")
    return found is not None and found.value is not None

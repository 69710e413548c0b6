"""Is the calibration text like the trace's? Scales that were set on other text clip what the user sends.

Token frequencies are compared by their Jensen-Shannon divergence (Lin 1991, doi 10.1109/18.61115), in bits: 0 for the
same frequencies, 1 for no token in common. Samples of one source differ too, so the measure is how far two random
halves of the trace are from each other, at the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferdoc.evidence import Basis
from inferdoc.probes.context import Collector, Floats
from inferdoc.probes.quality import MIN_TOKENS
from inferdoc.statistics import MIN_CLUSTERS

_SPLITS = 100
_NOISE_QUANTILE = 0.95
_SEED = 5
MIN_DOCUMENTS = 2 * MIN_CLUSTERS
NOISE_SOURCE = "the 95th percentile of the divergence between two random halves of the trace's own documents"

Tokens = Sequence[int]
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Divergence:
    """In bits. calibration: of the trace from the calibration text, the median over random halves of the trace.
    noise: `NOISE_SOURCE`. tokens: in each of the samples compared.
    """

    calibration: float
    noise: float
    tokens: int

    @property
    def excess(self) -> float:
        """Above 1 the calibration text is not representative."""
        return self.calibration / self.noise


def calibration_divergence(trace: Sequence[Tokens], calibration: Sequence[Tokens], *, seed: int) -> Divergence | str:
    """How far the trace's documents are from the calibration's, both as token ids; or why that cannot be told."""
    if not trace:
        return "the trace has no text to compare the calibration text with"
    if len(trace) < MIN_DOCUMENTS:
        return f"{len(trace)} documents, needs {MIN_DOCUMENTS}: two halves of {MIN_CLUSTERS}"
    lengths = [len(text) for text in trace]
    # Whole documents go to either half, so two of them may be left over.
    size = min(sum(lengths) // 2 - max(lengths), sum(len(text) for text in calibration))
    if size < MIN_TOKENS:
        return f"{max(0, size)} tokens to compare, needs {MIN_TOKENS}"
    vocabulary = np.unique(np.concatenate([*trace, *calibration]))
    own, other = ([np.searchsorted(vocabulary, text) for text in texts] for texts in (trace, calibration))
    rng = np.random.default_rng([seed, _SEED])
    to_calibration, to_itself = [], []
    for _ in range(_SPLITS):
        half, rest = _samples([own[i] for i in rng.permutation(len(own))], 2, size, len(vocabulary))
        (foreign,) = _samples([other[i] for i in rng.permutation(len(other))], 1, size, len(vocabulary))
        to_itself.append(_jensen_shannon(half, rest))
        to_calibration.append(_jensen_shannon(half, foreign))
    return Divergence(float(np.median(to_calibration)), float(np.quantile(to_itself, _NOISE_QUANTILE)), size)


def _samples(texts: Sequence[_Ints], count: int, size: int, vocabulary: int) -> list[Floats]:
    """Token frequencies of `count` samples of `size` tokens; no text is in two of them."""
    samples, used = [], 0
    for _ in range(count):
        first, length = used, 0
        while length < size:
            length += len(texts[used])
            used += 1
        sample = np.concatenate(texts[first:used])[:size]
        samples.append(np.bincount(sample, minlength=vocabulary) / size)
    return samples


def _jensen_shannon(p: Floats, q: Floats) -> float:
    """Of two distributions, in bits."""
    middle = (p + q) / 2
    parts = [part[part > 0] * np.log2(part[part > 0] / middle[part > 0]) for part in (p, q)]
    return float(sum(part.sum() for part in parts) / 2)


def observe_calibration(
    found: Collector, trace: Sequence[Tokens], calibration: Sequence[Tokens], *, seed: int
) -> str | None:
    """Record the divergence, and how many times the noise it is.

    Returns:
        A warning where the calibration text is not representative of the trace.
    """
    result = calibration_divergence(trace, calibration, seed=seed)
    known, reason = (None, result) if isinstance(result, str) else (result, None)
    note = f"threshold {known.noise:.3g} bits: {NOISE_SOURCE}; {known.tokens:,} tokens a sample" if known else None

    def add(name: str, label: str, value: float | None, unit: str) -> None:
        id = f"quality.calibration_{name}"
        found.add(id, label, value, unit, Basis.TRACE, n=len(trace), direction="lower", reason=reason, note=note)

    what = "Jensen-Shannon divergence of the trace's token frequencies from the calibration text's"
    add("divergence", what, known.calibration if known else None, "bits")
    add("excess", f"{what}, over that of two halves of the trace", known.excess if known else None, "x")
    if known is None or known.excess <= 1:
        return None
    return (
        f"the calibration text is not representative: its tokens are {known.excess:.1f} times as far from the trace's "
        "as two halves of the trace are from each other, and scales set on it may clip what users send"
    )

"""How long prompts and outputs are: exact distributions, tails, and whether long prompts have long outputs.

A distribution is kept as a count for each distinct length, so it is exact and small however many requests there are.
Spreads are of the requests themselves (divided by n), as everywhere in a diagnosis. No power law is fitted to the tail:
lengths end at a context limit, so the shares of tokens in the longest requests say what an index could not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from pydantic import Field

from inferdoc.evidence import Contract
from inferdoc.statistics import samples_needed
from inferdoc.traces.counts import DENSE, ROWS_AT_ONCE, Counts, Floats, Ints, count_column
from inferdoc.traces.trace import Trace

PERCENTILES = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
HISTOGRAM_BINS = 24
PAIRS_FOR_CORRELATION = 10


class Percentile(Contract):
    percent: float
    tokens: float | None
    """Linear interpolation between order statistics, as numpy's default."""
    reason: str | None = None


class Histogram(Contract):
    """Requests by length, in bins that grow geometrically: bin i holds lengths from ``from_tokens[i]`` up to the next.

    The last bin ends at the longest length.
    """

    from_tokens: list[int]
    requests: list[int]


class LengthDistribution(Contract):
    """Lengths in tokens over the `n` requests that have one."""

    n: int
    missing: int
    """Requests without this length."""
    total_tokens: int | None = None
    mean_tokens: float | None = None
    sd_tokens: float | None = None
    cv: float | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    percentiles: list[Percentile] = Field(default_factory=list)
    histogram: Histogram | None = None
    longest_1pct_token_share: float | None = None
    """Tokens of the longest 1% of requests (rounded up to whole requests) over all tokens."""
    longest_10pct_token_share: float | None = None
    reason: str | None = None
    """Why a value above is not known."""

    def percentile(self, percent: float) -> float | None:
        """The value of one of `PERCENTILES`; ``None`` where there are too few requests for it."""
        return next((entry.tokens for entry in self.percentiles if entry.percent == percent), None)


class LengthAnalysis(Contract):
    input: LengthDistribution
    output: LengthDistribution
    total: LengthDistribution
    """Input and output of the requests that have both."""
    correlation_log: float | None = None
    """Pearson's, between the logarithms of input and output."""
    correlation_rank: float | None = None
    """Spearman's, with the mean rank for ties."""
    correlation_reason: str | None = None
    input_output_ratio: float | None = None
    """Ratio of the sums, over the requests that have both."""


def analyse_lengths(trace: Trace) -> LengthAnalysis:
    """Distributions of the lengths of `trace`, exact, in one pass over its rows and one for the correlation."""
    rows = trace.rows
    prompts, outputs = count_column(rows, "input_tokens"), count_column(rows, "output_tokens")
    paired_all = len(rows) == prompts.n == outputs.n
    both = (
        (prompts, outputs) if paired_all else tuple(Counts.of(pair[side] for pair in _pairs(rows)) for side in (0, 1))
    )
    log, rank, reason = _correlations(rows, *both)
    return LengthAnalysis(
        input=describe(prompts, len(rows), "input"),
        output=describe(outputs, len(rows), "output"),
        total=describe(Counts.of(x + y for x, y in _pairs(rows)), len(rows), "input and output"),
        correlation_log=log,
        correlation_rank=rank,
        correlation_reason=reason,
        input_output_ratio=both[0].total / both[1].total if both[1].n and both[1].total else None,
    )


def describe(counts: Counts, requests: int, what: str) -> LengthDistribution:
    """The distribution of the lengths `what` of `requests` requests."""
    n = counts.n
    if not n:
        return LengthDistribution(n=0, missing=requests, reason=f"no request has {what} lengths (text not yet counted)")
    sd, total = counts.variance**0.5, counts.total
    few = " and ".join(f"the longest {share}%" for share, needed in ((1, 100), (10, 10)) if n < needed)
    reasons = [f"{n} requests are too few for {few}"] if few else []
    if not total:
        reasons.append("all lengths are 0")
    return LengthDistribution(
        n=n,
        missing=requests - n,
        total_tokens=total,
        mean_tokens=counts.mean,
        sd_tokens=sd,
        cv=sd / counts.mean if total else None,
        min_tokens=int(counts.values[0]),
        max_tokens=int(counts.values[-1]),
        percentiles=[_percentile(counts, percent, n) for percent in PERCENTILES],
        histogram=_histogram(counts),
        longest_1pct_token_share=counts.longest_share(0.01) if n >= 100 and total else None,
        longest_10pct_token_share=counts.longest_share(0.1) if n >= 10 and total else None,
        reason="; ".join(reasons) or None,
    )


def _histogram(counts: Counts) -> Histogram:
    longest = int(counts.values[-1])
    starts = np.unique(np.geomspace(1, longest + 1, HISTOGRAM_BINS + 1).round().astype(np.int64)[:-1])
    starts[0] = min(int(counts.values[0]), 1)
    bins = np.searchsorted(starts, counts.values, "right") - 1
    requests = np.bincount(bins, counts.counts, minlength=len(starts)).astype(np.int64)
    return Histogram(from_tokens=starts.tolist(), requests=requests.tolist())


def _percentile(counts: Counts, percent: float, n: int) -> Percentile:
    needed = samples_needed(percent / 100)
    if n < needed:
        return Percentile(percent=percent, tokens=None, reason=f"{n} requests: a 95% interval needs {needed:,}")
    return Percentile(percent=percent, tokens=counts.percentile(percent))


def _pairs(rows: pl.DataFrame) -> Iterator[tuple[Ints, Ints]]:
    """Input and output lengths of the requests that have both, part by part."""
    for part in rows.select("input_tokens", "output_tokens").iter_slices(ROWS_AT_ONCE):
        both = part.drop_nulls()
        yield both["input_tokens"].to_numpy(), both["output_tokens"].to_numpy()


def _correlations(rows: pl.DataFrame, x: Counts, y: Counts) -> tuple[float | None, float | None, str | None]:
    """Pearson's of the logarithms and Spearman's; why they are not known."""
    if x.n < PAIRS_FOR_CORRELATION:
        return None, None, f"{x.n} requests have both lengths: a correlation needs {PAIRS_FOR_CORRELATION}"
    if len(x.values) == 1 or len(y.values) == 1:
        return None, None, f"all {'inputs' if len(x.values) == 1 else 'outputs'} have the same length"
    scores = [
        # log(max(n, 1)): a length of 0 is not left out, and differs from 1 by nothing that matters.
        [_standardised(counts, np.log(np.maximum(counts.values, 1))) for counts in (x, y)],
        [_standardised(counts, counts.midranks()) for counts in (x, y)],
    ]
    sums = [0.0, 0.0]
    for prompts, outputs in _pairs(rows):
        for kind, (of_input, of_output) in enumerate(scores):
            sums[kind] += float((of_input(prompts) * of_output(outputs)).sum())
    log, rank = (min(1.0, max(-1.0, total / x.n)) for total in sums)
    return log, rank, None


def _standardised(counts: Counts, scores: Floats) -> Callable[[Ints], Floats]:
    """From lengths to their scores, shifted and scaled to mean 0 and spread 1 over all requests."""
    centred = scores - (scores @ counts.counts) / counts.n
    spread = float(np.sqrt(centred**2 @ counts.counts / counts.n))
    scaled = centred / spread if spread else centred
    if counts.values[-1] >= DENSE:
        return lambda lengths: scaled[np.searchsorted(counts.values, lengths)]
    table = np.zeros(int(counts.values[-1]) + 1)
    table[counts.values] = scaled
    return lambda lengths: table[lengths]

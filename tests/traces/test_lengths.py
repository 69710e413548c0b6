"""Length distributions against numpy and scipy on the lengths one by one."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from inferdoc.traces import read_trace
from inferdoc.traces.counts import DENSE, Counts
from inferdoc.traces.lengths import PERCENTILES, analyse_lengths, describe

LENGTHS = st.lists(st.integers(0, 40) | st.integers(0, 2 * DENSE), min_size=1, max_size=60)


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 5))
def test_counted_in_parts_is_what_numpy_says_of_the_whole(lengths, parts):
    every = np.array(lengths)
    counts = Counts.of(np.array_split(every, parts))
    assert (counts.n, counts.total) == (len(lengths), sum(lengths))
    assert counts.mean == pytest.approx(every.mean())
    assert counts.variance == pytest.approx(every.var())
    for percent in PERCENTILES:
        assert counts.percentile(percent) == pytest.approx(np.percentile(every, percent), rel=1e-12)
    ranks = dict(zip(counts.values.tolist(), counts.midranks().tolist(), strict=True))
    assert [ranks[length] for length in lengths] == stats.rankdata(every).tolist()


@settings(deadline=None)
@given(LENGTHS)
def test_histogram_puts_every_request_into_the_bin_of_its_length(lengths):
    histogram = describe(Counts.of([np.array(lengths)]), len(lengths), "input").histogram
    starts = histogram.from_tokens
    assert starts == sorted(set(starts))
    ends = [*starts[1:], max(lengths) + 1]
    expected = [sum(a <= length < b for length in lengths) for a, b in zip(starts, ends, strict=True)]
    assert histogram.requests == expected
    assert sum(expected) == len(lengths)


def test_azure_conversations_are_as_a_plain_loop_finds_them(shared):
    path = shared / "traces" / "azure" / "AzureLLMInferenceTrace_conv.csv"
    with path.open(newline="") as file:
        pairs = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    prompts, outputs = (np.array(side) for side in zip(*pairs, strict=True))
    found = analyse_lengths(read_trace(path))
    for lengths, distribution in ((prompts, found.input), (outputs, found.output), (prompts + outputs, found.total)):
        assert (distribution.n, distribution.missing, distribution.reason) == (19_366, 0, None)
        assert distribution.mean_tokens == pytest.approx(lengths.mean())
        assert distribution.cv == pytest.approx(lengths.std() / lengths.mean())
        assert distribution.max_tokens == lengths.max()
        for percent in PERCENTILES:
            assert distribution.percentile(percent) == np.percentile(lengths, percent)
        longest = np.sort(lengths)[::-1]
        assert distribution.longest_1pct_token_share == pytest.approx(longest[:194].sum() / lengths.sum())
        assert distribution.longest_10pct_token_share == pytest.approx(longest[:1937].sum() / lengths.sum())
    assert found.correlation_log == pytest.approx(stats.pearsonr(np.log(prompts), np.log(outputs)).statistic)
    assert found.correlation_rank == pytest.approx(stats.spearmanr(prompts, outputs).statistic)
    assert found.input_output_ratio == pytest.approx(prompts.sum() / outputs.sum())


def test_a_percentile_needs_the_requests_of_its_interval(trace_of):
    found = analyse_lengths(trace_of(input_tokens=range(1, 72), output_tokens=[5] * 71)).input
    known = {entry.percent for entry in found.percentiles if entry.tokens is not None}
    assert known == {10.0, 25.0, 50.0, 75.0, 90.0}
    reasons = {entry.percent: entry.reason for entry in found.percentiles}
    assert reasons[95.0] == "71 requests: a 95% interval needs 72"
    assert reasons[99.9] == "71 requests: a 95% interval needs 3,688"
    assert found.longest_1pct_token_share is None
    assert found.longest_10pct_token_share == pytest.approx(sum(range(64, 72)) / sum(range(1, 72)))
    assert found.reason == "71 requests are too few for the longest 1%"


def test_equal_lengths_have_no_spread_and_no_correlation(trace_of):
    found = analyse_lengths(trace_of(input_tokens=range(1, 41), output_tokens=[64] * 40))
    assert (found.output.sd_tokens, found.output.cv) == (0, 0)
    assert (found.correlation_log, found.correlation_rank) == (None, None)
    assert found.correlation_reason == "all outputs have the same length"


def test_requests_without_output_count_as_missing(trace_of):
    outputs = [None, 10, 20, None] * 5
    found = analyse_lengths(trace_of(input_tokens=[100, 1, 2, 100] * 5, output_tokens=outputs))
    assert (found.output.n, found.output.missing, found.input.n, found.total.n) == (10, 10, 20, 10)
    assert found.input_output_ratio == pytest.approx(15 / 150)
    assert found.correlation_rank == pytest.approx(1)


def test_text_that_nobody_counted_has_no_lengths(trace_of):
    found = analyse_lengths(trace_of(prompt_text=["a", "b"], output_tokens=[3, 4]))
    assert (found.input.n, found.input.missing, found.input.mean_tokens) == (0, 2, None)
    assert "no request has input lengths" in found.input.reason
    assert found.total.n == 0
    assert found.correlation_reason == "0 requests have both lengths: a correlation needs 10"
    assert found.input_output_ratio is None


def test_repeated_rows_count_as_often_as_they_occur(trace_of):
    once, twice = (analyse_lengths(trace_of(input_tokens=[3, 9] * k, output_tokens=[1, 7] * k)) for k in (5, 10))
    assert twice.input.n == 2 * once.input.n
    assert twice.input.cv == pytest.approx(once.input.cv)

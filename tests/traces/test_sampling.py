"""Contiguous samples: which requests are taken, and what is said of the rest."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from inferdoc.errors import InputError, TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.sampling import sample_count, sample_window


@pytest.fixture
def steady(trace_of):
    return trace_of(
        arrival_s=[float(i) for i in range(100)],
        input_tokens=[10 if i not in (70, 71, 72) else 500 for i in range(100)],
        output_tokens=[1] * 100,
    )


def test_a_window_around_a_time(steady):
    made = sample_window(steady, 10.0, 50.0)
    assert made.trace.rows["row"].to_list() == list(range(46, 56))
    assert made.trace.rows["arrival_s"].to_list() == [float(i) for i in range(10)]
    assert made.notes[0] == "sample: 10 of 100 requests in a row, from position 45 (45 s to 54 s of 99 s)"


@pytest.mark.parametrize(("around", "rows"), [(0.0, (1, 10)), (99.0, (90, 99)), (98.0, (90, 99))])
def test_at_the_ends_the_window_stays_inside(steady, around, rows):
    made = sample_window(steady, 10.0, around)
    assert (made.trace.rows["row"][0], made.trace.rows["row"][-1]) == rows


def test_the_busiest_window_has_most_tokens(steady):
    made = sample_window(steady, 3.0, "busiest")
    assert made.trace.rows["input_tokens"].to_list() == [500, 500, 500]


def test_peak_and_off_peak_are_those_of_the_windows(shared):
    trace = read_trace(shared / "traces/azure/AzureLLMInferenceTrace_code.csv")
    peak = sample_window(trace, 60.0, "peak")
    low = sample_window(trace, 60.0, "off-peak")
    # The quiet minute may hold one short burst, so its rate is that of the minute, not of its first to last request.
    assert len(peak.trace) / 60 > 2 * trace.rate_per_s > 4 * len(low.trace) / 60
    first = peak.trace.rows["row"].to_list()
    assert first == list(range(first[0], first[0] + len(first)))


def test_a_steady_trace_has_no_peak(steady):
    with pytest.raises(TraceError, match="has no peak window"):
        sample_window(steady, 10.0, "peak")


def test_the_hit_rate_is_told_cold_and_warm(trace_of):
    prompts = [[i % 2, 7, 8] for i in range(6)]
    trace = replace(
        trace_of(input_tokens=[49] * 6, output_tokens=[1] * 6, prefix_blocks=prompts, arrival_s=range(6)), block_size=16
    )
    made = sample_count(trace, 2, 2)
    # By itself the two prompts share nothing; both were seen before, in 48 of 49 tokens.
    assert made.notes[1] == (
        "sample: its ideal hit rate is 0.0% by itself and 98.0% with all that came before it in the cache"
    )


def test_counts_beyond_the_trace(steady):
    assert len(sample_count(steady, 95, 50).trace) == 5
    with pytest.raises(InputError, match="100 requests, numbered from 0"):
        sample_count(steady, 100, 1)


def test_windows_without_requests_or_times(trace_of):
    gap = trace_of(arrival_s=[0.0, 100.0], input_tokens=[1, 1], output_tokens=[1, 1])
    with pytest.raises(InputError, match="no request arrives"):
        sample_window(gap, 10.0, 50.0)
    with pytest.raises(TraceError, match="no arrival times"):
        sample_window(trace_of(input_tokens=[1], output_tokens=[1]), 10.0, 0.0)
    two = trace_of(
        arrival_s=[0.0, 0.0], input_tokens=[1, 1], output_tokens=[1, 1], segment=[0, 1], independent_clocks=True
    )
    with pytest.raises(TraceError, match="--start and --count"):
        sample_window(two, 10.0, 0.0)


def test_a_peak_shorter_than_the_window_is_told(trace_of):
    # One request a second, eleven a second from 400 s to 500 s.
    times = sorted([float(n) for n in range(2000)] + [400 + n / 10 for n in range(1000)])
    trace = trace_of(arrival_s=times, input_tokens=[10] * 3000, output_tokens=[1] * 3000)
    made = sample_window(trace, 300.0, "peak")
    assert any(
        re.fullmatch(
            r"sample: the peak window is \d+(\.\d)? s, shorter than what was asked for: the sample holds 5 min .*", note
        )
        for note in made.notes
    )
    assert not any("shorter" in note for note in sample_window(trace, 10.0, "peak").notes)

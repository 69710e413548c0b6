"""Clocks, rates, bursts and days: planted ones, and the public traces."""

from __future__ import annotations

import csv
from datetime import datetime
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from inferdoc.traces import read_trace
from inferdoc.traces.arrivals import analyse_arrivals, describe_arrivals, describe_dispersion
from inferdoc.traces.clocks import describe_clock, stretches
from inferdoc.traces.daily import daily_profile


def poisson(rate, seconds, seed=0):
    random = np.random.default_rng(seed)
    times = np.sort(random.uniform(0, seconds, random.poisson(rate * seconds)))
    return times - times[0]


def plain_counts(times, window):
    counts = [0] * int(times[-1] / window)
    for time in times:
        if time / window < len(counts):
            counts[int(time / window)] += 1
    return counts


@pytest.mark.parametrize(
    ("stamps", "resolution"),
    [
        ([0, 0, 1, 1, 1, 4, 6, 6], 1.0),
        ([0, 0, 3, 3, 9, 12], 3.0),
        ([0, 0.001, 0.001, 0.008, 0.010], 0.001),
        ([0, 0.25, 0.75, 0.75], 0.25),
        ([0, 0, 0.0000001, 0.1234567], 1e-6),
        ([0.1 * k for k in range(20)], 0.1),
    ],
)
def test_exact_steps_of_a_clock(stamps, resolution):
    assert describe_clock(np.array(stamps, dtype=float)).resolution_s == resolution


def test_few_different_times_show_no_step():
    clock = describe_clock(np.array([0, 0.001, 0.008, 0.010]))
    assert (clock.resolution_s, clock.step_s) == (None, 0)
    assert clock.reason == "4 requests at different times do not show the clock's steps"


def test_a_clock_with_jitter_is_told_from_a_fast_one():
    random = np.random.default_rng(1)
    ticks = np.sort(random.integers(0, 400, 3000))
    jittered = np.sort(ticks * 3.0 + (random.integers(-2, 3, 400) / 1000)[ticks])
    assert describe_clock(jittered - jittered[0]).resolution_s == pytest.approx(3, abs=0.01)
    fast = np.round(poisson(2, 3000, 5), 3)
    assert describe_clock(fast - fast[0]).resolution_s == 0.001


def test_a_fast_clock_with_repeated_stamps_is_not_coarse():
    twice = np.repeat(np.round(poisson(2, 3000, 5), 3), 2)
    clock = describe_clock(twice)
    assert clock.resolution_s == 0.001
    assert clock.equal_stamp_share == pytest.approx(0.5, abs=0.01)


def test_one_request_and_one_burst():
    alone = describe_arrivals(np.zeros(1))
    assert (alone.requests, alone.rate_per_s, alone.reason) == (1, None, "one request")
    burst = describe_arrivals(np.zeros(50))
    assert (burst.rate_per_s, burst.clock.equal_stamp_share) == (None, 1.0)
    assert burst.reason == "all requests have the same time"
    pair = describe_arrivals(np.array([0.0, 4.0]))
    assert (pair.rate_per_s, pair.interarrival_cv) == (0.25, None)
    assert "two requests have one time between them" in pair.reason


def test_dispersion_is_the_plain_count():
    times = poisson(3, 500, 2)
    counts = np.array(plain_counts(times, 10.0))
    found = describe_dispersion(times, 10.0, 0.0)
    assert found.windows == len(counts)
    assert found.dispersion == pytest.approx(counts.var(ddof=1) / counts.mean())
    assert found.local_dispersion == pytest.approx(
        sum((b - a) ** 2 for a, b in pairwise(counts)) / (2 * (len(counts) - 1) * counts.mean())
    )
    statistic = ((counts - counts.mean()) ** 2).sum() / counts.mean()
    assert found.burstier_p == pytest.approx(stats.chi2.sf(statistic, len(counts) - 1))
    assert found.regular_p == pytest.approx(stats.chi2.cdf(statistic, len(counts) - 1))
    assert found.peak_over_mean == pytest.approx(counts.max() / counts.mean())
    expected = stats.poisson.ppf(0.5 ** (1 / len(counts)), counts.mean())
    assert found.poisson_peak_over_mean == pytest.approx(expected / counts.mean())


def test_poisson_is_called_that_and_the_test_keeps_its_level():
    p_values = [describe_dispersion(poisson(4, 400, seed), 1.0, 0.0).burstier_p for seed in range(300)]
    assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.08
    found = describe_arrivals(poisson(4, 2000, 1))
    assert (found.character, found.character_window_s) == ("close to Poisson", 1.0)
    assert found.interarrival_cv == pytest.approx(1, abs=0.05)
    assert found.rate_note is None


def test_bursts_and_metronomes():
    starts = poisson(0.2, 4000, 3)
    bursts = np.sort((starts[:, None] + np.random.default_rng(4).uniform(0, 2, (len(starts), 20))).ravel())
    assert describe_arrivals(bursts - bursts[0]).character == "burstier than Poisson"
    steady = describe_arrivals(np.arange(3000) * 0.23)
    assert steady.character == "more regular than Poisson"
    assert steady.interarrival_cv == pytest.approx(0, abs=1e-9)


def test_windows_shorter_than_a_step_have_no_value():
    clock = np.sort(np.random.default_rng(0).integers(0, 400, 4000)) * 3.0
    one, ten, minute, _ = describe_arrivals(clock).dispersions
    assert (one.window_s, one.dispersion, one.reason) == (None, None, "the clock steps by 3 s")
    assert (ten.window_s, minute.window_s) == (9.0, 60.0)
    # 10 s would hold 3 or 4 stamps and look bursty; whole steps do not.
    assert ten.dispersion == pytest.approx(1, abs=0.35)
    assert describe_arrivals(clock).interarrival_cv is None


def test_a_ramp_is_not_one_rate():
    times = np.sqrt(np.linspace(0, 1, 2000)) * 1000
    found = describe_arrivals(times)
    assert found.last_over_first_tenth == pytest.approx(19, rel=0.1)
    assert found.rate_note.startswith("the rate is not one number: ")
    assert sum(found.tenths_per_s) * 100 == pytest.approx(2000)


def test_a_day_is_found_where_it_repeats():
    random = np.random.default_rng(7)
    hours = np.arange(24 * 6)
    counts = random.poisson(200 + 150 * np.sin((hours % 24 - 8) / 24 * 2 * np.pi))
    times = np.sort(np.concatenate([hour * 3600 + random.uniform(0, 3600, n) for hour, n in enumerate(counts)]))
    profile, reason = daily_profile(times - times[0])
    assert reason is None
    assert profile.repeats
    assert profile.busiest_hour in range(12, 17)
    assert profile.quietest_hour in (0, 1, 2, 3, 4, 23)
    assert profile.requests_per_s[2] == pytest.approx(counts[2::24].mean() / 3600, rel=0.1)
    flat, _ = daily_profile(poisson(0.05, 6 * 86_400, 3))
    assert flat.repeats is False
    one, _ = daily_profile(poisson(0.05, 1.5 * 86_400, 3))
    assert (one.repeats, one.reason) == (None, "less than two whole days")
    assert daily_profile(poisson(1, 7200, 0)) == (None, "the trace spans 2 hours, less than a day")


@pytest.fixture(scope="module")
def azure(shared):
    return {kind: shared / "traces" / "azure" / f"AzureLLMInferenceTrace_{kind}.csv" for kind in ("code", "conv")}


def test_azure_code_is_bursty_and_conversations_are_not(azure):
    found = {kind: analyse_arrivals(read_trace(path)).whole for kind, path in azure.items()}
    for kind, path in azure.items():
        with path.open(newline="") as file:
            stamps = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in csv.DictReader(file)]
        times = np.array(stamps) - stamps[0]
        gaps = np.diff(times)
        assert found[kind].interarrival_cv == pytest.approx(gaps.std() / gaps.mean(), rel=1e-3)
        counts = np.array(plain_counts(times, 1.0))
        assert found[kind].dispersions[0].dispersion == pytest.approx(counts.var(ddof=1) / counts.mean(), rel=1e-2)
    assert found["code"].character == "burstier than Poisson"
    assert found["code"].interarrival_cv > 10
    assert found["conv"].character == "close to Poisson"
    assert found["conv"].interarrival_cv == pytest.approx(1.09, abs=0.01)
    assert found["conv"].dispersions[0].local_dispersion == pytest.approx(1.08, abs=0.01)


def test_mooncake_steps_by_three_seconds(shared):
    found = analyse_arrivals(read_trace(shared / "traces" / "mooncake" / "conversation_trace.jsonl")).whole
    assert found.clock.resolution_s == 3.0
    assert found.clock.distinct_stamps == 1180
    assert found.clock.equal_stamp_share == pytest.approx(1 - 1179 / 12_030)
    assert found.interarrival_cv is None
    assert "step of 3 s is long against the 0.294 s between requests" in found.reason
    assert [entry.window_s for entry in found.dispersions] == [None, 9.0, 60.0, 600.0]


def test_no_statistic_crosses_independent_clocks(trace_of):
    fast, slow = poisson(5, 200, 1), poisson(0.5, 400, 2)
    trace = trace_of(arrival_s=[*fast, *slow], segment=[0] * len(fast) + [1] * len(slow), independent_clocks=True)
    found = analyse_arrivals(trace)
    assert found.whole is None
    assert found.reason == "segments have clocks of their own: no rate holds for all of them"
    assert [entry.segment for entry in found.segments] == [0, 1]
    assert found.segments[0] == describe_arrivals(fast, 0)
    assert found.segments[1] == describe_arrivals(slow, 1)


def test_many_segments_are_described_by_the_largest(trace_of):
    sizes = [3 if segment % 2 else 5 for segment in range(40)]
    trace = trace_of(
        arrival_s=[float(at) for size in sizes for at in range(size)],
        segment=[segment for segment, size in enumerate(sizes) for _ in range(size)],
        independent_clocks=True,
    )
    found, others, _ = stretches(trace)
    assert ([stretch.count for stretch in found], others) == ([5] * 16, 24)
    assert analyse_arrivals(trace).other_segments == 24


def test_without_times_there_is_a_reason(trace_of):
    found = analyse_arrivals(trace_of(input_tokens=[1, 2]))
    assert (found.segments, found.whole, found.reason) == ([], None, "the trace has no arrival times")
    some = analyse_arrivals(trace_of(arrival_s=[0.0, None]))
    assert some.reason == "1 requests have no arrival time"

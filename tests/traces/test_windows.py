"""Peak and off-peak windows: planted ones are found, steady traces have one, and requests are counted once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from inferdoc.traces import read_trace
from inferdoc.traces.arrivals import describe_arrivals
from inferdoc.traces.lengths import analyse_lengths
from inferdoc.traces.windows import split_windows


@pytest.fixture
def traffic(trace_of):
    """Poisson arrivals at a rate for each stretch of a length in seconds, lengths with heavy tails."""

    def make(stretches, seed, clock=None, outputs=True):
        random = np.random.default_rng(seed)
        edges = np.cumsum([0, *(seconds for _, seconds in stretches)])
        times = np.concatenate(
            [
                random.uniform(a, b, random.poisson(rate * (b - a)))
                for (rate, _), (a, b) in zip(stretches, pairwise(edges), strict=True)
            ]
        )
        times = np.sort(np.floor(times / clock) * clock if clock else times)
        n = len(times)
        columns = {"output_tokens": random.lognormal(5, 1, n).astype(int) + 1} if outputs else {}
        return trace_of(arrival_s=times - times[0], input_tokens=random.lognormal(6, 1, n).astype(int) + 1, **columns)

    return make


def check_whole(trace, found):
    windows = found.windows
    assert sum(window.requests for window in windows) == len(trace)
    assert [window.first_request for window in windows] == [
        sum(window.requests for window in windows[:at]) for at in range(len(windows))
    ]
    assert all(a.end_s == b.start_s and a.kind != b.kind for a, b in pairwise(windows))
    assert sum(window.time_share for window in windows) == pytest.approx(1)
    assert sum(window.request_share for window in windows) == pytest.approx(1)


def test_a_planted_peak_and_a_lull(traffic):
    trace = traffic([(2, 600), (6, 300), (2, 600), (0.5, 600)], seed=1)
    found = split_windows(trace)
    check_whole(trace, found)
    assert (found.peak.window.start_s, found.peak.window.end_s) == pytest.approx((600, 900), abs=30)
    assert (found.off_peak.window.kind, found.off_peak.window.end_s) == ("off_peak", trace.duration_s)
    assert found.peak.window.rate_per_s == pytest.approx(6, rel=0.1)
    assert found.load == "tokens"
    times = trace.rows["arrival_s"].to_numpy()
    for window in found.windows:
        own = (times >= window.start_s) & (times < window.end_s)
        own[-1] = window is found.windows[-1]
        assert window.requests == own.sum()
        tokens = trace.rows.filter(own).select("input_tokens", "output_tokens").sum().row(0)
        assert window.tokens_per_s == pytest.approx(sum(tokens) / (window.end_s - window.start_s))


def test_a_window_has_the_statistics_of_its_own_requests(traffic):
    trace = traffic([(2, 600), (8, 300), (2, 600)], seed=2)
    peak = split_windows(trace).peak
    own = trace.window(peak.window.first_request, peak.window.requests)
    assert peak.lengths == analyse_lengths(own)
    assert peak.arrivals == describe_arrivals(own.rows["arrival_s"].to_numpy())
    assert peak.window.input_p50_tokens == np.percentile(own.rows["input_tokens"].to_numpy(), 50)
    assert peak.window.output_mean_tokens == pytest.approx(own.rows["output_tokens"].to_numpy().mean())


def test_steady_traffic_is_one_window(traffic):
    alarms = 0
    for seed in range(60):
        found = split_windows(traffic([(2, 400)], seed))
        alarms += len(found.windows) > 1
        if len(found.windows) == 1:
            assert (found.windows[0].kind, found.peak, found.off_peak, found.load) == ("steady", None, None, None)
    assert alarms <= 3


def test_small_lasting_changes_are_not_windows(traffic):
    found = split_windows(traffic([(10, 1000), (11.5, 1000)], seed=5))
    assert found.text == "steady: one window (no lasting change of the load by 20%)"


def test_requests_show_what_varying_lengths_hide(trace_of):
    random = np.random.default_rng(0)
    times = np.sort(np.concatenate([random.uniform(0, 1000, 400), random.uniform(600, 800, 300)]))
    inputs = random.pareto(0.7, len(times)).astype(int).clip(0, 10**6) + 1
    found = split_windows(trace_of(arrival_s=times - times[0], input_tokens=inputs, output_tokens=[1] * len(times)))
    assert found.load == "requests"
    assert (found.peak.window.start_s, found.peak.window.end_s) == pytest.approx((600, 800), abs=30)


def test_a_coarse_clock_makes_no_windows(traffic):
    assert len(split_windows(traffic([(3, 1500)], seed=3, clock=3)).windows) == 1
    trace = traffic([(3, 1200), (9, 600), (3, 1200)], seed=3, clock=3)
    found = split_windows(trace)
    check_whole(trace, found)
    assert (found.peak.window.start_s, found.peak.window.end_s) == pytest.approx((1200, 1800), abs=30)


def test_a_stretch_without_requests_has_no_load(traffic):
    found = split_windows(traffic([(2, 500), (0, 300), (2, 500)], seed=6))
    idle = min(found.windows, key=lambda window: window.load_over_mean)
    assert (idle.start_s, idle.end_s) == pytest.approx((500, 800), abs=20)
    assert idle.load_over_mean < 0.03
    assert idle.requests < 20


def test_equal_traces_have_equal_windows(traffic):
    stretches = [(2, 300), (5, 300), (1, 300)]
    assert split_windows(traffic(stretches, seed=9)) == split_windows(traffic(stretches, seed=9))


def test_without_outputs_prompts_are_the_load(traffic):
    found = split_windows(traffic([(2, 500), (8, 500)], seed=4, outputs=False))
    assert [window.kind for window in found.windows] == ["off_peak", "peak"]
    assert found.peak.window.output_mean_tokens is None


def test_few_requests_and_no_times(trace_of):
    few = split_windows(trace_of(arrival_s=[0.0, 1.0, 50.0], input_tokens=[5, 5, 5]))
    assert few.text == "steady: one window (fewer than 160 requests)"
    assert (few.windows[0].requests, few.windows[0].input_p50_tokens) == (3, None)
    at_once = split_windows(trace_of(arrival_s=[0.0] * 300, input_tokens=[5] * 300))
    assert (at_once.windows[0].rate_per_s, at_once.windows[0].time_share) == (None, 1)
    none = split_windows(trace_of(input_tokens=[1, 2]))
    assert (none.windows, none.reason) == ([], "the trace has no arrival times")


def test_segments_have_windows_of_their_own(traffic, trace_of):
    parts = [traffic([(2, 400), (9, 200)], seed=1), traffic([(3, 500)], seed=2)]
    trace = trace_of(
        arrival_s=[time for part in parts for time in part.rows["arrival_s"]],
        input_tokens=[length for part in parts for length in part.rows["input_tokens"]],
        output_tokens=[length for part in parts for length in part.rows["output_tokens"]],
        segment=[segment for segment, part in enumerate(parts) for _ in range(len(part))],
        independent_clocks=True,
    )
    found = split_windows(trace)
    assert [(window.segment, window.kind) for window in found.windows] == [(0, "off_peak"), (0, "peak"), (1, "steady")]
    assert found.windows[2].first_request == len(parts[0])
    assert found.peak.window == split_windows(parts[0]).peak.window.model_copy(update={"segment": 0})


def test_azure_conversations_have_a_busy_stretch(shared):
    trace = read_trace(shared / "traces" / "azure" / "AzureLLMInferenceTrace_conv.csv")
    found = split_windows(trace)
    check_whole(trace, found)
    times = trace.rows["arrival_s"].to_numpy()
    tokens = (trace.rows["input_tokens"] + trace.rows["output_tokens"]).to_numpy()
    peak, low = found.peak.window, found.off_peak.window
    mean = tokens.sum() / times[-1]
    own = (times >= peak.start_s) & (times < peak.end_s)
    assert peak.load_over_mean == pytest.approx(tokens[own].sum() / (peak.end_s - peak.start_s) / mean, rel=0.01)
    assert peak.load_over_mean > 1.4 > 0.8 > low.load_over_mean

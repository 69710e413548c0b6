"""Demand for K/V over time: hand-worked cases, and a plain loop over every stretch between two events."""

from __future__ import annotations

import csv
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces import demand as demand_module
from inferdoc.traces import read_trace
from inferdoc.traces.demand import analyse_demand
from inferdoc.traces.service import ServiceModel
from inferdoc.traces.token_seconds import next_power_of_two


def pieces(requests):
    """(seconds, size at the start, size at the end) between all events, by a plain loop.

    Requests are (start, first, end, low, high): `low` from start on, straight to `high` between first and end.
    """
    moments = sorted({moment for request in requests for moment in request[:3]})
    found = []
    for a, b in pairwise(moments):
        begin = end = 0.0
        for start, first, stop, low, high in requests:
            if start <= a and b <= stop:
                pace = (high - low) / (stop - first) if stop > first else 0.0
                begin += low + pace * max(0.0, a - first)
                end += low + pace * max(0.0, b - first)
        found.append((b - a, begin, end))
    return found


def time_share_up_to(found, size):
    below = 0.0
    for seconds, begin, end in found:
        low, high = min(begin, end), max(begin, end)
        below += seconds * (float(low <= size) if high == low else min(1.0, max(0.0, (size - low) / (high - low))))
    return below / sum(seconds for seconds, _, _ in found)


def check(over_time, found):
    seconds = sum(piece[0] for piece in found)
    assert over_time.mean == pytest.approx(sum(s * (a + b) / 2 for s, a, b in found) / seconds)
    assert over_time.max == pytest.approx(max(max(a, b) for _, a, b in found))
    for size, share in ((over_time.p50, 0.5), (over_time.p99, 0.99)):
        assert time_share_up_to(found, size * (1 + 1e-4) + 1) >= share - 1e-9
        assert time_share_up_to(found, size * (1 - 1e-4) - 1) <= share + 1e-9


def test_one_request_by_hand(trace_of):
    trace = trace_of(arrival_s=[0.0], input_tokens=[100], output_tokens=[40], ttft_s=[2.0], e2e_s=[10.0])
    found = analyse_demand(trace, max_model_len=1000).whole
    # 2 s at 100, then 8 s from 100 to 140: half of the time at or below 115, 99% at or below 139.5.
    assert (found.service, found.span_s) == ("measured", 10)
    assert found.live_tokens.p50 == pytest.approx(115, rel=1e-4)
    assert found.live_tokens.p99 == pytest.approx(139.5, rel=1e-4)
    assert (found.live_tokens.max, found.max_at_s) == (pytest.approx(140), pytest.approx(10))
    assert found.live_tokens.mean == pytest.approx((2 * 100 + 8 * 120) / 10)
    assert (found.live_requests.p50, found.live_requests.max) == (1, 1)
    # 112 places for the prompt, 144 for all: 2 s at 112, 8 s at 128 on average.
    block = found.blocks[0]
    assert (block.block_size, block.tokens.mean, block.tokens.max) == (16, pytest.approx(124.8), pytest.approx(144))
    assert block.unwritten_share == pytest.approx(1 - 116 / 124.8)
    longest, declared, doubled = found.reservations
    assert (longest.tokens.p99, longest.waste_share) == (1000, pytest.approx(1 - 116 / 1000))
    assert (declared.waste_share, declared.reason) == (None, "the trace has no declared maximum of outputs")
    assert (doubled.tokens.max, doubled.waste_share) == (256, pytest.approx(1 - 116 / 256))
    assert found.largest[0].token_seconds == pytest.approx(1160)
    assert found.largest[0].share == 1


def test_two_requests_and_an_idle_stretch(trace_of):
    trace = trace_of(arrival_s=[0.0, 8.0], input_tokens=[50, 70], output_tokens=[0, 0], e2e_s=[2.0, 2.0])
    found = analyse_demand(trace, max_model_len=100).whole
    assert found.span_s == 10
    assert (found.live_tokens.p50, found.live_requests.p50) == (0, 0)
    assert found.live_tokens.max == 70
    assert found.live_tokens.mean == pytest.approx(24)
    assert found.reservations[0].waste_share == pytest.approx(1 - 240 / 400)


def test_recorded_queueing_holds_no_memory(trace_of):
    trace = trace_of(arrival_s=[0.0], input_tokens=[10], output_tokens=[10], ttft_s=[5.0], e2e_s=[10.0], queue_s=[4.0])
    assert analyse_demand(trace).whole.live_tokens.mean == pytest.approx((1 * 10 + 5 * 15) / 6)


def test_modelled_times(trace_of):
    trace = trace_of(arrival_s=[0.0, 100.0], input_tokens=[1000, 500], output_tokens=[11, 1])
    service = ServiceModel(prefill_tokens_per_s=500, tpot_s=0.1)
    found = analyse_demand(trace, service=service).whole
    assert found.service == "modelled"
    assert [entry.seconds for entry in found.largest] == pytest.approx([3, 1])
    assert found.largest[0].token_seconds == pytest.approx(2 * 1000 + 1 * 1005.5)
    by_function = analyse_demand(trace, service=lambda prompts, outputs: service(prompts, outputs)).whole
    assert by_function == found


def test_measured_goes_before_modelled(trace_of):
    trace = trace_of(arrival_s=[0.0, 5.0], input_tokens=[10, 10], output_tokens=[2, 2], e2e_s=[1.0, None])
    alone = analyse_demand(trace).whole
    assert (alone.service, alone.requests, alone.left_out) == ("measured", 1, 1)
    assert "1 requests are left out, so the demand is at least this" in alone.notes
    assert any("no time to first token" in note for note in alone.notes)
    both = analyse_demand(trace, service=ServiceModel(prefill_tokens_per_s=5, tpot_s=1)).whole
    assert both.service == "measured for 1 of 2 requests, else modelled"
    assert (both.requests, both.left_out, both.span_s) == (2, 0, 8)


def test_a_request_longer_than_the_reservation_is_named(trace_of):
    trace = trace_of(arrival_s=[0.0, 0.0], input_tokens=[10, 90], output_tokens=[0, 20], e2e_s=[1.0, 1.0])
    longest = analyse_demand(trace, max_model_len=100).whole.reservations[0]
    assert (longest.too_long, longest.waste_share) == (1, pytest.approx(0.9))
    none = analyse_demand(trace, max_model_len=5).whole.reservations[0]
    assert (none.waste_share, none.reason) == (None, "no request fits 5 tokens")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"input_tokens": [1], "output_tokens": [1]}, "the trace has no arrival times"),
        ({"arrival_s": [0.0], "input_tokens": [1], "output_tokens": [1]}, "no service times"),
        ({"arrival_s": [0.0], "input_tokens": [1], "e2e_s": [1.0]}, "no input and output lengths"),
    ],
)
def test_what_is_absent_is_named(trace_of, columns, reason):
    found = analyse_demand(trace_of(**columns))
    assert found.segments == []
    assert reason in found.reason


def test_no_time_at_all(trace_of):
    trace = trace_of(arrival_s=[0.0, None], input_tokens=[1, 1], output_tokens=[1, 1], e2e_s=[1.0, 1.0])
    assert analyse_demand(trace).reason == "1 requests have no arrival time"
    instant = trace_of(arrival_s=[0.0], input_tokens=[1], output_tokens=[1], e2e_s=[0.0])
    assert analyse_demand(instant).whole.reason == "no request holds tokens for any time"
    empty = trace_of(arrival_s=[0.0], input_tokens=[0], output_tokens=[0], e2e_s=[1.0])
    assert analyse_demand(empty).whole.reason == "no request holds tokens for any time"
    apart = trace_of(arrival_s=[0.0, 1.0], input_tokens=[1, 1], output_tokens=[1, None], e2e_s=[None, 2.0])
    assert analyse_demand(apart).whole.reason == "no request has both lengths and service times"


@pytest.mark.parametrize("wrong", [{"block_sizes": (0,)}, {"max_model_len": 0}])
def test_sizes_below_one_are_refused(trace_of, wrong):
    with pytest.raises(ValueError, match="block sizes"):
        analyse_demand(trace_of(arrival_s=[0.0]), **wrong)


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 60),  # arrival
        st.integers(0, 5),  # queue
        st.integers(0, 10),  # prefill
        st.integers(0, 30),  # decode
        st.integers(1, 4000) | st.integers(1, 60),
        st.integers(1, 500),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(REQUESTS, st.integers(1, 4))
def test_the_sweep_is_the_plain_loop_whatever_the_parts(trace_of, requests, at_once):
    requests = sorted(requests)
    times = [(a / 4, (a + q) / 4, (a + q + p) / 4, (a + q + p + d) / 4) for a, q, p, d, _, _ in requests]
    trace = trace_of(
        arrival_s=[arrival for arrival, _, _, _ in times],
        queue_s=[start - arrival for arrival, start, _, _ in times],
        ttft_s=[first - arrival for arrival, _, first, _ in times],
        e2e_s=[end - arrival for arrival, _, _, end in times],
        input_tokens=[request[4] for request in requests],
        output_tokens=[request[5] for request in requests],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demand_module, "ROWS_AT_ONCE", at_once)
        found = analyse_demand(trace, block_sizes=(16, 32)).whole
    lives = [(*time[1:], request[4], request[4] + request[5]) for time, request in zip(times, requests, strict=True)]
    if all(end == start for start, _, end, _, _ in lives):
        assert found.live_tokens is None
        return
    check(found.live_tokens, pieces(lives))
    check(found.live_requests, pieces([(*life[:3], 1, 1) for life in lives]))
    for block in found.blocks:
        size = block.block_size
        rounded = [(*life[:3], -(-life[3] // size) * size, -(-life[4] // size) * size) for life in lives]
        check(block.tokens, pieces(rounded))
    doubled = [(*life[:3], *[2 ** (life[4] - 1).bit_length()] * 2) for life in lives]
    check(found.reservations[2].tokens, pieces(doubled))
    held = sum(s * (a + b) / 2 for s, a, b in pieces(lives))
    assert sum(entry.token_seconds for entry in found.largest) <= held * (1 + 1e-9)
    reserved = sum(s * (a + b) / 2 for s, a, b in pieces(doubled))
    assert found.reservations[2].waste_share == pytest.approx(1 - held / reserved)


@given(st.lists(st.integers(1, 10**7), min_size=1))
def test_next_power_of_two(lengths):
    expected = [1 << (length - 1).bit_length() for length in lengths]
    assert next_power_of_two(np.array(lengths)).tolist() == expected


def test_blocks_stay_within_one_of_the_staircase(trace_of):
    trace = trace_of(arrival_s=[0.0], input_tokens=[37], output_tokens=[200], ttft_s=[1.0], e2e_s=[21.0])
    block = analyse_demand(trace).whole.blocks[0]
    steps = [-(-(37 + 200 * i / 20_000) // 16) * 16 for i in range(20_000)]
    staircase = (48 * 1 + sum(steps) / 1000) / 21
    assert abs(block.tokens.mean - staircase) < 16


def test_segments_do_not_overlap(trace_of):
    trace = trace_of(
        arrival_s=[0.0, 0.0],
        input_tokens=[10, 20],
        output_tokens=[0, 0],
        e2e_s=[1.0, 1.0],
        segment=[0, 1],
        independent_clocks=True,
    )
    found = analyse_demand(trace)
    assert found.whole is None
    assert [segment.live_tokens.max for segment in found.segments] == [10, 20]
    assert found.reason == "segments have clocks of their own: what is live together is not known"


def test_a_real_vllm_run(shared):
    path = shared / "traces" / "llmservingsim" / "vllm_qwen3-32b_requests.jsonl"
    trace = read_trace(path)
    found = analyse_demand(trace).whole
    rows = trace.rows
    columns = ("arrival_s", "queue_s", "ttft_s", "e2e_s", "input_tokens", "output_tokens")
    lives = []
    for arrival, queue, ttft, e2e, prompt, output in rows.select(columns).iter_rows():
        start = arrival + min(queue or 0.0, e2e)
        lives.append((start, max(start, arrival + ttft), arrival + e2e, prompt, prompt + output))
    assert len(lives) == sum(1 for line in path.open() if json.loads(line))
    check(found.live_tokens, pieces(lives))
    assert (found.service, found.requests, found.left_out) == ("measured", 300, 0)


def test_live_requests_agree_with_the_engines_own_gauge(shared):
    """vLLM wrote once a second how many requests ran; no request was preempted in this run."""
    folder = shared / "traces" / "llmservingsim"
    with (folder / "vllm_qwen3-32b_timeseries.csv").open(newline="") as file:
        running = [int(float(row["running"])) for row in csv.DictReader(file)]
    found = analyse_demand(read_trace(folder / "vllm_qwen3-32b_requests.jsonl")).whole
    assert found.live_requests.mean == pytest.approx(np.mean(running), rel=0.02)
    assert found.live_requests.p50 == np.median(running)
    assert found.live_requests.max == pytest.approx(max(running), abs=2)

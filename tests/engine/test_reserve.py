"""Peak forecast: against a simulation, and the promise that nothing admitted under it is ever preempted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.reserve import forecast_peak

BASE = EngineConfig(
    max_model_len=64,
    num_kv_blocks=12,
    block_size=4,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    reservation="peak-forecast",
)


def simulated_peak(requests: list[tuple[int, int]], block_size: int) -> int:
    """Step by step: each request that is still there adds a token, and those that are done leave after the step."""
    peak, step = 0, 1
    while any(remaining >= step for _, remaining in requests):
        there = [tokens + step for tokens, remaining in requests if remaining >= step]
        peak = max(peak, sum((tokens + block_size - 1) // block_size for tokens in there))
        step += 1
    return peak


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    requests=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=8),
    block_size=st.sampled_from([1, 2, 4, 16]),
)
def test_the_forecast_is_the_peak_of_a_step_by_step_simulation(requests, block_size):
    assert forecast_peak(requests, block_size) == simulated_peak(requests, block_size)


def test_a_forecast_worked_by_hand():
    """Three requests of 4 tokens with 8, 4 and 1 to come, blocks of one token: 12, 8 + 8 or 5 + 5 + 5 at the ends."""
    assert forecast_peak([(4, 1), (4, 8), (4, 4)], 1) == 16
    assert forecast_peak([(4, 1), (4, 8), (4, 4)], 4) == 2 + 2 + 2  # 5 tokens each; 8 + 8 are 2 + 2 blocks


@st.composite
def honest_loads(draw):
    """Any load whose outputs are no longer than declared."""
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    longest = draw(st.integers(4, 32))
    max_num_seqs = draw(st.integers(1, 6))
    config = EngineConfig(
        max_model_len=longest,
        num_kv_blocks=-(-longest // block_size) + draw(st.integers(0, 8)),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.integers(max_num_seqs, 24)),
        batching=draw(st.sampled_from(["continuous", "prefill-first", "static"])),
        enable_chunked_prefill=draw(st.booleans()),
        reservation="peak-forecast",
        enable_prefix_caching=draw(st.booleans()),
    )
    requests = []
    for number in range(draw(st.integers(1, 10))):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=longest - 1))
        output = draw(st.integers(1, longest - len(prompt)))
        declared = draw(st.none() | st.integers(output, 2 * longest))
        requests.append(Request(number, prompt, output, draw(st.sampled_from([0.0, 0.5, 2.0, 5.0, 9.0])), declared))
    return config, requests


@settings(max_examples=500, deadline=None, derandomize=True)
@given(load=honest_loads())
def test_where_the_declared_maxima_hold_nothing_is_preempted(serve, load):
    config, requests = load
    serve(config, requests)
    assert [request.preemptions for request in requests] == [0] * len(requests)


def test_paging_alone_preempts_where_the_forecast_waits(serve):
    """12 blocks, six requests of 4 + 16 tokens (5 blocks at the end): paging begins all and throws some out."""
    loads = {name: [Request(i, [i] * 4, 17) for i in range(6)] for name in ("paged", "peak-forecast")}
    runs = {name: serve(replace(BASE, reservation=name), load) for name, load in loads.items()}
    assert sum(request.preemptions for request in loads["paged"]) > 0
    assert sum(request.preemptions for request in loads["peak-forecast"]) == 0
    assert [runs[name].steps[0].running for name in loads] == [6, 2]


def test_requests_of_different_ages_overlap_where_a_full_reservation_would_not_let_them(serve):
    """12 blocks. Each request takes 8 at its end; the second is young while the first is old."""

    def run(reservation):
        requests = [Request(0, [1] * 4, 29), Request(1, [2] * 4, 29, arrival_s=20.5)]
        serve(replace(BASE, reservation=reservation), requests)
        return [request.scheduled_s for request in requests]

    # Step 21 on: 6 blocks and 2, and as the first leaves 8 and 4. Reserved in full they would take 16.
    assert run("peak-forecast") == [0.0, 21.0]
    assert run("per-request") == [0.0, 29.0]


def test_an_output_longer_than_declared_costs_a_preemption_and_no_token(serve):
    requests = [Request(i, [i] * 4, 17, declared_max=2) for i in range(6)]
    serve(BASE, requests)  # compares the tokens
    assert sum(request.preemptions for request in requests) > 0


def test_a_request_that_declares_more_than_the_pool_runs_alone(serve):
    requests = [Request(0, [1] * 4, 5, declared_max=60), Request(1, [1] * 4, 5, declared_max=60)]
    run = serve(BASE, requests)
    assert max(step.running for step in run.steps) == 1


@pytest.mark.parametrize(("batching", "running"), [("continuous", 3), ("static", 2)])
def test_a_static_batch_keeps_the_blocks_of_its_finished_requests(serve, batching, running):
    """7 blocks of 4; 16 tokens at the end of the first (4 blocks), 8 of each other (2 blocks). Only where those are
    let go at their end is there room for both: at 8 tokens each 2 + 2 + 2, and then 4."""
    requests = [Request(0, [1] * 4, 13), Request(1, [2] * 4, 5), Request(2, [3] * 4, 5)]
    run = serve(replace(BASE, num_kv_blocks=7, batching=batching), requests)
    assert run.steps[0].running == running

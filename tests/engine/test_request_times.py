"""Times on a virtual clock, against values worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine, WallClock
from inferdoc.engine.request import Request

CONFIG = EngineConfig(max_model_len=64, num_kv_blocks=64, block_size=4, max_num_seqs=2, max_num_batched_tokens=8)


def test_times_of_one_request(serve):
    """A prompt of 12 needs two steps of 2 s (8 tokens) and 1 s (4 tokens); then decodes take 0.25 s each."""
    request = Request(0, list(range(12)), 4, arrival_s=10.0)
    run = serve(CONFIG, [request], seconds=lambda batch: 0.25 * batch.num_tokens)
    assert request.token_times == [13.0, 13.25, 13.5, 13.75]
    assert (request.queue_s, request.ttft_s, request.e2e_s) == (0.0, 3.0, 3.75)
    assert request.itl_s == [0.25, 0.25, 0.25]
    assert request.tpot_s == 0.25
    assert run.result.duration_s == 13.75
    assert [(s.start_s, s.duration_s) for s in run.steps] == [
        (10.0, 2.0),
        (12.0, 1.0),
        (13.0, 0.25),
        (13.25, 0.25),
        (13.5, 0.25),
    ]


def test_the_first_token_is_no_inter_token_gap():
    """vllm-project/vllm#7242: times 0, 2.0, 2.1, 2.2: TTFT 2.0, ITL 0.1, TPOT 0.1."""
    request = Request(0, [1], 3)
    request.tokens.extend([1, 2, 3])
    request.token_times += [2.0, 2.1, 2.2]
    assert request.ttft_s == 2.0
    assert request.itl_s == pytest.approx([0.1, 0.1])
    assert request.tpot_s == pytest.approx(0.1)


@pytest.mark.parametrize(("length", "gaps", "tpot"), [(1, [], None), (2, [1.0], 1.0), (3, [1.0, 1.0], 1.0)])
def test_the_time_per_output_token_is_undefined_for_one_token(serve, length, gaps, tpot):
    request = Request(0, [1], length)
    serve(CONFIG, [request])
    assert (request.itl_s, request.tpot_s, request.ttft_s, request.e2e_s) == (gaps, tpot, 1.0, float(length))


def test_no_times_before_the_first_token():
    request = Request(0, [1], 2)
    assert (request.queue_s, request.ttft_s, request.e2e_s, request.tpot_s, request.itl_s) == (None,) * 4 + ([],)


def test_queueing_counts_into_the_first_token(serve):
    """Two slots, steps of 1 s: the third request comes at 0.5 and waits until the second is done at 2."""
    requests = [Request(0, [1], 4), Request(1, [2], 2), Request(2, [3], 2, arrival_s=0.5)]
    serve(CONFIG, requests)
    assert [request.queue_s for request in requests] == [0.0, 0.0, 1.5]
    assert [request.ttft_s for request in requests] == [1.0, 1.0, 2.5]
    assert [request.e2e_s for request in requests] == [4.0, 2.0, 3.5]


def test_a_long_prompt_stalls_decodes_unless_it_is_chunked(serve):
    """Seconds are tokens. A prompt of 20 comes while request 0 decodes: whole, 21 s pass between two tokens; in
    chunks of 7 beside the decode, 8 s."""
    gaps = {}
    for chunked in (False, True):
        running, long = Request(0, [1], 9), Request(1, [2] * 20, 1, arrival_s=2.5)
        config = EngineConfig(
            max_model_len=64,
            num_kv_blocks=64,
            block_size=4,
            max_num_seqs=2,
            max_num_batched_tokens=8,
            enable_chunked_prefill=chunked,
        )
        serve(config, [running, long], seconds=lambda batch: float(batch.num_tokens))
        gaps[chunked] = running.itl_s
    assert gaps[False] == [1.0, 1.0, 21.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert gaps[True] == [1.0, 1.0, 8.0, 8.0, 7.0, 1.0, 1.0, 1.0]


def test_a_preemption_shows_as_a_gap_and_not_as_a_new_first_token(serve):
    """Two blocks of 4, each request 4 + 2 tokens: the second gives way for one step of the first."""
    config = EngineConfig(max_model_len=8, num_kv_blocks=2, block_size=4, max_num_seqs=2, max_num_batched_tokens=8)
    requests = [Request(0, [1] * 4, 3), Request(1, [2] * 4, 3)]
    serve(config, requests)
    assert requests[0].token_times == [1.0, 2.0, 3.0]
    assert requests[1].token_times == [1.0, 4.0, 5.0]
    assert [request.preemptions for request in requests] == [0, 1]
    assert requests[1].ttft_s == 1.0


@pytest.mark.parametrize("start", [0.0, 1e9 + 0.1, 0.3])
def test_a_clock_that_stands_still_between_steps_never_stops_the_run(hash_model, start):
    """start + arrival - start is not always arrival in floating point."""
    clock = hash_model.Clock(start)
    engine = Engine(hash_model.Runner(clock, lambda batch: 0.1), CONFIG, clock)
    requests = [Request(i, [i], 1, arrival_s=0.7 * i) for i in range(8)]
    result = engine.run(requests)
    assert len(result.steps) == 8
    assert all(request.ttft_s == pytest.approx(0.1, abs=1e-6) for request in requests)


def test_an_empty_load_takes_no_time(serve):
    assert serve(CONFIG, []).result.duration_s == 0.0


def test_the_wall_clock_sleeps_until_a_time_and_not_into_the_past():
    clock = WallClock()
    began = clock.now()
    clock.sleep_until(began - 1)
    clock.sleep_until(began + 0.02)
    assert clock.now() - began >= 0.02


def test_steps_report_what_they_attend_to_and_hold(serve):
    """Prompts of 5 and 3 (block 4), outputs of 2: K/V at the end of each step."""
    run = serve(CONFIG, [Request(0, [1] * 5, 2), Request(1, [2] * 3, 2)])
    assert [(s.prefill_tokens, s.decode_rows, s.running, s.context_tokens) for s in run.steps] == [
        (8, 0, 2, 8),
        (0, 2, 2, 10),
    ]
    assert [(s.kv.reserved, s.kv.written, s.kv.tail) for s in run.steps] == [(12, 8, 4), (12, 10, 2)]


def test_steps_carry_the_bucket_and_the_device_time_that_the_runner_knows(hash_model):
    clock = hash_model.Clock()
    runner = hash_model.Runner(clock, lambda batch: 1.0)
    assert {(s.bucket, s.device_s) for s in Engine(runner, CONFIG, clock).run([Request(0, [1], 2)]).steps} == {
        (None, None)
    }
    runner.before_step = lambda batch: vars(runner).update(last_bucket=batch.num_tokens, last_device_s=0.5)
    steps = Engine(runner, CONFIG, clock).run([Request(0, [1] * 4, 2)]).steps
    assert [(s.bucket, s.device_s) for s in steps] == [(4, 0.5), (1, 0.5)]


def test_every_engine_configures_its_runner(hash_model):
    clock = hash_model.Clock()
    runner = hash_model.Runner(clock, lambda batch: 1.0)
    seen = []
    runner.configure = seen.append
    other = replace(CONFIG, block_size=8)
    Engine(runner, CONFIG, clock)
    Engine(runner, other, clock)
    assert seen == [CONFIG, other]

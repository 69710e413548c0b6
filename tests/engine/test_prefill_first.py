"""Prefill-first batching: schedules worked by hand, as (request, tokens) of each step's rows."""

from __future__ import annotations

from dataclasses import replace

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request

BASE = EngineConfig(
    max_model_len=64,
    num_kv_blocks=64,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=8,
    batching="prefill-first",
)


def rows(run) -> list[list[tuple[int, int]]]:
    return [[(request, tokens) for request, tokens, _ in step] for step in run.runner.batches]


def test_decodes_wait_while_a_prompt_is_computed_in_chunks(serve):
    """A prompt of 20 under a budget of 8 comes while request 0 decodes."""
    first, late = Request(0, [1], 4), Request(1, [2] * 20, 2, arrival_s=1.5)
    run = serve(BASE, [first, late])
    assert rows(run) == [[(0, 1)], [(0, 1)], [(1, 8)], [(1, 8)], [(1, 4)], [(0, 1), (1, 1)], [(0, 1)]]
    assert first.itl_s == [1.0, 4.0, 1.0]


def test_a_whole_prompt_runs_in_one_step_alone(serve):
    config = replace(BASE, enable_chunked_prefill=False)
    run = serve(config, [Request(0, [1], 4), Request(1, [2] * 20, 2, arrival_s=1.5)])
    assert rows(run) == [[(0, 1)], [(0, 1)], [(1, 20)], [(0, 1), (1, 1)], [(0, 1)]]


def test_the_rest_of_a_prompt_and_the_next_one_share_a_step(serve):
    run = serve(BASE, [Request(0, [1] * 10, 2), Request(1, [2] * 3, 2), Request(2, [3] * 6, 1)])
    assert rows(run) == [[(0, 8)], [(0, 2), (1, 3), (2, 3)], [(2, 3)], [(0, 1), (1, 1)]]


def test_decodes_go_on_where_the_waiting_prompt_finds_no_room(serve):
    """3 blocks of 4: the second prompt needs two and waits until the first request is done."""
    run = serve(replace(BASE, num_kv_blocks=3), [Request(0, [1] * 5, 4), Request(1, [2] * 5, 2)])
    assert rows(run) == [[(0, 5)], [(0, 1)], [(0, 1)], [(0, 1)], [(1, 5)], [(1, 1)]]


def test_a_preempted_request_comes_back_before_the_others_go_on(serve):
    """4 blocks of 4: as request 0 needs a third, request 1 goes, and comes back when request 0 has left."""
    requests = [Request(0, [1] * 7, 4), Request(1, [2] * 7, 4)]
    run = serve(replace(BASE, num_kv_blocks=4, max_num_batched_tokens=16), requests)
    assert rows(run) == [[(0, 7), (1, 7)], [(0, 1), (1, 1)], [(0, 1)], [(0, 1)], [(1, 9)], [(1, 1)]]
    assert [request.preemptions for request in requests] == [0, 1]


def test_rows_that_wait_are_counted_as_running_with_the_memory_they_hold(serve):
    run = serve(BASE, [Request(0, [1] * 4, 3), Request(1, [2] * 8, 1, arrival_s=0.5)])
    waiting = run.steps[1]
    assert (waiting.running, waiting.prefill_tokens, waiting.decode_rows) == (2, 8, 0)
    assert (waiting.context_tokens, waiting.kv.written, waiting.kv.reserved) == (8, 4 + 8, 12)

from __future__ import annotations

from dataclasses import replace

import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Row, make_scheduler
from inferdoc.errors import MeasurementError

BASE = EngineConfig(
    max_model_len=64, num_kv_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, batching="continuous"
)


def mixed(shared: int = 6) -> list[Request]:
    """Prompts of several lengths with a shared beginning, outputs of several lengths."""
    shapes = [(9, 5), (3, 1), (8, 12), (13, 2), (4, 7), (5, 1), (12, 3)]
    return [
        Request(i, [*range(100, 100 + min(shared, n)), *range(i, i + n - min(shared, n))], output)
        for i, (n, output) in enumerate(shapes)
    ]


@pytest.mark.parametrize("budget", [1, 3, 4, 5, 16, 512])
@pytest.mark.parametrize("caching", [False, True])
def test_trap_19_chunk_sizes_do_not_change_the_tokens_nor_exceed_the_budget(serve, budget, caching):
    run = serve(
        replace(BASE, max_num_batched_tokens=budget, max_num_seqs=min(4, budget), enable_prefix_caching=caching),
        mixed(),
    )
    assert max(sum(tokens for _, tokens, _ in rows) for rows in run.runner.batches) <= budget
    if budget == 512:
        assert run.runner.batches[0] == [(0, 9, False), (1, 3, False), (2, 8, False), (3, 13, False)]


def test_decodes_and_prompt_chunks_share_one_token_budget(serve):
    """Budget 4: request 1's prompt of 6 takes what request 0's decode leaves."""
    run = serve(replace(BASE, max_num_batched_tokens=4), [Request(0, [1, 2], 4), Request(1, [3] * 6, 1)])
    assert run.runner.batches == [
        [(0, 2, False), (1, 2, False)],
        [(0, 1, False), (1, 3, False)],
        [(0, 1, False), (1, 1, False)],
        [(0, 1, False)],
    ]


def test_without_chunking_a_prompt_goes_whole_and_only_an_oversized_one_exceeds_the_budget(serve):
    """Budget 6: prompts of 4 and 2 share a step, 20 goes where no other prompt does, beside the decodes."""
    config = replace(BASE, max_num_batched_tokens=6, enable_chunked_prefill=False)
    requests = [Request(0, [1] * 4, 3), Request(1, [2] * 2, 3), Request(2, [3] * 20, 2), Request(3, [4] * 3, 1)]
    run = serve(config, requests)
    assert run.runner.batches == [
        [(0, 4, False), (1, 2, False)],
        [(0, 1, False), (1, 1, False), (2, 20, False)],
        [(0, 1, False), (1, 1, False), (2, 1, False), (3, 3, False)],
    ]


@pytest.mark.parametrize("caching", [False, True])
def test_without_chunking_every_prompt_is_one_row(serve, caching):
    run = serve(replace(BASE, enable_chunked_prefill=False, enable_prefix_caching=caching), mixed())
    rows_of_request = [[t for rows in run.runner.batches for i, t, _ in rows if i == n] for n in range(7)]
    for request, rows in zip(run.result.requests, rows_of_request, strict=True):
        assert rows == [request.prompt_length - request.num_cached] + [1] * (request.output_length - 1)


@pytest.mark.parametrize("blocks", range(5, 13))
@pytest.mark.parametrize("budget", [4, 5, 64])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "static"])
def test_trap_5_a_tiny_pool_preempts_and_gives_the_same_tokens(serve, blocks, budget, caching, batching):
    """`serve` compares every output with the hash model's, which knows no pool."""
    config = replace(
        BASE,
        num_kv_blocks=blocks,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
        batching=batching,
    )
    run = serve(config, [Request(i, [7] * 5 + [i], 12) for i in range(6)])
    if blocks == 5 and not caching:
        assert sum(request.preemptions for request in run.result.requests) > 0
    assert all(len(request.token_times) == 12 for request in run.result.requests)


def test_trap_5_the_newest_request_is_preempted_and_comes_back_first(serve):
    """5 blocks of 4: four prompts of 4 fit; the newest two must go when the first two need their second blocks."""
    requests = [Request(i, [i] * 4, 5) for i in range(4)]
    run = serve(replace(BASE, num_kv_blocks=5), requests)
    assert [[(i, n) for i, n, _ in rows] for rows in run.runner.batches[:3]] == [
        [(0, 4), (1, 4), (2, 4), (3, 4)],
        [(0, 1), (1, 1)],
        [(0, 1), (1, 1)],
    ]
    assert [request.preemptions for request in requests] == [0, 0, 1, 1]
    assert requests[2].scheduled_s == requests[3].scheduled_s == 0.0
    # Both hold a first token already: they come back with 5 tokens to compute, in their first order.
    assert [(i, n) for i, n, _ in run.runner.batches[5]] == [(2, 5), (3, 5)]


def test_a_block_that_a_chunk_filled_in_passing_can_be_hit_in_the_next_step(serve):
    """Blocks of 4: the first prompt's 6 tokens fill one and begin another."""
    requests = [Request(0, [1, 2, 3, 4, 5, 6], 2), Request(1, [1, 2, 3, 4, 9], 2, arrival_s=0.5)]
    serve(replace(BASE, enable_prefix_caching=True), requests)
    assert [request.num_cached for request in requests] == [0, 4]


def test_trap_6_a_chunk_that_does_not_end_the_tokens_samples_nothing(serve):
    def check(engine, batch):
        for row in batch.rows:
            assert row.samples == (row.end == len(row.request.tokens))

    run = serve(replace(BASE, max_num_batched_tokens=4), mixed(), before_step=check)
    assert sum(len(request.output) for request in run.result.requests) == 31


@pytest.mark.parametrize("output", [1, 2, 7])
def test_every_request_gets_exactly_its_forced_length(serve, output):
    """vLLM#18687: a benchmark counted tokens that were asked for and never produced."""
    run = serve(BASE, [Request(i, [i, 1, 2], output) for i in range(5)])
    assert [len(request.output) for request in run.result.requests] == [output] * 5
    assert [len(request.token_times) for request in run.result.requests] == [output] * 5


def test_a_request_that_stays_short_fails_the_run(serve):
    def lose_a_token(engine, batch):
        if len(engine.steps) == 3:
            batch.rows[0].request.output_length += 1
            engine.scheduler.running.remove(batch.rows[0].request)
            engine.scheduler.kv.free(batch.rows[0].request)
            batch.rows.pop(0)

    with pytest.raises(MeasurementError, match="request 0 produced 3 of 7 tokens"):
        serve(BASE, [Request(0, [1, 2], 6), Request(1, [1, 2], 6)], before_step=lose_a_token)


@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "static"])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("at_step", range(8))
@pytest.mark.parametrize("victim", range(4))
def test_trap_20_abort_at_every_step_leaks_nothing(batching, caching, at_step, victim):
    """Waiting, half way through its prompt, decoding, padding or done: abort twice, while a step runs."""
    requests = [Request(i, [5] * 9 + [i], 2 + i % 2) for i in range(4)]
    config = replace(BASE, num_kv_blocks=9, max_num_batched_tokens=8, batching=batching, enable_prefix_caching=caching)
    scheduler = make_scheduler(config)
    for request in requests:
        scheduler.add(request)
    steps = 0
    while scheduler.has_work:
        batch = scheduler.schedule()
        assert batch.rows
        if steps == at_step:
            scheduler.abort(requests[victim])
            scheduler.abort(requests[victim])
        scheduler.update(batch, [1] * sum(row.samples for row in batch.rows), now=float(steps))
        scheduler.check_integrity()
        steps += 1
        assert steps < 100
    scheduler.abort(requests[victim])
    scheduler.check_integrity()
    assert scheduler.kv.pool.num_free == 9
    assert all(request.completed for request in requests if not request.aborted)


def test_trap_20_aborting_a_row_leaves_the_other_rows_their_tokens():
    scheduler = make_scheduler(replace(BASE, enable_prefix_caching=True))
    requests = [Request(i, [i] * 5, 2) for i in range(3)]
    for request in requests:
        scheduler.add(request)
    batch = scheduler.schedule()
    scheduler.abort(requests[1])
    scheduler.update(batch, [10, 11, 12], now=1.0)
    assert [request.output for request in requests] == [[10], [], [12]]


def test_trap_20_a_request_aborted_before_it_came_is_not_served(serve):
    requests = [Request(0, [1], 2), Request(1, [2], 2, arrival_s=5.0)]
    requests[1].aborted = True
    run = serve(BASE, requests)
    assert len(run.steps) == 2
    assert requests[1].e2e_s is None


def test_an_aborted_request_has_no_end_to_end_time():
    request = Request(0, [1], 3)
    request.tokens.extend([4, 5])
    request.token_times += [1.0, 2.0]
    request.aborted = True
    assert request.finished
    assert (request.ttft_s, request.e2e_s, request.tpot_s) == (1.0, None, None)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(4, [1] * 60, 5), "request 4 has 65 tokens; max_model_len is 64"),
        (Request(4, [1] * 30, 20), "request 4 needs 49 tokens of KV under paged reservation; the pool holds 48"),
        (Request(4, [], 5), "request 4 has 0 prompt tokens and 5 to generate"),
        (Request(4, [1], 0), "request 4 has 1 prompt tokens and 0 to generate"),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_the_reason(request_, message):
    scheduler = make_scheduler(replace(BASE, num_kv_blocks=12))
    with pytest.raises(MeasurementError, match=message):
        scheduler.add(request_)
    assert not scheduler.has_work


def test_a_request_cannot_run_twice(serve):
    requests = [Request(0, [1], 2)]
    serve(BASE, requests)
    with pytest.raises(AssertionError, match="runs once"):
        serve(BASE, requests)


def test_no_more_requests_run_than_max_num_seqs(serve):
    run = serve(BASE, [Request(i, [1], 3) for i in range(9)])
    assert max(len(rows) for rows in run.runner.batches) == 4
    assert [step.waiting for step in run.steps] == [5, 5, 5, 1, 1, 1, 0, 0, 0]


def test_requests_start_in_order_of_arrival(serve):
    requests = [Request(0, [1], 5, arrival_s=3.0), Request(1, [1], 5, arrival_s=0.0), Request(2, [1], 5, arrival_s=1.0)]
    serve(replace(BASE, max_num_seqs=1), requests)
    assert [request.scheduled_s for request in requests] == [10.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("computed", "tokens", "padding", "decodes"),
    [(4, 1, False, True), (3, 1, False, False), (0, 4, False, False), (4, 1, True, False)],
)
def test_a_decode_is_one_output_token(computed, tokens, padding, decodes):
    """A prompt of 4: its last token alone is still prompt."""
    request = Request(0, [1, 2, 3, 4], 3)
    request.num_computed = computed
    assert Row(request, tokens, samples=not padding, padding=padding).decodes is decodes


@pytest.mark.parametrize("reservation", ["max-model-len", "per-request"])
@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "static"])
def test_contiguous_reservations_give_the_same_tokens_and_never_preempt(serve, reservation, batching):
    config = replace(BASE, num_kv_blocks=24, max_model_len=32, reservation=reservation, batching=batching)
    run = serve(config, mixed())
    assert sum(request.preemptions for request in run.result.requests) == 0
    if reservation == "max-model-len":
        assert max(step.running for step in run.steps) == 24 * 4 // 32


def test_every_token_of_a_step_is_prompt_decode_or_padding(serve):
    run = serve(replace(BASE, batching="static"), mixed())
    for step, rows in zip(run.steps, run.runner.batches, strict=True):
        assert step.prefill_tokens + step.decode_rows + step.padded_rows == sum(tokens for _, tokens, _ in rows)
    assert sum(step.prefill_tokens for step in run.steps) == sum(r.prompt_length for r in run.result.requests)
    assert sum(step.decode_rows for step in run.steps) == sum(r.output_length - 1 for r in run.result.requests)

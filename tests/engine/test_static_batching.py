from __future__ import annotations

from dataclasses import replace

import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request

STATIC = EngineConfig(
    max_model_len=2048,
    num_kv_blocks=4096,
    block_size=16,
    max_num_seqs=3,
    max_num_batched_tokens=512,
    batching="static",
)


def requests(outputs: list[int], prompt: int = 2) -> list[Request]:
    return [Request(i, [i] * prompt, output) for i, output in enumerate(outputs)]


def waste(steps) -> float:
    """Padded rows over all rows of output."""
    rows = sum(step.running for step in steps)
    return sum(step.padded_rows for step in steps) / rows


def test_finished_rows_go_on_as_padding_until_the_batch_is_done(serve):
    """Outputs 1, 2, 4 in a batch of 3: 4 steps x 3 rows for 7 tokens, so 5 of 12 are padding. Then a batch of one."""
    run = serve(STATIC, requests([1, 2, 4, 2]))
    assert run.runner.batches == [
        [(0, 2, False), (1, 2, False), (2, 2, False)],
        [(0, 1, True), (1, 1, False), (2, 1, False)],
        [(0, 1, True), (1, 1, True), (2, 1, False)],
        [(0, 1, True), (1, 1, True), (2, 1, False)],
        [(3, 2, False)],
        [(3, 1, False)],
    ]
    assert [step.padded_rows for step in run.steps] == [0, 1, 2, 2, 0, 0]
    assert waste(run.steps[:4]) == 5 / 12


@pytest.mark.parametrize(
    ("outputs", "expected"), [([64] * 32, 0.0), ([16] * 31 + [1024], 1 - 1520 / 32768), ([3], 0.0), ([1] * 32, 0.0)]
)
def test_waste_is_one_less_sum_over_batch_times_longest(serve, outputs, expected):
    """Equal lengths waste nothing (intel/neural-speed#269)."""
    config = replace(STATIC, max_num_seqs=32)
    assert waste(serve(config, requests(outputs)).steps) == pytest.approx(expected)


def test_padding_adds_no_tokens_and_no_times(serve):
    run = serve(STATIC, requests([1, 2, 4]))
    assert [request.token_times for request in run.result.requests] == [[1.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]


def test_continuous_batching_of_the_same_load_pads_nothing(serve):
    run = serve(replace(STATIC, batching="continuous"), requests([1, 2, 4, 2]))
    assert len(run.steps) == 4
    assert sum(step.padded_rows for step in run.steps) == 0


def test_a_batch_is_full_even_where_its_prompts_exceed_one_steps_budget(serve):
    """Three prompts of 6 under a budget of 8: computed over three steps, one batch all the same."""
    run = serve(replace(STATIC, max_num_batched_tokens=8), requests([3, 3, 3, 3], prompt=6))
    assert run.runner.batches == [
        [(0, 6, False), (1, 2, False)],
        [(0, 1, False), (1, 4, False), (2, 3, False)],
        [(0, 1, False), (1, 1, False), (2, 3, False)],
        [(0, 1, True), (1, 1, False), (2, 1, False)],
        [(0, 1, True), (1, 1, True), (2, 1, False)],
        [(3, 6, False)],
        [(3, 1, False)],
        [(3, 1, False)],
    ]


def test_a_batch_is_full_without_chunking_too(serve):
    config = replace(STATIC, max_num_batched_tokens=8, enable_chunked_prefill=False)
    run = serve(config, requests([4, 4, 4], prompt=6))
    assert [len(rows) for rows in run.runner.batches] == [1, 2, 3, 3, 3, 3]


def test_nothing_joins_a_batch_that_has_started(serve):
    late = Request(9, [9, 9], 1, arrival_s=0.5)
    run = serve(STATIC, [*requests([3, 3]), late])
    assert late.scheduled_s == 3.0
    assert [len(rows) for rows in run.runner.batches] == [2, 2, 2, 1]


def test_a_batch_is_limited_by_the_pool(serve):
    """Two regions of 32 tokens fit into 64: batches of two, though three might run."""
    config = replace(STATIC, num_kv_blocks=4, max_model_len=32, reservation="max-model-len")
    run = serve(config, requests([2, 1, 1, 1]))
    assert [[(i, padding) for i, _, padding in rows] for rows in run.runner.batches] == [
        [(0, False), (1, False)],
        [(0, False), (1, True)],
        [(2, False), (3, False)],
    ]


@pytest.mark.parametrize("caching", [False, True])
def test_padding_rewrites_no_block_that_another_request_reads(serve, caching):
    """The hash model checks every K/V that a row reads; the last prompt token of each fills a block."""
    config = replace(STATIC, block_size=2, num_kv_blocks=64, enable_prefix_caching=caching)
    same = [Request(i, [1, 2, 3, 4], output) for i, output in enumerate([1, 5, 3, 1, 5, 2])]
    run = serve(config, same)
    assert [request.num_cached for request in same] == ([0, 0, 0, 2, 2, 2] if caching else [0] * 6)
    assert sum(step.padded_rows for step in run.steps) == (4 + 0 + 2) + (4 + 0 + 3)

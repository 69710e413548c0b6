from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest

from inferdoc.engine.batch import BatchArrays, StepInput
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch, Row


def test_a_step_of_a_chunk_a_decode_and_a_padded_row_is_packed_as_worked_by_hand():
    chunk = Request(0, [10, 11, 12, 13, 14, 15], 1)
    chunk.num_computed, chunk.block_ids = 1, [7, 2, 5]
    decode = Request(1, [20, 21], 3)
    decode.tokens.append(22)
    decode.num_computed, decode.block_ids = 2, [4, 9]
    done = Request(2, [30], 2)
    done.tokens.extend([31, 32])
    done.num_computed, done.block_ids = 2, [0]
    rows = [
        Row(chunk, 3, samples=False),
        Row(decode, 1, samples=True),
        Row(done, 1, samples=False, padding=True),
    ]
    step = StepInput.from_batch(Batch(rows, block_size=2))
    assert step.token_ids.tolist() == [11, 12, 13, 22, 31]
    assert step.positions.tolist() == [1, 2, 3, 2, 1]
    assert step.slots.tolist() == [7 * 2 + 1, 2 * 2, 2 * 2 + 1, 9 * 2, 1]
    assert step.query_starts.tolist() == [0, 3, 4, 5]
    assert step.lengths.tolist() == [4, 3, 2]
    assert step.block_tables.tolist() == [[7, 2], [4, 9], [0, 0]]
    assert step.sampled.tolist() == [3]


def test_a_step_that_samples_nothing_selects_no_logits():
    request = Request(0, [1, 2, 3], 1)
    request.block_ids = [0]
    step = StepInput.from_batch(Batch([Row(request, 2, samples=False)], block_size=4))
    assert step.sampled.tolist() == []


def test_trap_10_slots_of_distant_blocks_do_not_overflow_32_bits():
    request = Request(0, [1], 1)
    request.block_ids = [2**31 // 16 + 3]
    step = StepInput.from_batch(Batch([Row(request, 1, samples=True)], block_size=16))
    assert step.slots.tolist() == [2**31 + 48]
    assert {array.dtype for array in (step.slots, step.block_tables, step.positions)} == {np.dtype(np.int64)}


def packed_one_by_one(batch: Batch) -> dict[str, list]:
    """The arrays as lists, token by token and without numpy."""
    size = batch.block_size
    parts = [(row, row.start, row.start + row.num_tokens) for row in batch.rows]
    counts = [row.num_tokens for row in batch.rows]
    used = [row.request.block_ids[: -(-end // size)] for row, _, end in parts]
    widest = max(map(len, used))
    return {
        "token_ids": [row.request.tokens[at] for row, start, end in parts for at in range(start, end)],
        "positions": [at for _, start, end in parts for at in range(start, end)],
        "slots": [
            row.request.block_ids[at // size] * size + at % size
            for row, start, end in parts
            for at in range(start, end)
        ],
        "query_starts": [sum(counts[:index]) for index in range(len(counts) + 1)],
        "lengths": [end for _, _, end in parts],
        "block_tables": [blocks + [0] * (widest - len(blocks)) for blocks in used],
        "sampled": [sum(counts[: index + 1]) - 1 for index, row in enumerate(batch.rows) if row.samples],
    }


def check_step(step: StepInput, batch: Batch) -> None:
    expected = packed_one_by_one(batch)
    assert {f.name for f in fields(step)} == {*expected, "block_size"}
    for name, values in expected.items():
        array = getattr(step, name)
        assert array.tolist() == values, name
        assert array.dtype == np.int64, name


@pytest.mark.parametrize("batching", ["continuous", "prefill-first", "static"])
@pytest.mark.parametrize("reservation", ["paged", "peak-forecast", "max-model-len", "per-request"])
def test_arrays_kept_over_any_schedule_are_those_of_each_step_alone(serve, batching, reservation):
    """One `BatchArrays` for many runs: requests join, leave, are preempted, aborted and come back; rows move."""
    arrays = BatchArrays()
    preemptions = 0

    for seed in range(25):
        rng = random.Random(seed)
        size = rng.choice([1, 2, 4, 8])
        config = EngineConfig(
            max_model_len=48,
            num_kv_blocks=-(-48 // size) + rng.randrange(6),
            block_size=size,
            max_num_seqs=rng.randint(1, 6),
            max_num_batched_tokens=rng.choice([6, 9, 64]),
            batching=batching,
            enable_chunked_prefill=rng.random() < 0.7,
            reservation=reservation,
            enable_prefix_caching=reservation in ("paged", "peak-forecast") and rng.random() < 0.5,
        )
        requests = []
        for number in range(8):
            prompt = [rng.randrange(2) for _ in range(rng.randint(1, 30))]
            requests.append(Request(number, prompt, rng.randint(1, 48 - len(prompt)), rng.choice([0.0, 3.0, 9.0])))

        def before_step(engine, batch, rng=rng, requests=requests):
            step = arrays.build(batch)
            check_step(step, batch)
            check_step(StepInput.from_batch(batch), batch)
            check_step(arrays.build(batch), batch)
            victim = rng.choice(requests)
            if rng.random() < 0.05 and victim not in [row.request for row in batch.rows]:
                engine.scheduler.abort(victim)

        serve(config, requests, before_step=before_step)
        preemptions += sum(request.preemptions for request in requests)
    assert (preemptions > 0) == (reservation == "paged")


def test_a_request_that_is_computed_again_from_an_earlier_token_keeps_no_later_block():
    """Verification of drafts is timed so: the same blocks, fewer tokens."""
    request = Request(0, [1, 2, 3, 4, 5], 1)
    request.block_ids, request.num_computed = [3, 1, 2], 4
    arrays = BatchArrays()
    assert arrays.build(Batch([Row(request, 1, samples=True)], 2)).block_tables.tolist() == [[3, 1, 2]]
    request.num_computed = 0
    other = Request(1, [1] * 6, 1)
    other.block_ids = [4, 5, 6]
    rows = [Row(request, 2, samples=False), Row(other, 6, samples=True)]
    assert arrays.build(Batch(rows, 2)).block_tables.tolist() == [[3, 0, 0], [4, 5, 6]]


def test_the_first_tables_are_contiguous():
    request = Request(0, [1, 2, 3], 1)
    request.block_ids = [0, 1]
    step = StepInput.from_batch(Batch([Row(request, 3, samples=True)] * 2, 2))
    assert step.block_tables.flags.c_contiguous

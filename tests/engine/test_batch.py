from __future__ import annotations

import numpy as np

from inferdoc.engine.batch import StepInput
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch, Row


def test_a_step_of_a_chunk_a_decode_and_a_padded_row_is_packed_as_worked_by_hand():
    chunk = Request(0, [10, 11, 12, 13, 14, 15], 1)
    chunk.num_computed, chunk.block_ids = 1, [7, 2, 5]
    decode = Request(1, [20, 21], 3)
    decode.tokens.append(22)
    decode.num_computed, decode.block_ids = 2, [4, 9]
    done = Request(2, [30], 2)
    done.tokens += [31, 32]
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

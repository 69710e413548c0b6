"""Waste of static batches: D32's numbers, a plain loop, and every possible division of a few requests."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces import read_trace
from inferdoc.traces.batch_waste import analyse_batch_waste, static_waste


def waste_of(batches):
    return 1 - sum(map(sum, batches)) / sum(len(batch) * max(batch) for batch in batches)


def divided(outputs, size):
    return [outputs[at : at + size] for at in range(0, len(outputs), size)]


def test_equal_lengths_waste_nothing(trace_of):
    assert static_waste(np.full(32, 64), 8) == 0
    found = analyse_batch_waste(trace_of(output_tokens=[64] * 33))
    assert [entry.batch_size for entry in found.sizes] == [2, 4, 8, 16, 32, 64, 128, 256]
    for entry in found.sizes:
        assert entry.arrival_order_share == entry.sorted_nearby_share == entry.sorted_all_share == 0


def test_one_long_output_holds_a_batch_of_32(trace_of):
    outputs = [16] * 31 + [1024]
    assert static_waste(np.array(outputs), 32) == pytest.approx(1 - 1520 / 32_768)
    entry = next(e for e in analyse_batch_waste(trace_of(output_tokens=outputs)).sizes if e.batch_size == 32)
    assert (entry.useful_steps, entry.slot_steps) == (1520, 32_768)
    assert entry.arrival_order_share == pytest.approx(0.9536, abs=1e-4)


def test_94_useful_of_144_slot_steps():
    outputs = np.array([24, 20, 10, 8, 12, 6, 8, 6])
    assert outputs.sum() == 94
    assert static_waste(outputs, 4) == pytest.approx(1 - 94 / (4 * 24 + 4 * 12))
    assert static_waste(outputs, 4) == pytest.approx(0.347, abs=5e-4)


@settings(deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=300), st.integers(1, 40))
def test_arrival_order_is_the_plain_loop(outputs, size):
    assert static_waste(np.array(outputs), size) == pytest.approx(waste_of(divided(outputs, size)), abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from([2, 3, 4]))
def test_sorting_all_is_the_best_of_every_division(trace_of, outputs, size):
    n = len(outputs)
    # The smaller batch may stand in any place.
    rest = n % size
    sizes = [[size] * at + [rest] + [size] * (n // size - at) for at in range(n // size + 1)] if rest else None
    best = 1.0
    for order in set(permutations(outputs)):
        for division in sizes or [[size] * (n // size)]:
            ends = np.cumsum(division)
            batches = [list(order[end - length : end]) for end, length in zip(ends, division, strict=True)]
            best = min(best, waste_of(batches))
    found = analyse_batch_waste(trace_of(output_tokens=outputs), (size,)).sizes[0]
    assert found.sorted_all_share == pytest.approx(best, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=400))
def test_sorting_nearby_lies_between_no_sorting_and_all(trace_of, outputs):
    for entry in analyse_batch_waste(trace_of(output_tokens=outputs)).sizes:
        assert entry.sorted_all_share <= entry.sorted_nearby_share + 1e-12
        assert entry.sorted_nearby_share <= entry.arrival_order_share + 1e-12


def test_sorting_nearby_sorts_eight_batches_at_a_time(trace_of):
    outputs = np.random.default_rng(3).integers(1, 2000, 8 * 4 * 5).tolist()
    batches = [batch for stretch in divided(outputs, 32) for batch in divided(sorted(stretch), 4)]
    entry = analyse_batch_waste(trace_of(output_tokens=outputs), (4,)).sizes[0]
    assert entry.sorted_nearby_share == pytest.approx(waste_of(batches))


def test_lengths_beyond_32_bits_do_not_wrap(trace_of):
    outputs = [2**31 - 1] * 3 + [2**31 - 2]
    entry = analyse_batch_waste(trace_of(output_tokens=outputs), (256,)).sizes[0]
    assert entry.slot_steps == 4 * (2**31 - 1)
    assert entry.sorted_all_share == pytest.approx(1 / (4 * (2**31 - 1)))
    longer = analyse_batch_waste(trace_of(output_tokens=[2**33, 2**33 - 4]), (2,)).sizes[0]
    assert longer.sorted_nearby_share == pytest.approx(4 / 2**34)


def test_requests_without_outputs_are_not_batched(trace_of):
    found = analyse_batch_waste(trace_of(input_tokens=[1, 2, 3], output_tokens=[4, None, 8]), (2,))
    assert (found.n, found.sizes[0].arrival_order_share) == (2, 0.25)
    nothing = analyse_batch_waste(trace_of(input_tokens=[1, 2]))
    assert (nothing.sizes, nothing.reason) == ([], "no request has an output length")


@pytest.mark.parametrize(("outputs", "size"), [([], 4), ([3], 0)])
def test_no_batch_is_refused(outputs, size):
    with pytest.raises(ValueError, match=f"batches of {size}"):
        static_waste(np.array(outputs, dtype=np.int64), size)


def test_mooncake_wastes_more_the_larger_the_batch(shared):
    trace = read_trace(shared / "traces" / "mooncake" / "conversation_trace.jsonl")
    outputs = trace.rows["output_tokens"].to_list()
    found = {entry.batch_size: entry for entry in analyse_batch_waste(trace).sizes}
    for size in (8, 32):
        assert found[size].arrival_order_share == pytest.approx(waste_of(divided(outputs, size)))
    shares = [entry.arrival_order_share for entry in found.values()]
    assert shares == sorted(shares)

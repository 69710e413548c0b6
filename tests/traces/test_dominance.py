"""Sums over earlier, not larger values, against a comparison of all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces.dominance import earlier_not_above


def all_pairs(value, weight):
    return [int(weight[:i][value[:i] <= value[i]].sum()) for i in range(len(value))]


# Below, at and above a block of 64, and of 64 blocks joined.
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 200, 4095, 4096, 4097, 5000])
@pytest.mark.parametrize("values", [1, 7, 10**6])
def test_against_all_pairs(length, values):
    draw = np.random.default_rng(length)
    value, weight = draw.integers(0, values, length), draw.integers(0, 9, length)
    assert earlier_not_above(value, weight).tolist() == all_pairs(value, weight)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**40)), max_size=150))
def test_any_small_case(pairs):
    value, weight = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    assert earlier_not_above(value, weight).tolist() == all_pairs(value, weight)


def test_sorted_values_take_three_levels():
    length = 64**3 + 1
    value = np.arange(length)
    assert (earlier_not_above(value, np.full(length, 3)) == 3 * value).all()
    assert not earlier_not_above(value[::-1].copy(), np.full(length, 3)).any()

"""Where a clock starts again, and disorder that is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces.restarts import restarts

SECOND = 10**9


def a_log(seed, rows, reach=4.0):
    """Arrivals at random, each row moved by less than `reach` places."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.uniform(0.2, 1.8, rows) * SECOND).astype(np.int64)
    return times[np.argsort(np.arange(rows) + random.uniform(0, reach, rows))]


def in_order_of_completion(seed, rows, mean_share, *, heavy):
    """Arrivals at random; durations are `mean_share` of the whole time on average."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(SECOND, rows))
    drawn = random.lognormal(0, 2, rows) if heavy else random.exponential(1, rows)
    return times[np.argsort(times + drawn * mean_share * times[-1])].astype(np.int64)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(40, 200), st.integers(24, 200), st.floats(0, 0.2))
def test_two_logs_one_after_the_other_are_two_stretches(seed, first, second, offset):
    before, behind = a_log(seed, first), a_log(seed + 1, second)
    behind = behind + int(offset * before.max())
    (found,) = restarts(np.concatenate([before, behind]))
    assert abs(found - first) <= 3


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(150, 600), st.sampled_from([0.001, 0.01, 0.05, 0.2, 0.5, 2.0]), st.booleans())
def test_a_log_in_order_of_completion_is_one_stretch(seed, rows, mean_share, heavy):
    assert restarts(in_order_of_completion(seed, rows, mean_share, heavy=heavy)) == []


@pytest.mark.parametrize("swapped", [5, 500, 990])
@pytest.mark.parametrize("begin", [0, 9000])
@pytest.mark.parametrize("rows_behind", [6, 1000])
def test_one_pair_out_of_order_hides_no_restart(swapped, begin, rows_behind):
    before, behind = np.arange(1000) * 60, begin + np.arange(rows_behind) * 60
    times = np.concatenate([before, behind])
    times[[swapped, swapped + 1]] = times[[swapped + 1, swapped]]
    assert restarts(times) == [1000]


def test_each_restart_is_judged_by_the_stretch_before_it():
    assert restarts(np.concatenate([np.arange(1000), np.arange(100) // 5, np.arange(300)])) == [1000, 1100]


def test_a_straggler_or_too_few_rows_are_no_restart():
    times = np.arange(1000)
    times[[400, 700, 999]] = [3, 20, 1]
    assert restarts(times) == []
    assert restarts(np.array([*range(100), 0, 1, 2, 3])) == []
    assert restarts(np.array([0, 5, 1, 7])) == []


def test_long_requests_that_come_out_last_in_order_of_arrival_do_not_hide_among_the_short_ones():
    # Each twentieth request takes 0.8 of the whole time; those of the end are written after all others.
    arrivals = np.arange(4000.0)
    durations = np.where(np.arange(4000) % 20 == 0, 3200.0, 1.0)
    assert restarts(arrivals[np.argsort(arrivals + durations)].astype(np.int64)) == []


def test_rows_without_any_order_have_no_restart():
    times = np.random.default_rng(0).integers(0, 10**12, 50_000)
    assert restarts(times) == []

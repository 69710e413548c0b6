"""Common runs of two prompts: exact where they begin and end, and found wherever they stand."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces.breaker_alignment import TOKENS, Earlier, Prompt, Run, align, anchors, common_prefix


def prompt(*parts):
    return Prompt(np.concatenate([np.asarray(part, np.uint64) for part in parts]), TOKENS)


def some(count, start):
    return np.random.default_rng(start).integers(0, 50_000, count)


A, B, C = some(200, 1), some(100, 2), some(300, 3)


def test_runs_are_exact():
    later, earlier = prompt(A, [1, 2, 3], B, [4], C), prompt(A, [9], B, [8, 8], C, [7])
    assert align(later, earlier, TOKENS) == [Run(0, 0, 200), Run(203, 201, 100), Run(304, 303, 300)]


def test_a_run_shorter_than_the_least_is_none():
    shared = some(15, 5)
    assert align(prompt([1], shared, some(50, 6)), prompt([2], shared, some(50, 7)), TOKENS) == [Run(0, 0, 0)]


@pytest.mark.parametrize("start", range(0, 40, 7))
def test_any_run_of_the_least_length_has_an_anchor(start):
    shared = some(16, start)
    later, earlier = prompt(some(start + 1, 80), shared, some(40, 81)), prompt(some(3, 82), shared, some(60, 83))
    assert align(later, earlier, TOKENS)[1:] == [Run(start + 1, 3, 16)]


def test_the_partner_shares_most_and_is_the_latest_of_equals():
    earlier = Earlier()
    for index, parts in enumerate([(A, C), (A, B), (A, C), (some(300, 9),)]):
        earlier.add(index, prompt(*parts))
    assert earlier.partner(prompt([5], C)) == 2
    assert earlier.partner(prompt(B, [5], A)) == 1
    assert earlier.partner(prompt(some(200, 10))) is None


@given(st.lists(st.integers(0, 2), max_size=120), st.lists(st.integers(0, 2), max_size=120))
@settings(max_examples=200, deadline=None)
def test_runs_agree_and_never_overlap(first, second):
    later, earlier = prompt(first), prompt(second)
    runs = align(later, earlier, TOKENS)
    for run in runs:
        assert first[run.a : run.a + run.length] == second[run.b : run.b + run.length]
    for before, after in itertools.pairwise(runs):
        assert before.a + before.length <= after.a
        assert before.b + before.length <= after.b
        assert after.length >= TOKENS.run
    assert runs[0].length == next(
        (n for n, (x, y) in enumerate(zip(first, second, strict=False)) if x != y), min(len(first), len(second))
    )


def test_the_common_prefix_of_long_prompts():
    units = np.arange(100_000, dtype=np.uint64)
    changed = units.copy()
    changed[77_777] = 0
    assert common_prefix(units, changed) == 77_777
    assert common_prefix(units, units[:500]) == 500
    assert common_prefix(units[:0], units) == 0


def test_time_grows_linearly():
    def seconds(count):
        units = some(count, 1).astype(np.uint64)
        begun = time.process_time()
        anchors(units, TOKENS)
        return time.process_time() - begun

    assert seconds(2_000_000) < 40 * max(seconds(200_000), 0.005)

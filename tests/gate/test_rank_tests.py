from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from inferdoc.rank_tests import (
    benjamini_hochberg,
    detectable,
    fewest_pairs,
    holm,
    mann_whitney_counts,
    mann_whitney_p,
    pairs_for_power,
    shift_estimate,
    shift_interval,
    shift_upper,
    signed_rank_p,
    signed_rank_upper,
)
from inferdoc.statistics import signed_rank_interval

SMALL = st.integers(-4, 4).map(float)
"""Few values, so that ties and zeros are common."""


def worst_order_p(differences: list[float]) -> float:
    """By enumeration of all sign patterns: ranks of |d|, ties broken so that what speaks for a shift ranks lowest."""
    ordered = sorted(differences, key=lambda d: (abs(d), d <= 0))
    statistic = sum(rank for rank, d in enumerate(ordered, 1) if d > 0)
    n = len(differences)
    sums = [sum(r for r, sign in enumerate(signs, 1) if sign) for signs in itertools.product((0, 1), repeat=n)]
    return sum(total >= statistic for total in sums) / 2**n


@pytest.mark.parametrize("n", [1, 5, 8, 12, 20])
def test_the_signed_rank_p_is_scipys_without_ties(n):
    rng = np.random.default_rng(n)
    for centre in (-0.5, 0.0, 0.5, 3.0):
        differences = rng.normal(centre, 1, n)
        expected = stats.wilcoxon(differences, alternative="greater", method="exact").pvalue
        assert signed_rank_p(differences) == pytest.approx(expected, rel=1e-12)


@given(st.lists(SMALL, min_size=1, max_size=8))
def test_with_ties_and_zeros_the_signed_rank_p_is_that_of_the_least_favourable_order(differences):
    assert signed_rank_p(differences) == worst_order_p(differences)


@given(st.lists(st.integers(0, 3).map(float), min_size=1, max_size=7), st.sampled_from([0.02, 0.05, 0.1, 0.25, 0.5]))
def test_the_level_holds_whatever_the_ties(sizes, alpha):
    """Of all signs that the differences could have had, at most a share of alpha is called a shift."""
    ps = [signed_rank_p(np.multiply(signs, sizes)) for signs in itertools.product((-1, 1), repeat=len(sizes))]
    assert np.mean([p <= alpha for p in ps]) <= alpha


@pytest.mark.parametrize(("n", "m"), [(1, 3), (3, 3), (5, 5), (8, 8), (4, 9), (20, 3)])
def test_the_mann_whitney_p_is_scipys_without_ties(n, m):
    rng = np.random.default_rng([n, m])
    for shift in (-0.5, 0.0, 0.7, 5.0):
        a, b = rng.normal(0, 1, n), rng.normal(shift, 1, m)
        expected = stats.mannwhitneyu(b, a, alternative="greater", method="exact").pvalue
        assert mann_whitney_p(a, b) == pytest.approx(expected, rel=1e-12)


@given(st.lists(SMALL, min_size=1, max_size=5), st.lists(SMALL, min_size=1, max_size=4))
def test_with_ties_the_mann_whitney_p_is_that_of_the_least_favourable_order(a, b):
    """By enumeration of all places that the values of b can take among the ranks."""
    pooled = sorted([(value, 1) for value in a] + [(value, 0) for value in b])
    places = [rank for rank, (_, of_a) in enumerate(pooled) if not of_a]
    sums = [sum(chosen) for chosen in itertools.combinations(range(len(pooled)), len(b))]
    assert mann_whitney_p(a, b) == sum(total >= sum(places) for total in sums) / len(sums)


def test_mann_whitney_counts_are_those_of_every_order():
    """Two and two: U of aabb, abab, abba, baab, baba, bbaa is 4, 3, 2, 2, 1, 0."""
    assert mann_whitney_counts(2, 2) == (1, 1, 2, 1, 1)
    assert sum(mann_whitney_counts(30, 30)) == math.comb(60, 30)


@pytest.mark.parametrize(
    ("alpha", "pairs", "a_side"), [(0.05, 5, 3), (0.025, 6, None), (0.0125, 7, 5), (0.005, 8, None), (0.001, 10, 7)]
)
def test_smallest_numbers_able_to_reach_alpha(alpha, pairs, a_side):
    """The specification's list: signed-rank .05->5, .025->6, .0125->7, .005->8; U-test .05->3, .0125->5, .001->7."""
    assert fewest_pairs(alpha) == pairs
    assert signed_rank_p([1.0 + i for i in range(pairs)]) <= alpha < signed_rank_p([1.0 + i for i in range(pairs - 1)])
    if a_side is not None:
        best = {n: mann_whitney_p(range(n), range(n, 2 * n)) for n in (a_side - 1, a_side)}
        assert best[a_side] <= alpha < best[a_side - 1]


@given(st.lists(SMALL, min_size=5, max_size=9))
def test_p_and_bound_agree_even_with_ties(differences):
    """The bound of the reversed differences is below 0 exactly where the shift is significant."""
    upper = signed_rank_upper([-d for d in differences], 0.95)
    assert (signed_rank_p(differences) <= 0.05) == (upper < 0)


@given(st.lists(SMALL, min_size=3, max_size=6), st.lists(SMALL, min_size=3, max_size=6))
def test_p_and_bound_of_a_shift_agree_even_with_ties(a, b):
    """Three against three included, where the smallest p is 1/20 = 0.05 itself."""
    upper = shift_upper(b, a, 0.95)
    assert (mann_whitney_p(a, b) <= 0.05) == (upper < 0)


def test_bounds_need_enough_values():
    assert signed_rank_upper([1.0] * 4, 0.95) is None
    assert signed_rank_upper([1.0, 2.0, 3.0, 4.0, 9.0], 0.95) == 9.0
    assert shift_interval([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 0.95) is None
    assert shift_interval([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], 0.95) == (1.0, 7.0)
    assert shift_upper([1.0, 2.0], [4.0, 5.0, 6.0], 0.95) is None


@pytest.mark.parametrize(("n", "m"), [(5, 5), (8, 8), (4, 9)])
def test_a_shift_lies_inside_the_interval_exactly_where_scipys_test_does_not_reject_it(n, m):
    rng = np.random.default_rng([n, m])
    a, b = rng.normal(0, 1, n), rng.normal(0.4, 1, m)
    low, high = shift_interval(a, b, 0.95)
    assert low <= shift_estimate(a, b) <= high

    def p(shift: float) -> float:
        return stats.mannwhitneyu(b - shift, a, method="exact").pvalue

    for inside in (low + 1e-9, high - 1e-9, shift_estimate(a, b)):
        assert p(inside) > 0.05
    for outside in (low - 1e-9, high + 1e-9, low - 2, high + 2):
        assert p(outside) <= 0.05


def test_the_estimate_of_a_shift_is_the_median_of_all_differences():
    """1, 2 against 4, 9: 3, 2, 8, 7; the median is 5."""
    assert shift_estimate([1, 2], [4, 9]) == 5


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=9))
def test_swapping_the_arms_turns_estimate_bounds_and_certainty_round(differences):
    turned = [-d for d in differences]
    low, high = signed_rank_interval(differences)
    assert signed_rank_interval(turned) == (-high, -low)
    assert signed_rank_p(differences) + signed_rank_p(turned) >= 1


@given(st.lists(SMALL, min_size=3, max_size=6), st.lists(SMALL, min_size=3, max_size=6))
def test_swapping_the_samples_turns_the_shift_round(a, b):
    assert shift_estimate(a, b) == -shift_estimate(b, a)
    if (interval := shift_interval(a, b, 0.8)) is not None:
        assert shift_interval(b, a, 0.8) == (-interval[1], -interval[0])


@given(st.lists(SMALL, min_size=2, max_size=8), st.integers(0, 7), st.integers(1, 5))
def test_a_larger_difference_never_looks_less_certain(differences, place, more):
    raised = list(differences)
    raised[place % len(raised)] += more
    assert signed_rank_p(raised) <= signed_rank_p(differences)
    assert mann_whitney_p([0.0, 1.0, -1.0], raised) <= mann_whitney_p([0.0, 1.0, -1.0], differences)


def test_holm_worked_by_hand():
    """.01 * 4, .02 * 3 = .06, .03 * 2 = .06, .04 * 1 -> not below the one before."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.sampled_from([0.01, 0.05, 0.3]))
def test_holm_rejects_what_the_closed_test_with_bonferroni_rejects(ps, alpha):
    """A hypothesis falls where every set of hypotheses that contains it has a p at most alpha / its size."""
    adjusted = holm(ps)
    for i in range(len(ps)):
        others = [j for j in range(len(ps)) if j != i]
        sets = (chosen for k in range(len(ps)) for chosen in itertools.combinations(others, k))
        falls = all(min(ps[j] for j in (i, *chosen)) * (1 + len(chosen)) <= alpha for chosen in sets)
        assert (adjusted[i] <= alpha) == falls


def test_benjamini_hochberg_worked_by_hand():
    """.01 * 4/1, .02 * 4/2, .03 * 4/3, .5 * 4/4; each no larger than the next."""
    assert benjamini_hochberg([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.04, 0.04])
    assert benjamini_hochberg([]) == []


def test_what_can_be_detected():
    """The specification: at 2.4% a repeat 3.8% with 5 pairs, 3.0% with 8 (as logs; as ratios a little more)."""
    sd = 0.024 * math.sqrt(2)
    assert math.log1p(detectable(sd, 5)) == pytest.approx(0.038, abs=0.0005)
    assert math.log1p(detectable(sd, 8)) == pytest.approx(0.030, abs=0.0005)
    assert detectable(1.0, 1) == pytest.approx(math.exp(2.5) - 1)


@pytest.mark.parametrize("sd", [0.034, 0.05])
def test_the_pairs_that_are_asked_for_have_the_promised_power(sd):
    n = pairs_for_power(sd, 0.02, 0.05)
    draws = np.random.default_rng(3).normal(0.02, sd, (1500, n))
    assert 0.74 < np.mean([signed_rank_p(draw) <= 0.05 for draw in draws]) < 0.86


def test_the_pairs_that_are_asked_for_can_reach_alpha():
    assert pairs_for_power(0.001, 1.0, 0.05) == 5
    assert pairs_for_power(0.001, 1.0, 0.025 / 8) == fewest_pairs(0.025 / 8) == 9

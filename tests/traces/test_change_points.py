"""Changes of level: planted ones are found, random order shows none, and the fit is the best of all."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.special import xlogy

from inferdoc.traces.change_points import _levels, change_points


def heavy(rates, seed):
    """Sums of heavy-tailed amounts, as many in each bin as a Poisson draw says."""
    random = np.random.default_rng(seed)
    return np.array([random.lognormal(0, 1.2, count).sum() for count in random.poisson(rates)])


def test_planted_levels_are_found_where_they_are():
    rates = np.repeat([20, 60, 20, 8, 20], 40)
    assert change_points(heavy(rates, 1), 5) == pytest.approx([40, 80, 120, 160], abs=3)


def test_steady_series_show_no_change():
    alarms = sum(bool(change_points(heavy(np.full(100, 10), seed), 3)) for seed in range(100))
    assert alarms <= 3


def test_shortest_level_is_kept():
    series = np.full(60, 100.0) + np.random.default_rng(0).normal(0, 3, 60)
    series[30:32] = 900
    found = change_points(series, 6)
    assert all(b - a >= 6 for a, b in pairwise([0, *found, 60]))


@pytest.mark.parametrize("series", [np.zeros(50), np.full(50, 7.0), np.array([1.0, 9.0, 1.0])])
def test_nothing_to_find(series):
    assert change_points(series, 3) == []


def test_levels_are_the_cheapest_of_all_divisions():
    def cost(series, cuts, penalty):
        levels = [series[a:b] for a, b in pairwise([0, *cuts, len(series)])]
        return -2 * sum(xlogy(part.sum(), part.mean()) for part in levels) + penalty * len(cuts)

    for seed in range(20):
        series = np.random.default_rng(seed).poisson(np.repeat([3, 9, 4], 4)).astype(float)
        divisions = [
            cuts
            for count in range(5)
            for cuts in combinations(range(2, 11), count)
            if all(b - a >= 2 for a, b in pairwise([0, *cuts, 12]))
        ]
        best = min(cost(series, cuts, 3.0) for cuts in divisions)
        assert cost(series, _levels(series[None], 2, 3.0)[0], 3.0) == pytest.approx(best)

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from inferdoc.statistics import (
    MIN_PAIRS,
    hodges_lehmann,
    log_gains,
    median_interval,
    paired_gain,
    pairs_to_decide,
    percentile,
    samples_needed,
    signed_rank_interval,
)


@pytest.mark.parametrize("n", [6, 7, 8, 10, 13, 20])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_a_shift_lies_inside_the_interval_exactly_where_the_exact_test_does_not_reject_it(n, level):
    """scipy's exact Wilcoxon test knows nothing of Walsh averages: shifts just inside and just outside each bound."""
    differences = np.random.default_rng([n, int(level * 100)]).normal(0.3, 1.0, n)
    low, high = signed_rank_interval(differences, level)

    def p(shift: float) -> float:
        return stats.wilcoxon(differences - shift, method="exact").pvalue

    step = 1e-9
    for inside in (low + step, high - step, (low + high) / 2, hodges_lehmann(differences)):
        assert low <= inside <= high
        assert p(inside) > 1 - level
    for outside in (low - step, high + step, low - 1, high + 1):
        assert p(outside) <= 1 - level


def test_six_pairs_give_the_smallest_and_the_largest_difference():
    assert signed_rank_interval([0.5, -0.1, 0.2, 0.9, 0.3, 0.4]) == (-0.1, 0.9)


def test_eight_pairs_leave_out_the_three_outermost_walsh_averages():
    """Tables give T = 3 for n = 8: P(T+ <= 3) = 5 / 256 = 0.0195. Of 1, 2, 4, ... 128 the lowest averages are 1, 1.5,
    2, 2.5 and the highest 128, 96, 80, 72, so the fourth from each end."""
    assert signed_rank_interval([1, 2, 4, 8, 16, 32, 64, 128]) == (2.5, 72.0)


@pytest.mark.parametrize("n", range(6))
def test_fewer_than_six_pairs_have_no_interval(n):
    assert MIN_PAIRS == 6
    assert signed_rank_interval([1.0] * n) is None


def test_the_interval_of_equal_differences_is_a_point():
    assert signed_rank_interval([0.25] * 6) == (0.25, 0.25)


@pytest.mark.parametrize("n", [6, 9, 12])
@pytest.mark.parametrize("draw", ["normal", "uniform", "laplace"])
def test_at_least_94_of_100_intervals_cover_the_centre(n, draw):
    rng = np.random.default_rng([n, len(draw)])
    samples = getattr(rng, draw)(size=(2000, n))
    centre = 0.5 if draw == "uniform" else 0.0
    intervals = [signed_rank_interval(sample) for sample in samples]
    covered = np.mean([low <= centre <= high for low, high in intervals])
    assert 0.94 <= covered < 1.0


def test_the_estimate_is_the_median_of_all_pairwise_means():
    """1, 3, 8: means 1, 2, 3, 4.5, 5.5, 8; their median is 3.75."""
    assert hodges_lehmann([8, 1, 3]) == 3.75


def test_a_gain_is_the_ratio_in_the_better_direction():
    """Throughput doubles in each pair; latency halves in each pair: both are twice as good."""
    off = [10.0, 20.0, 15.0, 11.0, 12.0, 13.0]
    assert paired_gain(off, [2 * value for value in off], higher_is_better=True) == pytest.approx((2, 2, 2))
    assert paired_gain(off, [value / 2 for value in off], higher_is_better=False) == pytest.approx((2, 2, 2))
    assert paired_gain(off, [value / 2 for value in off], higher_is_better=True) == pytest.approx((0.5,) * 3)


def test_a_gain_with_its_interval_worked_by_hand():
    """Ratios 1, 2, 4, 4, 2, 1: logs of 0, l, 2l, 2l, l, 0 with l = log 2; their centre is l, their range 0 to 2l."""
    estimate, low, high = paired_gain([1.0] * 6, [1.0, 2.0, 4.0, 4.0, 2.0, 1.0], higher_is_better=True)
    assert (estimate, low, high) == pytest.approx((2.0, 1.0, 4.0))


def test_swapping_the_arms_inverts_the_gain():
    rng = np.random.default_rng(5)
    off, on = rng.uniform(1, 2, 9).tolist(), rng.uniform(1, 3, 9).tolist()
    estimate, low, high = paired_gain(off, on, higher_is_better=True)
    assert paired_gain(on, off, higher_is_better=True) == pytest.approx((1 / estimate, 1 / high, 1 / low))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_value_without_a_logarithm_is_refused_and_never_becomes_a_gain(bad):
    with pytest.raises(ValueError, match="positive and finite"):
        log_gains([1.0, bad], [1.0, 1.0], higher_is_better=True)
    with pytest.raises(ValueError, match="positive and finite"):
        paired_gain([1.0] * 6, [bad] * 6, higher_is_better=False)


def test_too_few_or_unpaired_values_are_refused():
    with pytest.raises(ValueError, match="5 pairs; a 95% interval needs 6"):
        paired_gain([1.0] * 5, [2.0] * 5, higher_is_better=True)
    with pytest.raises(ValueError):
        paired_gain([1.0] * 7, [2.0] * 6, higher_is_better=True)


def test_runs_of_one_distribution_show_no_change_in_at_least_94_of_100_draws():
    """Two arms from the same N(390, 25), 6 pairs each: the interval must contain 1."""
    rng = np.random.default_rng(74)
    neutral = 0
    for off, on in rng.normal(390, 25, size=(500, 2, 6)):
        _, low, high = paired_gain(off, on, higher_is_better=True)
        neutral += low <= 1 <= high
    assert 470 <= neutral < 500


@pytest.mark.parametrize(("quantile", "needed"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.1, 36)])
def test_samples_needed_for_a_percentile(quantile, needed):
    assert samples_needed(quantile) == needed
    tail = max(quantile, 1 - quantile)
    assert tail**needed <= 0.025 < tail ** (needed - 1)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95, 0.99])
def test_a_percentile_is_unknown_with_too_few_samples(quantile):
    needed = samples_needed(quantile)
    values = list(range(needed))
    assert percentile(values[:-1], quantile) is None
    assert percentile(values, quantile) == pytest.approx(quantile * (needed - 1))
    assert percentile([], quantile) is None


@pytest.mark.parametrize("n", [6, 9, 20, 101])
def test_the_interval_of_a_median_follows_the_binomial_distribution(n):
    """The k-th and the (n + 1 - k)-th of the sorted values, k the largest with P(B(n, 1/2) < k) <= 2.5%."""
    values = np.random.default_rng(n).permutation(n).astype(float)
    low, high = median_interval(values)
    assert stats.binom.cdf(low, n, 0.5) <= 0.025 < stats.binom.cdf(low + 1, n, 0.5)
    assert high == n - 1 - low


def test_the_interval_of_a_median_needs_six_values():
    assert median_interval([1.0] * 5) is None
    assert median_interval([]) is None
    assert median_interval([3, 1, 2, 6, 5, 4]) == (1, 6)


def test_pairs_to_decide_follow_spread_and_distance():
    """Mean log ratio 0.3, sd 0.1 * sqrt(2): (2.8 * 0.1414 / 0.02)^2 = 392 pairs to tell 0.3 from 0.28."""
    ratios = [0.2, 0.4]
    assert pairs_to_decide(ratios, math.exp(0.28)) == math.ceil(2.8**2 * 0.02 / 0.02**2) == 392
    assert pairs_to_decide(ratios, math.exp(0.1)) == MIN_PAIRS
    assert pairs_to_decide(ratios, math.exp(0.26)) < pairs_to_decide(ratios, math.exp(0.28))
    assert pairs_to_decide([0.3, 0.3], 1.0) == MIN_PAIRS


def test_pairs_to_decide_are_unknown_without_a_spread_or_a_distance():
    assert pairs_to_decide([0.3], 1.0) is None
    assert pairs_to_decide([0.2, 0.4], math.exp(0.3)) is None


def test_pairs_to_decide_give_the_promised_power():
    """With as many pairs a t-test at 5% finds the difference about 8 times out of 10."""
    rng = np.random.default_rng(8)
    n = pairs_to_decide([0.05 - 0.1, 0.05 + 0.1], 1.0)
    samples = rng.normal(0.05, 0.1 * math.sqrt(2), size=(2000, n))
    power = np.mean(stats.ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05)
    assert 0.76 < power < 0.85

"""Exact one-sided rank tests, the bounds that invert them, and corrections for testing many metrics at once.

Ties and zeros are decided against a shift: equal values count as if the order least favourable to it had been
measured. That keeps the level exact or below, never lets a larger shift look less certain, and makes each p agree with
its bound (p <= 5% exactly where the one-sided 95% bound lies beyond no shift). scipy's exact distributions are for data
without ties, and scipy has no such bounds; the counts here serve both, and the tests hold them against scipy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np

from inferdoc.statistics import left_out, signed_rank_counts, signed_rank_interval, walsh_averages

PAIRED_METHOD = "Hodges-Lehmann on log ratios, exact Wilcoxon signed-rank"
HISTORY_METHOD = "Hodges-Lehmann on logs, exact Mann-Whitney"
BUDGET_METHOD = "exact sign test"
_LARGEST_CHANGE = math.log(1e6)


def signed_rank_p(differences: Sequence[float]) -> float:
    """Exact one-sided p of the Wilcoxon signed-rank test that the centre of `differences` is above 0.

    The statistic is the number of Walsh averages above 0, which without ties is the sum of the positive ranks.
    """
    above = int(np.count_nonzero(walsh_averages(differences) > 0))
    return _tail(signed_rank_counts(len(differences)), above)


def signed_rank_upper(differences: Sequence[float], level: float) -> float | None:
    """One-sided upper bound of the centre; ``None`` where so few pairs have none (at 95%: below 5)."""
    interval = signed_rank_interval(differences, 2 * level - 1)
    return None if interval is None else interval[1]


def sign_p(differences: Sequence[float]) -> float:
    """Exact one-sided p of the sign test that the median of `differences` is above 0; zeros count as below."""
    n = len(differences)
    return _tail(tuple(math.comb(n, i) for i in range(n + 1)), sum(difference > 0 for difference in differences))


@cache
def mann_whitney_counts(n: int, m: int) -> tuple[int, ...]:
    """How many of the C(n + m, n) orders of two samples give each value of U (0 .. n * m).

    Coefficients of the Gaussian binomial, the product of (1 - q**(n + i)) / (1 - q**i) over i = 1 .. m.
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, m + 1):
        for u in range(n * m, n + i - 1, -1):
            counts[u] -= counts[u - n - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return tuple(counts)


def mann_whitney_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Exact one-sided p of the Mann-Whitney test that `b` is shifted above `a`."""
    above = int(np.count_nonzero(_shifts(a, b) > 0))
    return _tail(mann_whitney_counts(len(a), len(b)), above)


def shift_estimate(a: Sequence[float], b: Sequence[float]) -> float:
    """How far `b` lies above `a`: the median of all differences of one value of each (Hodges-Lehmann)."""
    return float(np.median(_shifts(a, b)))


def shift_interval(a: Sequence[float], b: Sequence[float], level: float) -> tuple[float, float] | None:
    """Interval of the shift, by inverting the exact Mann-Whitney test; ``None`` where so few values have none."""
    k = left_out(mann_whitney_counts(len(a), len(b)), (1 - level) / 2)
    if k is None:
        return None
    shifts = _shifts(a, b)
    return float(shifts[k]), float(shifts[-1 - k])


def shift_upper(a: Sequence[float], b: Sequence[float], level: float) -> float | None:
    """One-sided upper bound of the shift."""
    interval = shift_interval(a, b, 2 * level - 1)
    return None if interval is None else interval[1]


def _shifts(a: Sequence[float], b: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.sort(np.subtract.outer(np.asarray(b, dtype=float), np.asarray(a, dtype=float)).ravel())


def _tail(counts: tuple[int, ...], least: int) -> float:
    return sum(counts[least:]) / sum(counts)


def holm(ps: Sequence[float]) -> list[float]:
    """p adjusted for the whole family, in the order given: at most alpha exactly where Holm's procedure rejects."""
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for rejected, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - rejected) * ps[index]))
        adjusted[index] = largest
    return adjusted


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """p adjusted for the false discovery rate, in the order given."""
    if not ps:
        return []
    # Here, because the import takes a second that most gates need not spend.
    from scipy.stats import false_discovery_control

    return [float(p) for p in false_discovery_control(list(ps), method="bh")]


def detectable(sd: float, pairs: int) -> float:
    """Relative change that so many pairs show with about 80% power; at most a factor of a million.

    Args:
        sd: of the log ratio of one pair.
    """
    return math.expm1(min(2.5 * sd / math.sqrt(pairs), _LARGEST_CHANGE))


def pairs_for_power(sd: float, distance: float, alpha: float) -> int:
    """Pairs whose one-sided test at `alpha` finds a centre `distance` away with 80% power, by the normal approximation.

    Never fewer than the exact test needs to reach `alpha` at all.
    """
    quantiles = NormalDist().inv_cdf(1 - alpha) + NormalDist().inv_cdf(0.8)
    return max(math.ceil((quantiles * sd / distance) ** 2), fewest_pairs(alpha))


def fewest_pairs(alpha: float) -> int:
    """Fewest pairs whose signed-rank test can reach a one-sided p of `alpha`: at 5% 5, at 0.5% 8."""
    pairs = 1
    while 0.5**pairs > alpha:
        pairs += 1
    return pairs

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferdoc.evidence import Interval
from inferdoc.gate.judging import Series, judge, judge_budget, judge_budgets
from inferdoc.gate.policy import MetricPolicy, StatisticsPolicy
from inferdoc.gate.result import MetricResult, MetricVerdict
from inferdoc.rank_tests import detectable, mann_whitney_p, shift_estimate, signed_rank_p
from inferdoc.statistics import hodges_lehmann

V = MetricVerdict
POLICY = StatisticsPolicy()


def series(
    baseline: Any,
    candidate: Any,
    *,
    direction: Any = "lower",
    kind: Any = "timing",
    id: str = "ttft_p95",
    **limits: Any,
) -> Series:
    metric = MetricPolicy(id=id, kind=kind, line=7, **{"max_regression": 0.05, **limits})
    return Series(metric, "TTFT, p95", "s", direction, kind, list(baseline), list(candidate))


def one(*args: Any, alpha: float = 0.05, paired: bool = True, **kwargs: Any) -> MetricResult:
    (result,) = judge([series(*args, **kwargs)], statistics=POLICY, alpha_of_look=alpha, paired=paired)
    return result


def noisy(factor: float = 1.0, n: int = 8, seed: int = 0, sd: float = 0.01) -> np.ndarray[Any, Any]:
    return factor * np.exp(np.random.default_rng(seed).normal(0, sd, n))


def test_a_slower_candidate_has_regressed_and_every_number_says_why():
    before, after = noisy(seed=1), noisy(1.2, seed=2)
    result = one(before, after)
    logs = np.log(after) - np.log(before)
    assert result.verdict is V.REGRESSED
    assert result.ratio == pytest.approx(math.exp(hodges_lehmann(logs)))
    assert result.p == signed_rank_p(logs) == result.p_adjusted == 1 / 256
    assert result.interval.low < result.ratio < result.interval.high
    assert (result.baseline, result.candidate) == (pytest.approx(np.median(before)), pytest.approx(np.median(after)))
    assert result.min_detectable == pytest.approx(detectable(np.std(logs, ddof=1), 8))
    assert (result.n, result.limit, result.policy_line, result.reason) == (8, 0.05, 7, None)


def test_less_throughput_is_worse_and_more_is_better():
    slower = one(noisy(seed=1), noisy(0.8, seed=2), direction="higher")
    faster = one(noisy(seed=1), noisy(1.2, seed=2), direction="higher")
    assert slower.verdict is V.REGRESSED
    assert slower.ratio == pytest.approx(0.8, rel=0.02)
    assert faster.verdict is V.IMPROVED
    assert faster.interval.low > 1


def test_a_throughput_limit_is_of_the_harm_ratio():
    """4.8% fewer tokens per second are 5.04% more time for each: beyond a limit of 5%; 4.7% fewer are not."""
    before = [100.0] * 8
    assert one(before, [95.2] * 8, direction="higher").verdict is V.REGRESSED
    assert one(before, [95.3] * 8, direction="higher").verdict is V.PASS


def test_a_change_of_exactly_the_limit_has_regressed():
    for baseline in (0.1, 0.3, 7.0, 100.0, 1e-6):
        assert one([baseline] * 8, [baseline * 1.05] * 8).verdict is V.REGRESSED


def test_nothing_changed_passes_and_a_small_gain_is_an_improvement():
    assert one(noisy(seed=1), noisy(seed=2)).verdict is V.PASS
    assert one([1.0] * 8, [1.0] * 8).verdict is V.PASS
    assert one(noisy(sd=0.001), noisy(0.97, sd=0.001, seed=1)).verdict is V.IMPROVED


def test_what_is_neither_ruled_out_nor_shown_is_inconclusive_and_says_how_many_pairs_would_decide():
    result = one([1.0] * 8, [1.00, 1.06, 0.99, 1.08, 1.02, 1.05, 1.01, 1.04], alpha=0.025)
    assert result.verdict is V.INCONCLUSIVE
    assert "worse is not ruled out" in result.reason
    assert result.pairs_needed > 8
    logs = np.log(result.candidate_values) - np.log(result.baseline_values)
    distance = math.log(1.05) - hodges_lehmann(logs)
    assert result.pairs_needed == math.ceil(((1.6449 + 0.8416) * np.std(logs, ddof=1) / distance) ** 2)


def test_a_large_change_in_noise_is_inconclusive_because_of_the_noise():
    result = one([1.0] * 8, [1.3, 1.3, 1.3, 1.2, 1.4, 1.3, 0.7, 0.6])
    assert result.verdict is V.INCONCLUSIVE
    assert "noise may explain it" in result.reason
    assert result.pairs_needed > 8


def test_a_relative_change_below_the_floor_passes():
    """CASES D76: p50 0.020 -> 0.023 ms is +15%, and the floor 0.05 ms."""
    before, after = 0.020e-3 * noisy(seed=1), 0.023e-3 * noisy(seed=2)
    assert one(before, after).verdict is V.REGRESSED
    assert one(before, after, floor=0.05e-3).verdict is V.PASS
    assert one(before, after, floor=0.002e-3).verdict is V.REGRESSED


def test_a_floor_of_throughput_is_in_its_own_unit():
    before, after = 100 * noisy(seed=1), 90 * noisy(seed=2)
    verdicts = [one(before, after, direction="higher", floor=floor).verdict for floor in (5.0, 20.0, 150.0)]
    assert verdicts == [V.REGRESSED, V.PASS, V.INCONCLUSIVE]
    # 20 of 100 tok/s less are 1.25 times as long; 18 less, 1.22 times, are ruled out.
    assert one([100.0] * 8, [82.0] * 8, direction="higher", floor=20.0).verdict is V.PASS


@pytest.mark.parametrize("floor", [100.0, 150.0])
@pytest.mark.parametrize("after", [100.0, 82.0, 130.0, 0.1])
def test_a_floor_that_no_fall_could_reach_passes_nothing(floor, after):
    result = one([100.0] * 8, [after] * 8, direction="higher", floor=floor)
    assert (result.verdict, result.reason) == (V.INCONCLUSIVE, "the floor is above the baseline")
    zero = one([0.0] * 8, [0.0] * 8, direction="higher", floor=floor)
    assert (zero.verdict, zero.reason) == (V.INCONCLUSIVE, "the floor is above the baseline")
    assert one([0.0] * 8, [0.0] * 8, floor=floor).verdict is V.PASS
    assert one([100.0] * 8, [101.0] * 8, floor=floor).verdict is V.PASS


def test_a_change_near_the_floor_is_inconclusive():
    before, after = noisy(seed=1, sd=0.02), noisy(1.2, seed=2, sd=0.02)
    between = (np.median(after) - np.median(before)) * 1.01
    result = one(before, after, floor=between)
    assert result.verdict is V.INCONCLUSIVE
    assert "floor" in result.reason


@pytest.mark.parametrize("direction", ["lower", "higher"])
def test_values_of_zero_pass_when_all_are_equal_and_values_below_zero_decide_nothing(direction):
    equal = one([0.0] * 8, [0.0] * 8, direction=direction)
    assert (equal.verdict, equal.ratio, equal.p) == (V.PASS, None, None)
    assert equal.reason == "every value is the same"
    result = one([1.0] * 7 + [-1.0], [1.0] * 8, direction=direction)
    assert (result.verdict, result.ratio) == (V.INCONCLUSIVE, None)
    assert "no ratio" in result.reason
    assert one([0.0] * 3, [0.0] * 3).verdict is V.INCONCLUSIVE


def finite(result: MetricResult) -> MetricResult:
    """As gate.json holds it: a number that is not finite would come back as null."""
    text = result.model_dump_json()
    assert MetricResult.model_validate_json(text) == result
    assert "inf" not in text.lower().replace("inferdoc", "")
    return result


@pytest.mark.parametrize(
    ("direction", "before", "after", "verdict", "ratio", "reason"),
    [
        ("higher", 10.0, 0.0, V.REGRESSED, 0.0, "fell to 0 in 8 of 8 pairs"),
        ("lower", 0.0, 100.0, V.REGRESSED, None, "rose from 0 in 8 of 8 pairs"),
        ("higher", 0.0, 10.0, V.IMPROVED, None, "rose from 0 in 8 of 8 pairs"),
        ("lower", 100.0, 0.0, V.IMPROVED, 0.0, "fell to 0 in 8 of 8 pairs"),
    ],
)
def test_a_change_to_or_from_zero_is_beyond_every_ratio(direction, before, after, verdict, ratio, reason):
    result = finite(one([before] * 8, [after] * 8, direction=direction))
    assert (result.verdict, result.ratio, result.reason) == (verdict, ratio, reason)
    assert result.p == (1 / 256 if verdict is V.REGRESSED else 1.0)
    assert (result.interval is None) == (ratio is None)
    if result.interval is not None:
        assert (result.interval.low, result.interval.high) == (0.0, 0.0)


def test_pairs_that_reach_zero_have_the_highest_ranks():
    """By hand: the one gain is the smallest of seven changes, so T+ is all ranks but the first."""
    before = [5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0]
    some = one(before, [5.05, 4.9, 4.8, 4.7, 0.0, 0.0, 0.0], direction="higher")
    assert some.p == 2 / 2**7
    assert some.reason == "fell to 0 in 3 of 7 pairs"
    assert some.verdict is V.REGRESSED
    one_zero = one(before, [5.01, 5.02, 5.03, 5.04, 5.05, 5.06, 0.0], direction="higher")
    assert one_zero.p == signed_rank_p([-1, -2, -3, -4, -5, -6, 7])
    assert one_zero.verdict is V.INCONCLUSIVE
    assert one_zero.reason.endswith("fell to 0 in 1 of 7 pairs")
    balanced = one([0.0, 4.0] * 4, [4.0, 0.0] * 4, direction="higher")
    assert balanced.p == signed_rank_p([1.0, -1.0] * 4)
    assert balanced.verdict is V.INCONCLUSIVE
    assert balanced.reason.endswith("fell to 0 in 4 of 8 pairs, rose from 0 in 4 of 8 pairs")


def test_two_zeros_are_no_change():
    rare = finite(one([0.0] * 8, [0.0] * 7 + [3.0]))
    assert rare.p == signed_rank_p([0.0] * 7 + [1.0])
    assert (rare.verdict, rare.ratio) == (V.INCONCLUSIVE, 1.0)
    assert rare.reason == "a change without a finite ratio is not ruled out; rose from 0 in 1 of 8 pairs"
    # The bound of the change is the sixth largest of the 36 means of two pairs (P(T+ <= 5) = 10/256): 1.5.
    assert [one([0.0] * 8, [0.0] * 7 + [3.0], floor=floor).verdict for floor in (1.4, 1.6)] == [V.INCONCLUSIVE, V.PASS]


def test_a_rise_from_zero_fails_only_from_the_floor_on():
    verdicts = [one([0.0] * 8, [value] * 8, floor=10.0).verdict for value in (1.0, 9.9, 10.0, 11.0)]
    assert verdicts == [V.PASS, V.PASS, V.REGRESSED, V.REGRESSED]
    near = one([0.0] * 8, [9.0, 9.0, 9.0, 9.0, 11.0, 11.0, 11.0, 11.0], floor=10.5)
    assert near.verdict is V.INCONCLUSIVE
    assert "less than the floor" in near.reason
    falls = [one([value] * 8, [0.0] * 8, direction="higher", floor=0.1).verdict for value in (0.2, 0.05)]
    assert falls == [V.REGRESSED, V.INCONCLUSIVE]


@pytest.mark.parametrize("direction", ["lower", "higher"])
@pytest.mark.parametrize(("before", "after"), [(1e-300, 1e300), (1e300, 1e-300), (5e-324, 1.7e308), (1.7e308, 5e-324)])
@pytest.mark.parametrize("paired", [True, False])
def test_values_at_the_ends_of_floating_point_are_judged(direction, before, after, paired):
    worse = (after > before) == (direction == "lower")
    result = finite(one([before] * 8, [after] * 8, direction=direction, paired=paired, floor=None))
    assert result.verdict is (V.REGRESSED if worse else V.IMPROVED)
    assert result.ratio == (None if after > before else 0.0)
    assert ("too far apart" in (result.reason or "")) == (after > before)
    mixed = finite(one([1.0] * 8, [before, after] * 4, direction=direction, paired=paired, floor=1.0))
    assert mixed.verdict is V.INCONCLUSIVE
    assert len(mixed.reason) < 150
    assert mixed.min_detectable is None or math.isfinite(mixed.min_detectable)
    assert one([before] * 8, [before] * 8, direction=direction, floor=1e300).verdict in (V.PASS, V.INCONCLUSIVE)


@pytest.mark.parametrize("gap", [([1.0], [None]), ([None], [1.0]), ([None], [None])])
def test_what_lacks_a_value_in_some_pair_does_not_pass(gap):
    """No value is no physical cause: it may be what got worse."""
    for scale, whole in ((1.0, V.PASS), (0.9, V.IMPROVED), (1.2, V.REGRESSED)):
        before, after = [*noisy(seed=1, sd=0.001)], [*noisy(scale, seed=2, sd=0.001)]
        assert one(before, after).verdict is whole
        result = one([*before, *gap[0]], [*after, *gap[1]])
        assert result.verdict is (V.REGRESSED if whole is V.REGRESSED else V.INCONCLUSIVE)
        assert (result.reason, result.pairs_needed) == ("1 of 9 pairs without a value", None)
    equal = one([0.0] * 8 + gap[0], [0.0] * 8 + gap[1])
    assert (equal.verdict, equal.reason) == (V.INCONCLUSIVE, "every value is the same; 1 of 9 pairs without a value")


def test_a_session_of_the_candidate_without_a_value_does_not_pass_and_one_of_the_baseline_hides_nothing():
    before, after = [*noisy(n=8, seed=1)], [*noisy(n=8, seed=2)]
    assert one(before, after, paired=False).verdict is V.PASS
    assert one([*before, None], after, paired=False).verdict is V.PASS
    assert one(before, [*after, None], paired=False).verdict is V.INCONCLUSIVE
    assert one(before, [*noisy(1.2, seed=2), None], paired=False).verdict is V.REGRESSED


def test_a_pair_with_a_missing_value_does_not_count_in_either_arm():
    before, after = [*noisy(seed=1), 1.0, None], [*noisy(1.2, seed=2), None, 3.0]
    result = one(before, after)
    assert (result.n, result.verdict) == (8, V.REGRESSED)
    assert result.p == one(before[:8], after[:8]).p
    assert result.baseline == pytest.approx(np.median(before[:8]))
    assert result.reason == "2 of 10 pairs without a value"
    assert result.candidate_values == after


@pytest.mark.parametrize("n", [1, 3, 4])
def test_too_few_pairs_judge_nothing(n):
    """CASES D77: three values, one of them far off."""
    result = one([1.00, 1.01, 1.90, 1.0][:n], [1.2] * n)
    assert result.verdict is V.INCONCLUSIVE
    assert "too few to judge" in result.reason or "not ruled out" in result.reason
    assert result.n == n


def test_no_values_at_all_never_pass():
    for values in ([], [None] * 8):
        result = one(values, values)
        assert (result.verdict, result.ratio, result.n) == (V.INCONCLUSIVE, None, 0)
        assert "no value to compare" in result.reason


def test_arms_of_unlike_length_are_an_error_of_the_caller():
    with pytest.raises(ValueError):
        one([1.0] * 8, [1.0] * 7)


def test_a_metric_without_a_better_direction_is_not_passed():
    result = one([1.0] * 8, [1.0] * 7 + [0.9], direction=None)
    assert (result.verdict, result.ratio) == (V.INCONCLUSIVE, None)
    assert "kind = exact" in result.reason


def judged(*all_series: Series, alpha: float = 0.05) -> list[MetricResult]:
    return judge(all_series, statistics=POLICY, alpha_of_look=alpha, paired=True)


def test_holm_runs_over_the_failing_metrics_only_and_benjamini_hochberg_over_the_warning_ones():
    worse = (noisy(seed=1), noisy(1.2, seed=2))
    same = (noisy(seed=3), noisy(seed=4))
    results = judged(
        series(*worse),
        series(*same),
        series(*same, role="warn"),
        series(*worse, role="warn"),
        series(*worse, role="info"),
        series([3.0] * 8, [3.0] * 8, kind="exact", max_regression=None),
    )
    p = 1 / 256
    assert [result.p_adjusted for result in results[:2]] == pytest.approx([2 * p, results[1].p])
    assert [result.p_adjusted for result in results[2:4]] == pytest.approx([results[2].p, 2 * p])
    assert results[4].p == p
    assert results[4].p_adjusted is None
    assert [result.verdict for result in results] == [V.REGRESSED, V.PASS, V.PASS, V.REGRESSED, V.REGRESSED, V.PASS]


def test_a_metric_without_a_p_still_counts_in_the_family():
    worse, zero = series(noisy(seed=1), noisy(1.2, seed=2)), series([0.0] * 8, [0.0] * 8)
    assert judged(worse, zero)[0].p_adjusted == 2 / 256


def test_a_family_that_is_too_large_leaves_a_true_regression_undecided_and_asks_for_enough_pairs():
    worse = series(noisy(seed=1), noisy(1.2, seed=2))
    assert judged(worse)[0].verdict is V.REGRESSED
    crowd = [series([1.0] * 8, [1.0] * 8)] * 59
    first = judged(worse, *crowd)[0]
    assert first.p_adjusted == 60 / 256
    assert first.verdict is V.INCONCLUSIVE
    assert 60 / 2**11 <= 0.05 < 60 / 2**10
    assert first.pairs_needed == 11


def test_an_alpha_of_zero_fails_nothing():
    (result,) = judged(series(noisy(seed=1), noisy(1.2, seed=2)), alpha=0.0)
    assert (result.verdict, result.pairs_needed) == (V.INCONCLUSIVE, None)


def test_without_a_limit_the_change_is_only_shown():
    result = one(noisy(seed=1), noisy(1.2, seed=2), role="info", max_regression=None)
    assert (result.verdict, result.reason) == (V.ADVISORY, "no limit is given")
    assert result.ratio == pytest.approx(1.2, rel=0.02)
    for values in ([], [0.0] * 8):
        assert one(values, values, role="info", max_regression=None).verdict is V.ADVISORY


def test_a_metric_with_a_budget_only_has_no_change_to_judge():
    assert judged(series([1.0] * 8, [1.0] * 8, max_regression=None, max_value=2.0)) == []
    assert len(judged(series([1.0] * 8, [1.0] * 8, max_value=2.0))) == 1


def test_exact_counts_must_be_equal_in_every_pair():
    def exact(baseline: Any, candidate: Any) -> MetricResult:
        return one(baseline, candidate, kind="exact", direction=None, max_regression=None)

    assert exact([640.0, 641.0], [640.0, 641.0]).verdict is V.PASS
    differs = exact([640.0, 640.0, 640.0], [640.0, 639.0, 1.0])
    assert (differs.verdict, differs.rule) == (V.REGRESSED, "exact")
    assert differs.reason == "640 against 639 in pair 2 of 3"
    assert exact([1e9 + 1], [1e9]).reason == "1000000001 against 1000000000 in pair 1 of 1"
    assert exact([None], [3.0]).verdict is V.INCONCLUSIVE
    assert exact([], []).verdict is V.INCONCLUSIVE
    partly = exact([640.0, None], [640.0, 639.0])
    assert (partly.verdict, partly.reason) == (V.INCONCLUSIVE, "1 of 2 pairs without a value")
    assert exact([640.0, None], [639.0, 639.0]).verdict is V.REGRESSED


def test_exact_counts_of_histories_must_be_one_count():
    def exact(baseline: Any, candidate: Any) -> MetricResult:
        return one(baseline, candidate, kind="exact", direction=None, max_regression=None, paired=False)

    assert exact([640.0] * 5, [640.0] * 2).verdict is V.PASS
    assert exact([640.0] * 5, [640.0, 641.0]).reason == "640 against 641 in session 2 of 2"
    assert exact([640.0, 641.0], [640.0]).verdict is V.INCONCLUSIVE
    assert exact([], [640.0]).verdict is V.INCONCLUSIVE
    assert exact([640.0], []).verdict is V.INCONCLUSIVE


def test_histories_are_judged_by_mann_whitney():
    before, after = noisy(n=10, seed=1), noisy(1.2, n=6, seed=2)
    result = one(before, after, paired=False)
    assert result.verdict is V.REGRESSED
    assert result.p == mann_whitney_p(before, after)
    assert result.ratio == pytest.approx(math.exp(shift_estimate(np.log(before), np.log(after))))
    assert result.n == 6
    assert "Mann-Whitney" in result.interval.method
    assert one(before, noisy(n=6, seed=3), paired=False).verdict is V.PASS


def test_a_history_of_one_session_each_side_judges_nothing():
    result = one([1.0], [2.0], paired=False)
    assert result.verdict is V.INCONCLUSIVE
    assert "sessions" in result.reason
    assert one([0.0] * 2, [0.0] * 2, paired=False).verdict is V.INCONCLUSIVE
    assert one([0.0] * 3, [0.0] * 3, paired=False).verdict is V.PASS


def test_unlike_numbers_of_sessions_have_the_spread_of_a_difference_of_means():
    """Standard error sd * sqrt(1/4 + 1/2), with the variance pooled over 4 and 2 values."""
    before, after = [1.0, 1.1, 1.2, 1.1], [1.1, 1.3]
    logs = np.log(before), np.log(after)
    pooled = (3 * np.var(logs[0], ddof=1) + np.var(logs[1], ddof=1)) / 4
    expected = math.expm1(2.5 * math.sqrt(pooled * (1 / 4 + 1 / 2)))
    assert one(before, after, paired=False).min_detectable == pytest.approx(expected)


POSITIVE = st.lists(
    st.tuples(st.integers(50, 200), st.integers(50, 200)).map(lambda pair: (pair[0] / 100, pair[1] / 100)),
    min_size=6,
    max_size=10,
)


@given(POSITIVE, st.booleans())
def test_swapping_the_arms_inverts_ratio_and_interval(pairs, paired):
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    result, swapped = one(before, after, paired=paired), one(after, before, paired=paired)
    assert swapped.ratio == pytest.approx(1 / result.ratio)
    assert swapped.interval.low == pytest.approx(1 / result.interval.high)
    assert not result.verdict is swapped.verdict is V.REGRESSED


@given(POSITIVE, st.integers(-40, 40), st.booleans())
def test_the_unit_changes_nothing(pairs, power, paired):
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    scale = 2.0**power
    result = one(before, after, paired=paired, floor=0.03)
    scaled = one([a * scale for a in before], [b * scale for b in after], paired=paired, floor=0.03 * scale)
    assert scaled.verdict is result.verdict
    assert scaled.p == result.p
    assert scaled.ratio == pytest.approx(result.ratio)
    assert scaled.interval.high == pytest.approx(result.interval.high)


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
@example(a=3, b=2, times=7)
def test_a_change_and_its_reverse_tie_at_every_size(a, b, times):
    result = one([a, times * b] * 4, [b, times * a] * 4)
    assert result.p == (1.0 if a == b else signed_rank_p([1.0, -1.0] * 4))


@given(POSITIVE, st.floats(1.001, 2))
def test_a_slower_candidate_never_looks_better(pairs, factor):
    order = [V.IMPROVED, V.PASS, V.INCONCLUSIVE, V.REGRESSED]
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    result, slower = one(before, after), one(before, [b * factor for b in after])
    assert slower.ratio > result.ratio
    assert slower.p <= result.p
    assert order.index(slower.verdict) >= order.index(result.verdict)


@given(POSITIVE)
def test_direction_only_turns_harm_round(pairs):
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    lower, higher = one(before, after), one(after, before, direction="higher")
    assert higher.p == lower.p
    assert higher.verdict is lower.verdict
    assert higher.ratio == pytest.approx(1 / lower.ratio)


def budget(values: Any, interval: Interval | None = None, kind: Any = "timing", **limits: Any) -> MetricResult:
    return judge_budget(
        MetricPolicy(id="error_rate", kind=kind, **limits), "errors", "share", "lower", values, interval
    )


def test_a_budget_breaks_only_when_the_whole_bound_is_beyond_it():
    """Eight values, one-sided 95% bound: the second smallest and the second largest, P(B(8, 1/2) <= 1) = 9/256."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    limits = (0.5, 1.9, 2.0, 6.9, 7.0, 9.0)
    most = [budget(values, max_value=limit).verdict for limit in limits]
    assert most == [V.BROKEN, V.BROKEN, V.INCONCLUSIVE, V.INCONCLUSIVE, V.PASS, V.PASS]
    least = [budget(values, min_value=limit).verdict for limit in (0.5, 2.0, 2.1, 7.0, 7.1)]
    assert least == [V.PASS, V.PASS, V.INCONCLUSIVE, V.INCONCLUSIVE, V.BROKEN]
    assert budget(values, min_value=2.0, max_value=7.0).verdict is V.PASS
    result = budget(values, max_value=4.0)
    assert (result.rule, result.candidate, result.n, result.max_value) == ("budget", 4.5, 8, 4.0)
    assert result.reason == "between 2 and 7 share: on both sides"


def test_a_single_value_and_exact_counts_compare_themselves():
    assert budget([0.001], max_value=0.001).verdict is V.PASS
    assert budget([0.0011], max_value=0.001).verdict is V.BROKEN
    assert budget([5.0] * 8, kind="exact", max_value=4.0).verdict is V.BROKEN
    assert budget([0.0] * 8, max_value=0.001).verdict is V.PASS


def test_fewer_than_five_values_decide_only_when_all_agree():
    verdicts = [budget([0.5, 1.0, 1.5], max_value=limit).verdict for limit in (0.4, 1.0, 1.5)]
    assert verdicts == [V.BROKEN, V.INCONCLUSIVE, V.PASS]


def test_a_known_interval_is_used():
    wide = Interval(low=0.5, high=1.5, method="by the caller")
    assert budget([1.0], wide, max_value=0.9).verdict is V.INCONCLUSIVE
    assert budget([1.0], wide, max_value=0.4).verdict is V.BROKEN
    assert budget([1.0], wide, max_value=1.5).verdict is V.PASS


def test_a_budget_without_a_value_is_never_kept():
    for values in ([], [None, None]):
        result = budget(values, max_value=1.0)
        assert (result.verdict, result.reason) == (V.INCONCLUSIVE, "not measured")
    assert budget([1.0, None], max_value=2.0).reason == "1 of 2 repeats without a value"


@pytest.mark.parametrize("known", [[1.0], [1.0] * 7])
def test_a_budget_is_kept_only_where_every_repeat_has_a_value(known):
    values = known + [None] * (8 - len(known))
    kept = budget(values, max_value=2.0)
    assert kept.verdict is V.INCONCLUSIVE
    assert kept.reason == f"{8 - len(known)} of 8 repeats without a value"
    assert budget(values, kind="exact", max_value=2.0).verdict is V.INCONCLUSIVE
    assert budget([1.0, None], Interval(low=0.9, high=1.1, method="x"), max_value=2.0).verdict is V.INCONCLUSIVE


def test_a_budget_may_be_broken_by_the_repeats_that_have_a_value():
    assert budget([3.0] * 7 + [None], max_value=2.0).verdict is V.BROKEN
    assert budget([3.0] + [None] * 7, kind="exact", max_value=2.0).verdict is V.BROKEN
    assert budget([3.0] + [None] * 7, max_value=2.0).verdict is V.INCONCLUSIVE  # one value, of eight


def budgets(*limits: dict[str, Any], alpha: float = 0.025, above: int = 8, n: int = 8) -> list[MetricResult]:
    """Of metrics that are above 1 in so many of n repeats."""
    values = [2.0] * above + [0.5] * (n - above)
    policies = [{"id": f"b{i}", **limit} for i, limit in enumerate(limits)]
    rows = [Series(MetricPolicy(**p), p["id"], "s", "lower", p.get("kind", "timing"), [], values) for p in policies]
    return judge_budgets(rows, alpha_of_look=alpha)


def test_budgets_that_may_fail_share_alpha_by_holm():
    """All 8 beyond: p = 1/256. Six of them make 6/256 = 2.3%, seven 2.7%."""
    most = {"max_value": 1.0}
    six, seven = budgets(*[most] * 6), budgets(*[most] * 7)
    assert [result.verdict for result in six] == [V.BROKEN] * 6
    assert [(result.p, result.p_adjusted) for result in six] == [(1 / 256, 6 / 256)] * 6
    assert [result.verdict for result in seven] == [V.INCONCLUSIVE] * 7
    assert seven[0].reason == "beyond the limit, but noise may explain it (p 0.027 > 0.025)"
    alone = budgets(most, above=7)[0]
    assert (alone.p, alone.verdict) == (9 / 256, V.INCONCLUSIVE)
    assert budgets(most, above=7, alpha=0.05)[0].verdict is V.BROKEN
    assert budgets(most, above=0)[0].verdict is V.PASS


def test_budgets_that_warn_and_counts_are_no_part_of_the_family():
    most = {"max_value": 1.0}
    many = [{**most, "role": "warn"}] * 10 + [{**most, "kind": "exact"}] * 10
    assert [result.verdict for result in budgets(most, *many)] == [V.BROKEN] * 21
    assert budgets(most, *many)[0].p_adjusted == 1 / 256
    assert budgets({**most, "role": "warn"}, above=7)[0].verdict is V.BROKEN  # alone, at 5%
    assert budgets(most, {"max_regression": 0.1})[1:] == []


def test_a_budget_with_two_limits_is_tested_twice():
    (result,) = budgets({"max_value": 1.0, "min_value": 0.1})
    assert (result.p, result.verdict) == (2 / 256, V.BROKEN)
    (below,) = budgets({"max_value": 3.0, "min_value": 2.5})
    assert (below.p, below.verdict) == (2 / 256, V.BROKEN)


def test_four_repeats_break_no_budget_that_may_fail():
    (result,) = budgets({"max_value": 1.0}, above=4, n=4, alpha=0.05)
    assert (result.p, result.verdict) == (1 / 16, V.INCONCLUSIVE)


def test_a_share_of_alpha_makes_a_lone_budget_stricter():
    policy = MetricPolicy(id="error_rate", max_value=1.0)
    values = [2.0] * 6
    for alpha, verdict in ((0.05, V.BROKEN), (1 / 64, V.BROKEN), (0.01, V.INCONCLUSIVE)):
        assert judge_budget(policy, "errors", "share", "lower", values, alpha=alpha).verdict is verdict

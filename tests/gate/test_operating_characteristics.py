"""How often the gate is wrong, by simulation: whole sessions of the gate, and the table of the gate's specification.

Simulated noise is log-normal: 2.4% from repeat to repeat, 3% from session to session; limits of change are 5%.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from inferdoc.gate.judging import Series, judge
from inferdoc.gate.policy import DesignPolicy, ExitPolicy, MetricPolicy, StatisticsPolicy
from inferdoc.gate.procedure import Outcome, Values, overall, run_procedure
from inferdoc.gate.result import MetricVerdict
from inferdoc.rank_tests import (
    holm,
    mann_whitney_counts,
    mann_whitney_p,
    shift_estimate,
    shift_interval,
    signed_rank_p,
)
from inferdoc.statistics import hodges_lehmann, signed_rank_interval

REPEAT, SESSION, LIMIT = 0.024, 0.03, 0.05
DRAWS = 3000
METRICS = [
    Series(MetricPolicy(id=f"m{i}", max_regression=LIMIT), f"metric {i}", "s", direction, "timing")
    for i, direction in enumerate(["lower", "higher"] * 4)
]


def session(seed: int, slower: dict[str, float] | None = None, sd: float = REPEAT) -> tuple[Outcome, int, str]:
    """One gate of eight metrics; `slower` gives factors of harm."""
    rng = np.random.default_rng(seed)
    harm = {one.metric.id: math.log((slower or {}).get(one.metric.id, 1.0)) for one in METRICS}

    def draw(count: int, confirming: bool) -> Values:
        drawn: Values = {}
        for one in METRICS:
            noise = rng.normal(0, sd, (2, count))
            worse = harm[one.metric.id] if one.direction == "lower" else -harm[one.metric.id]
            drawn[one.metric.id] = (np.exp(noise[0]).tolist(), np.exp(noise[1] + worse).tolist())
        return drawn

    outcome = run_procedure(METRICS, DesignPolicy(), StatisticsPolicy(), draw)
    _, code, headline = overall(outcome.results, [], ExitPolicy())
    return outcome, code, headline


def test_unchanged_code_is_never_failed_and_mostly_passes():
    """1,000 sessions of unchanged code with consecutive seeds: exit 1 in at most 1%, exit 0 in at least 85%."""
    runs = [session(seed) for seed in range(1000)]
    codes = Counter(code for _, code, _ in runs)
    assert codes[1] <= 10
    assert codes[0] >= 850
    assert codes[0] + codes[1] + codes[3] == 1000
    assert any(outcome.looks == 2 for outcome, _, _ in runs)
    assert any(outcome.looks == 1 for outcome, _, _ in runs)


@pytest.mark.parametrize("slowed", ["m0", "m5"])
def test_a_slowdown_of_10_percent_fails_and_is_named(slowed):
    """Of one metric among eight, one of each direction; also the metrics that did not change must not be named."""
    found = 0
    for seed in range(100):
        outcome, code, headline = session(seed, {slowed: 1.10})
        if code == 1:
            assert f"metric {slowed[1:]} " in headline.lower()
            regressed = [result.metric for result in outcome.results if result.verdict is MetricVerdict.REGRESSED]
            assert regressed == [slowed]
            found += 1
        else:
            assert code == 3
    assert found >= 93


def test_in_noise_too_large_for_the_limit_the_gate_says_that_it_cannot_tell():
    codes = Counter(session(seed, sd=0.10)[1] for seed in range(60))
    assert codes[3] >= 57
    assert codes[1] <= 1


def budget_session(seed: int, limits: int, design: DesignPolicy, shift: float = 0.0) -> int:
    """Exit code of a gate of budgets alone, at the true median of the candidate where `shift` is 0 (log harm)."""
    rng = np.random.default_rng(seed)
    budgets = [
        Series(MetricPolicy(id=f"b{i}", max_value=1.0), f"budget {i}", "s", "lower", "timing") for i in range(limits)
    ]

    def draw(count: int, confirming: bool) -> Values:
        return {one.metric.id: ([None] * count, np.exp(rng.normal(shift, REPEAT, count)).tolist()) for one in budgets}

    outcome = run_procedure(budgets, design, StatisticsPolicy(), draw)
    return overall([*outcome.results, *outcome.budgets], [], ExitPolicy())[1]


@pytest.mark.parametrize("limits", [1, 3, 8])
@pytest.mark.parametrize("max_pairs", [8, 12])
def test_budgets_that_the_true_median_just_keeps_fail_together_in_at_most_alpha(limits, max_pairs):
    """600 gates, and three standard errors. One at a time at 5% a look, eight of them fail in 30% or more."""
    design = DesignPolicy(pairs=8, max_pairs=max_pairs)
    codes = Counter(budget_session(seed, limits, design) for seed in range(600))
    assert codes[1] / 600 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)
    assert codes[0] + codes[1] + codes[3] == 600


def test_a_budget_that_is_surely_broken_fails_among_eight():
    """Four standard deviations beyond."""
    assert all(budget_session(seed, 8, DesignPolicy(), shift=4 * REPEAT) == 1 for seed in range(60))


# The specification's table (REPORT_AND_GATE, section 2, "Simulated"), in percent of sessions. For 5, 8 and 10 repeats;
# a range that the note gives for all three holds for each.

EFFECTS = {"none": 0.0, "+3%": 0.03, "+8%": 0.08, "+12%": 0.12}
REPEATS = (5, 8, 10)
TABLE: dict[str, dict[str, list[tuple[float, float]]]] = {
    "stored": {
        "none, fails": [(13.9, 13.9), (13.6, 13.6), (12.5, 12.5)],
        "+3%, fails": [(33, 34)] * 3,
        "+3%, unclear": [(17, 20)] * 3,
        "+8%, fails": [(73, 73)] * 3,
        "+12%, fails": [(92, 93)] * 3,
    },
    "history": {
        "none, fails": [(1.6, 1.6), (0.6, 0.6), (0.3, 0.3)],
        "+3%, fails": [(14, 20)] * 3,
        "+3%, unclear": [(57, 60)] * 3,
        "+8%, fails": [(84, 84), (92, 92), (95, 95)],
        "+12%, fails": [(99, 100)] * 3,
    },
    "paired": {
        "none, fails": [(0.0, 0.0)] * 3,
        "+3%, fails": [(11, 11), (6, 6), (4, 4)],
        "+3%, unclear": [(45, 55)] * 3,  # "about 50%"
        "+8%, fails": [(96, 96), (99, 99), (99, 99)],
        "+12%, fails": [(100, 100)] * 3,
    },
}


def tolerance(percent: float, *, draws: int = DRAWS) -> float:
    """Three standard errors of the difference of two simulations, and half of the last digit that the table gives."""
    share = min(max(percent / 100, 0.001), 0.999)
    error = 100 * math.sqrt(2 * share * (1 - share) / draws)
    return 3 * error + (0.5 if percent == round(percent) and percent != 0 else 0.05)


def inside(percent: float, cell: tuple[float, float], draws: int = DRAWS) -> bool:
    low, high = cell
    return low - tolerance(low, draws=draws) <= percent <= high + tolerance(high, draws=draws)


def noise(design: str, n: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Logs of `DRAWS` sessions of n repeats of both arms, nothing changed."""
    rng = np.random.default_rng([seed, n])
    arms = rng.normal(0, REPEAT, (2, DRAWS, n))
    if design == "stored":  # one session of each arm: what it did to a repeat it did to all
        arms += rng.normal(0, SESSION, (2, DRAWS, 1))
    elif design == "history":  # every repeat is a session of its own
        arms += rng.normal(0, SESSION, (2, DRAWS, n))
    return arms[0], arms[1]  # paired: both arms in one session, which drops out of the difference


@cache
def bounds(design: str, n: int, level: float, signed_rank: bool) -> np.ndarray[Any, Any]:
    """Of each session the estimated log harm and its one-sided bounds: columns lower, estimate, upper."""
    rows = []
    for before, after in zip(*noise(design, n, seed=2), strict=True):
        if signed_rank:
            interval, estimate = signed_rank_interval(after - before, 2 * level - 1), hodges_lehmann(after - before)
        else:
            interval, estimate = shift_interval(before, after, 2 * level - 1), shift_estimate(before, after)
        assert interval is not None
        rows.append((interval[0], estimate, interval[1]))
    return np.array(rows)


def verdicts(design: str, n: int, effect: float, level: float, signed_rank: bool) -> list[str]:
    """A true change shifts logs, and with them the estimate and both bounds. A test at 1 - level rejects exactly where
    the lower bound is above no change."""
    lower, estimate, upper = bounds(design, n, level, signed_rank).T + math.log1p(effect)
    limit = math.log1p(LIMIT)
    fails = (lower > 0) & (estimate >= limit)
    return np.where(fails, "fails", np.where(upper < limit, "passes", "unclear")).tolist()


def simulated(design: str, n: int, level: float, signed_rank: bool) -> dict[str, float]:
    """The cells of one row of the table for one n."""
    counts = {name: Counter(verdicts(design, n, effect, level, signed_rank)) for name, effect in EFFECTS.items()}
    return {cell: 100 * counts[cell.split(", ")[0]][cell.split(", ")[1]] / DRAWS for cell in TABLE[design]}


def level_of_the_note(n: int) -> float:
    """The note's U-test at "5%" rejects one value of U more than an exact test may: its true level is the smallest that
    can be reached above 5%, for n = 5 it is 7.5%, for 8 and 10 5.3%."""
    counts = mann_whitney_counts(n, n)
    return 1 - min(p for c in itertools.accumulate(counts) if (p := c / sum(counts)) > 0.05)


@pytest.mark.parametrize("n", REPEATS)
@pytest.mark.parametrize("design", TABLE)
def test_the_table_of_the_specification_is_reproduced(design, n):
    """Every cell. All three rows are U-tests, the note's paired row too (of repeats that share one session), at the
    note's level. What the gate's own level and its signed-rank test change is the next test's."""
    found = simulated(design, n, level_of_the_note(n), signed_rank=False)
    for cell, ranges in TABLE[design].items():
        assert inside(found[cell], ranges[REPEATS.index(n)]), (cell, found[cell])


def test_the_row_of_a_single_pair_is_reproduced():
    """One pair and "more than 5%": from both in one session to each in its own."""
    row = {0.0: (7, 20), 0.03: (28, 38), 0.08: (70, 80), 0.12: (88, 97)}
    rng = np.random.default_rng(4)
    for effect, (low, high) in row.items():
        ends = []
        for sd in (REPEAT, math.hypot(REPEAT, SESSION)):
            pairs = np.exp(rng.normal(0, sd, (2, DRAWS)))
            ends.append(100 * np.mean(pairs[1] * (1 + effect) / pairs[0] > 1 + LIMIT))
        assert inside(min(ends), (low, low))
        assert inside(max(ends), (high, high))


@pytest.mark.parametrize("design", TABLE)
def test_the_gates_exact_tests_differ_from_the_table_at_five_repeats_only(design):
    """The gate tests at 5% or below, and pairs by signed-rank: with 5 pairs all 5 must be worse."""
    signed_rank = design == "paired"
    for n in REPEATS[1:]:
        found = simulated(design, n, 0.95, signed_rank)
        for cell, ranges in TABLE[design].items():
            assert inside(found[cell], ranges[REPEATS.index(n)]), (cell, n, found[cell])
    found = simulated(design, 5, 0.95, signed_rank)
    off = {cell for cell, ranges in TABLE[design].items() if not inside(found[cell], ranges[0])}
    assert off <= {"+3%, unclear", "+3%, fails", "+8%, fails"}
    expected = {"stored": (25, 73), "history": (66, 81), "paired": (73, 91.5)}[design]
    assert found["+3%, unclear"] == pytest.approx(expected[0], abs=2.7)
    assert found["+8%, fails"] == pytest.approx(expected[1], abs=2.7)


@pytest.mark.parametrize("n", REPEATS)
@pytest.mark.parametrize("design", TABLE)
def test_judge_gives_the_verdicts_of_the_simulation(design, n):
    """The first sessions of each cell through the gate itself, which tests by p and not by the bound."""
    for signed_rank in {design == "paired", False}:
        for level in (0.95, level_of_the_note(n)) if not signed_rank else (0.95,):
            for effect in EFFECTS.values():
                assert (
                    judged(design, n, effect, level, signed_rank)
                    == verdicts(design, n, effect, level, signed_rank)[:40]
                )


def judged(design: str, n: int, effect: float, level: float, signed_rank: bool) -> list[str]:
    before, after = noise(design, n, seed=2)
    policy = MetricPolicy(id="m", role="info", max_regression=LIMIT)
    results = judge(
        [
            Series(policy, "m", "s", "lower", "timing", a, b)
            for a, b in zip(np.exp(before[:40]).tolist(), (np.exp(after[:40]) * (1 + effect)).tolist(), strict=True)
        ],
        statistics=StatisticsPolicy(interval=level),
        alpha_of_look=(1 - level) * (1 + 1e-9),
        paired=signed_rank,
    )
    names = {MetricVerdict.REGRESSED: "fails", MetricVerdict.INCONCLUSIVE: "unclear"}
    return [names.get(result.verdict, "passes") for result in results]


def test_eight_correlated_metrics_need_a_correction():
    """58-61% of unchanged runs show some metric beyond 5% in one pair; by test and effect 7-9%; with Holm 0-1.4%.

    The note says neither how correlated they are nor of which design. Five sessions a side, metrics correlated by 0.4,
    give all three: the U-test the upper ends (9, 1.4), the signed-rank test of sessions by position the lower ones
    (7, and 0, since 8/32 is above 5%).
    """
    rng = np.random.default_rng(6)
    total = math.hypot(REPEAT, SESSION)
    common, own = rng.normal(0, total, (2, DRAWS, 1, 5)), rng.normal(0, total, (2, DRAWS, 8, 5))
    before, after = math.sqrt(0.4) * common + math.sqrt(0.6) * own
    limit = math.log1p(LIMIT)
    single = 100 * np.mean(((after - before)[:, :, 0] > limit).any(axis=1))
    assert inside(single, (58, 61))
    tests = {
        "U": (mann_whitney_p, shift_estimate),
        "signed-rank": (lambda a, b: signed_rank_p(b - a), lambda a, b: hodges_lehmann(b - a)),
    }
    for name, (p_of, estimate_of) in tests.items():
        alone = corrected = 0
        for a, b in zip(before, after, strict=True):
            ps = [p_of(*pair) for pair in zip(a, b, strict=True)]
            beyond = [estimate_of(*pair) >= limit for pair in zip(a, b, strict=True)]
            alone += any(p <= 0.05 and is_beyond for p, is_beyond in zip(ps, beyond, strict=True))
            corrected += any(p <= 0.05 and is_beyond for p, is_beyond in zip(holm(ps), beyond, strict=True))
        assert inside(100 * alone / DRAWS, (7, 9)), name
        assert inside(100 * corrected / DRAWS, (0, 1.4)), name
        if name == "signed-rank":
            assert corrected == 0

"""Quantiles over time of lines and steps, small and large."""

from __future__ import annotations

import numpy as np
import pytest

from inferdoc.traces.time_weighted import TimeWeighted


def over_time(*pieces):
    """Pieces of (size at the beginning, size at the end, seconds), one after the other."""
    found = TimeWeighted()
    begin, end, seconds = (np.array(column, dtype=float) for column in zip(*pieces, strict=True))
    found.add(begin, end, seconds, np.cumsum(seconds) - seconds)
    return found


def test_whole_numbers_are_exact():
    found = over_time((3, 3, 5), (7, 7, 4.95), (16_000, 16_000, 0.05)).summary()
    assert (found.p50, found.p99, found.max) == (3, 7, 16_000)
    assert found.mean == pytest.approx((15 + 7 * 4.95 + 800) / 10)


@pytest.mark.parametrize("scale", [1, 1000, 10**6, 10**9])
@pytest.mark.parametrize("falls", [False, True])
def test_a_line_spends_its_time_evenly(scale, falls):
    ends = (100.0 * scale, 0.0) if falls else (0.0, 100.0 * scale)
    found = over_time((*ends, 10)).summary()
    assert found.p50 == pytest.approx(50 * scale, rel=1e-6)
    assert found.p99 == pytest.approx(99 * scale, rel=1e-6)
    assert found.mean == 50 * scale


def test_steps_beyond_the_exact_numbers_are_within_the_error():
    found = over_time((1_234_567, 1_234_567, 1), (9_876_543_210, 9_876_543_210, 1)).summary()
    assert found.p50 == pytest.approx(1_234_567, rel=2**-14)
    assert found.p99 == pytest.approx(9_876_543_210, rel=2**-14)


def test_half_flat_and_half_sloping():
    found = over_time((20_000, 20_000, 1), (20_000, 40_000, 1)).summary()
    assert found.p50 == pytest.approx(20_000, rel=2**-13)
    assert found.p99 == pytest.approx(39_600, rel=1e-6)


def test_the_first_moment_of_the_maximum():
    found = over_time((0, 5, 2), (5, 5, 3), (1, 5, 4))
    assert (found.max, found.max_at) == (5, 2)
    assert over_time((6, 0, 2), (6, 6, 1)).max_at == 0


def test_sizes_that_last_no_time_do_not_count():
    assert over_time((99, 99, 0), (4, 4, 1)).summary().max == 4
    with pytest.raises(ValueError, match="no time passed"):
        over_time((3, 3, 0)).summary()


def test_parts_add_up():
    random = np.random.default_rng(0)
    begin, end = random.uniform(0, 1e6, (2, 3000))
    seconds = random.exponential(1, 3000)
    whole, parts = TimeWeighted(), TimeWeighted()
    whole.add(begin, end, seconds, np.cumsum(seconds))
    for part in np.array_split(np.arange(3000), 7):
        parts.add(begin[part], end[part], seconds[part], np.cumsum(seconds)[part])
    assert parts.summary().model_dump() == pytest.approx(whole.summary().model_dump(), rel=1e-9)

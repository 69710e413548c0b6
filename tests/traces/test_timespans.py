"""Spans of time as a reader counts them."""

from __future__ import annotations

import pytest

from inferdoc.traces.timespans import between, lasting


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0123, "0.0123 s"), (90, "90 s"), (99.96, "100 s"), (600, "10 min"), (7200, "2 h"),
     (986_578, "11.4 d"), (172_800, "2 d"), (1e9, "11,574 d")],
)  # fmt: skip
def test_a_time_in_its_unit(seconds, text):
    assert lasting(seconds) == text


@pytest.mark.parametrize(
    ("begin", "end", "text"),
    [
        (986_578, 1.0292e6, "11.4 d to 11.9 d"),
        (45, 54, "45 s to 54 s"),
        (0, 600, "0 min to 10 min"),
        (45, 45, "45 s to 45 s"),
        (986_578, 987_178, "10 min from 11.4 d on"),
    ],
)
def test_a_span_in_one_unit(begin, end, text):
    assert between(begin, end) == text

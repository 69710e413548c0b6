"""Single values of logs."""

from __future__ import annotations

import pytest

from inferdoc.traces.formats.values import decoded, elapsed_s, instant, positive, whole


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01T00:00:00Z", "2026-01-01 00:00:00", "2026-01-01T00:00:00.000", "2026-01-01T01:00:00+01:00",
        "2026-01-01 00:00:00.0000000", "2026-01-01 00:00:00 UTC", "1767225600", 1767225600, 1767225600.0, 1767225600000,
        "1767225600000000", 1767225600000000000,
    ],
)  # fmt: skip
def test_one_instant_in_many_spellings(text):
    assert instant(text) == 1767225600 * 10**9


@pytest.mark.parametrize("value", [None, "", "soon", True, float("nan"), float("inf"), -1.0, "2026-13-01", [], "²"])
def test_what_is_no_instant(value):
    assert instant(value) is None


def test_what_lies_between():
    assert elapsed_s("2026-01-01T00:00:00.25Z", "2026-01-01T00:00:01Z") == 0.75
    assert elapsed_s(10.5, 10.0) == -0.5
    assert elapsed_s(10.5, 10.5) is None
    assert elapsed_s(None, 10.5) is None
    assert elapsed_s(1_760_000_000_000_000_001, "1760000000000000003") == 2e-9


def test_counts():
    assert [whole(value) for value in (5, "5", "5.0", 5.0, -1)] == [5, 5, 5, 5, -1]
    assert [whole(value) for value in (True, 5.5, "x", None, float("nan"), float("inf"), [])] == [None] * 7


def test_json_in_texts():
    assert decoded('{"a": 1}') == {"a": 1}
    assert decoded("plain") == "plain"
    assert decoded("{broken") is None
    assert decoded("[" * 100_000) is None
    assert decoded({"a": 1}) == {"a": 1}


def test_zero_is_not_measured():
    assert [positive(value) for value in (0, 0.0, "0", "0.0", 0.5, "x", None)] == [
        None,
        None,
        None,
        None,
        0.5,
        "x",
        None,
    ]

"""Cells of text as counts, times and durations: exact values, and what cannot be read is marked, never 0."""

from __future__ import annotations

import polars as pl
import pytest

from inferdoc.traces.columns import parse_counts, parse_durations, parse_times, split_unit, zone_notes


def column(*cells):
    return pl.Series(cells, dtype=pl.String)


@pytest.mark.parametrize(
    ("cell", "value"),
    [("82", 82), ("43.0", 43), (" 7 ", 7), ("1,024", 1024), ("1e3", 1000), ("0", 0), ("10000000", 10_000_000)],
)
def test_spellings_of_a_count(cell, value):
    parsed = parse_counts(column(cell))
    assert (parsed.values.to_list(), parsed.bad.to_list()) == ([value], [False])


@pytest.mark.parametrize("cell", [None, "", "-", "NaN", "null", "None"])
def test_absent_is_null_and_not_bad(cell):
    parsed = parse_counts(column(cell, "5"))
    assert (parsed.values.to_list(), parsed.bad.to_list()) == ([None, 5], [False, False])


@pytest.mark.parametrize("cell", ["-1", "4.5", "abc", "True", "10000001", "inf", "99999999999999999999"])
def test_what_is_no_count_is_marked(cell):
    assert parse_counts(column(cell, "5")).bad.to_list() == [True, False]


def test_millisecond_stamps_keep_their_differences():
    times = parse_times(column("1", "2", "9", "11"), "ms").values
    assert (times - times[0]).to_list() == [0, 1_000_000, 8_000_000, 10_000_000]


@pytest.mark.parametrize(
    ("cell", "unit", "nanoseconds"),
    [
        ("4.314579", "s", 4_314_579_000),
        ("1787267980.0827403", "s", 1_787_267_980_082_740_300),
        ("19440110.0", "s", 19_440_110 * 10**9),
        ("-1.5", "s", -1_500_000_000),
        ("1.5e-05", "s", 15_000),
        ("0.25", "ms", 250_000),
        ("199.96150599999999", "s", 199_961_506_000),
        ("26.407057000000002", "s", 26_407_057_000),
        ("-0.9999999996", "s", -1_000_000_000),
        ("46926808", "ns", 46_926_808),
    ],
)
def test_times_are_exact_to_the_nanosecond(cell, unit, nanoseconds):
    assert parse_times(column(cell), unit).values.to_list() == [nanoseconds]


@pytest.mark.parametrize(
    ("cell", "unit"),
    [
        ("0", "s"),
        ("5270414", "s"),
        ("1700000000", "s"),
        ("1700000000.25", "s"),
        ("1700000000000", "ms"),
        ("1700000000000000", "us"),
        ("1700000000000000000", "ns"),
    ],
)
def test_the_unit_of_an_epoch_by_its_size(cell, unit):
    parsed = parse_times(column(cell, cell))
    assert parsed.unit == unit
    assert parsed.values[0] % (1_700_000_000 * 10**9) in (0, 250_000_000, 5270414 * 10**9)


# 2024-05-10 is day 19,853 after 1970-01-01: 19,853 * 86,400 = 1,715,299,200 s.
MIDNIGHT = 1_715_299_200 * 10**9


@pytest.mark.parametrize(
    ("cell", "nanoseconds"),
    [
        ("2024-05-10 00:00:00", MIDNIGHT),
        ("2024-05-10T00:00:00Z", MIDNIGHT),
        ("2024-05-10 00:00:00.009930+00:00", MIDNIGHT + 9_930_000),
        ("2024-05-10 00:00:03.9799600", MIDNIGHT + 3_979_960_000),
        ("2024-05-10 02:00:00+02:00", MIDNIGHT),
        ("2024-05-09 22:30:00-0130", MIDNIGHT),
        ("2024-05-10 00:00:00.1234567891", MIDNIGHT + 123_456_789),
    ],
)
def test_wall_clocks(cell, nanoseconds):
    parsed = parse_times(column(cell))
    assert (parsed.values.to_list(), parsed.unit) == ([nanoseconds], "wall clock")


def test_times_without_a_zone_among_others_are_said():
    parsed = parse_times(column("2024-05-10 00:00:00", "2024-05-10 00:00:01Z"))
    assert parsed.naive == 1
    assert zone_notes(parsed.naive, 2) == ["1 of 2 times name no zone: read as UTC like the others"]
    assert zone_notes(2, 2) == zone_notes(0, 2) == []


@pytest.mark.parametrize("cell", ["2024-13-10 00:00:00", "yesterday", "12"])
def test_what_is_no_time_of_day_is_marked(cell):
    assert parse_times(column("2024-05-10 00:00:00", "2024-05-10 00:00:00", cell)).bad.to_list() == [False, False, True]


def test_durations_outside_of_reason_are_marked():
    parsed = parse_durations(column("0.35", "0.0005", "86400001", "0", "x", None), "ms")
    assert parsed.bad.to_list() == [False, True, True, True, True, False]
    assert parsed.values[0] == pytest.approx(0.00035, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "base", "unit"),
    [
        ("arrival_time_ns", "arrivaltime", "ns"),
        ("startTimeMs", "starttime", "ms"),
        ("Latency (ms)", "latency", "ms"),
        ("ttft_s", "ttft", "s"),
        ("TIMESTAMP", "timestamp", None),
        ("Request tokens", "requesttokens", None),
        ("ts", "ts", None),
        ("s", "s", None),
    ],
)
def test_units_at_the_end_of_names(name, base, unit):
    assert split_unit(name) == (base, unit)

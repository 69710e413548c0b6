"""Two ways through the same files: whole columns at once, and record by record. Both give the same trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.errors import TraceError
from inferdoc.traces import csvtable, flatjson, quick, read_trace
from inferdoc.traces.columns import NANOSECONDS, parse_counts, parse_durations, parse_times, quotients
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Records
from inferdoc.traces.source import Source

CELLS = st.one_of(
    st.integers(-3, 20_000_000),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from(["82", " 7 ", "1,024", "x", "", "null", "NaN", "43.0", "1e3", 2**63, 10**30, True, None, -0.0]),
)
IDS = st.one_of(
    st.lists(st.integers(0, 2**64 - 1), max_size=4),
    st.none(),
    st.sampled_from([[1.5], [-1], ["1"], 5, "7", {"a": 1}, [None], [2**64], [[1]], [2.0]]),
)
ROWS = st.fixed_dictionaries(
    {"timestamp": CELLS, "input_length": CELLS, "output_length": CELLS},
    optional={"hash_ids": IDS, "session_id": st.sampled_from(["a", "é", 5]), "extra": st.just({"x": [1]})},
)
LINES = st.one_of(
    ROWS.map(json.dumps), st.sampled_from(["", "  ", "5", "[1]", "null", '{"a":1', '{"input_length":1 2}', "{}"])
)


def outcome(path, **options):
    try:
        trace = read_trace(path, **options)
    except TraceError as error:
        # A number may be spelt in two ways: 5.0 and 5.
        return re.sub(r"is '.*?'(\.\.\.)?: expected", "", str(error))
    return trace.rows.to_dicts(), trace.left_out, trace.notes, trace.block_size


@pytest.mark.parametrize("trace_format", ["mooncake", "jsonl"])
@settings(max_examples=150, deadline=None)
@given(lines=st.lists(LINES, min_size=1, max_size=6), skip=st.booleans(), end=st.sampled_from(["\n", "\r\n", ""]))
def test_columns_and_records_agree(trace_format, lines, skip, end):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "t.jsonl"
        path.write_bytes((("\r\n" if end == "\r\n" else "\n").join(lines) + end).encode())
        fast = outcome(path, trace_format=trace_format, skip_bad_rows=skip)
        patch.setattr(flatjson, "_read", lambda *_: None)
        patch.setattr(flatjson, "keys", lambda *_: None)
        assert fast == outcome(path, trace_format=trace_format, skip_bad_rows=skip)


TABLE_CELLS = st.sampled_from(
    ["5", "82", "43.0", "1e3", "-1", "", "x", " 7 ", "2023-11-16 18:17:03.9799600", "0.25", "12.5", "nan", "timestamp"]
)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.lists(TABLE_CELLS, min_size=2, max_size=4), max_size=6),
    skip=st.booleans(),
    end=st.sampled_from(["\n", ""]),
)
def test_plain_and_careful_tables_agree(rows, skip, end):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "t.csv"
        header = ["timestamp", "input_tokens", "output_tokens"]
        path.write_text("\n".join(",".join(row) for row in [header, *rows]) + end)
        fast = outcome(path, skip_bad_rows=skip)
        patch.setattr(csvtable, "_scan_plain", lambda *_: None)
        assert fast == outcome(path, skip_bad_rows=skip)


def test_the_fast_way_is_taken(write):
    row = '{"timestamp":0,"input_length":5,"output_length":2,"hash_ids":[18446744073709551615]}'
    path = write("t.jsonl", f"{row}\n\n" * 2)
    frame = flatjson._read(Source.find(path), flatjson.schema_of(["timestamp"], {"hash_ids": "Q"}))
    assert frame.to_dict(as_series=False) == {
        "": [1, 3],
        "timestamp": ["0", "0"],
        "hash_ids": [[2**64 - 1], [2**64 - 1]],
    }
    assert flatjson.keys(Records([Source.find(path)], Ledger("t", skip_bad_rows=True))) == [
        "timestamp",
        "input_length",
        "output_length",
        "hash_ids",
    ]


TIMES = st.one_of(
    st.integers(-(10**19), 10**19).map(str),
    st.from_regex(r"[+-]?\d{1,12}(\.\d{0,20})?(e[+-]?\d)?", fullmatch=True),
    st.from_regex(
        r"20\d\d-[01]\d-[0-3]\d[T ][0-2]\d:[0-6]\d:[0-6]\d([.,]\d{0,12})? ?(Z|z|UTC|[+-][01]\d:?[03]0)?", fullmatch=True
    ),
    st.sampled_from(["", "-", "NaN", "1.+5", "1.-5", "0x5", "1_0", "-0.5", "2023-1-1 00:00:00"]),
)


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(TIMES, min_size=1, max_size=5), unit=st.sampled_from(["s", "ms", "us", "ns"]))
def test_what_is_read_quickly_is_read_alike_with_care(texts, unit):
    column = pl.Series(texts, dtype=pl.String)
    frame = column.to_frame("x")
    pairs = [
        (quick.count(pl.col("x"), 10_000_000), parse_counts(column)),
        (quick.number_of(pl.col("x"), unit), parse_times(column, unit)),
    ]
    clock = quick.Clock.like(texts[0])
    if clock is not None:
        pairs.append((clock.read(pl.col("x")), parse_times(column, "wall clock")))
    durations = quotients(frame.select(quick.duration(pl.col("x"), unit))["x"], 10**9 // NANOSECONDS[unit])
    found = [(frame.select(expression.alias("x"))["x"], careful) for expression, careful in pairs]
    for quickly, careful in [*found, (durations, parse_durations(column, unit))]:
        for at, value in enumerate(quickly):
            if value is not None:
                assert (value, careful.bad[at]) == (careful.values[at], False), texts[at]

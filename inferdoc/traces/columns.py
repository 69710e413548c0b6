"""Columns of text turned into counts, times and durations, with the rows that do not fit marked.

Every parser takes a String column and returns the values beside a Boolean column that marks what cannot be read;
absent (``""``, ``-``, ``NaN``, ``null``, ``None``) is null and never marked. Times are whole nanoseconds, so that a
difference of two of them is exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

MOST_TOKENS = 10_000_000
"""No model reads or writes more tokens in one request: a larger count is another quantity."""
DAY_S = 86_400.0
SHORTEST_LATENCY_S = 1e-6
WALL_CLOCK = "wall clock"
_ROWS_FOR_UNIT = 10_000

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_UNIT_WORDS = {
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "ms": "ms", "msec": "ms", "millis": "ms", "milliseconds": "ms",
    "us": "us", "usec": "us", "micros": "us", "microseconds": "us",
    "ns": "ns", "nanos": "ns", "nanoseconds": "ns",
}  # fmt: skip
_ABSENT = ["", "-", "nan", "null", "none", "n/a", "na"]
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_DATE_TIME = r"^([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})"
CLOCK = _DATE_TIME + r"(?:[.,]([0-9]{1,9})[0-9]*)?\s*(Z|z|UTC|[+-][0-9]{2}:?[0-9]{2})?$"


@dataclass(frozen=True)
class Parsed:
    """Values of a column; `bad` marks the rows that hold something else than `expected`."""

    values: pl.Series
    bad: pl.Series
    expected: str
    unit: str | None = None
    naive: int = 0
    """Times of a wall clock that name no zone."""


def as_text(value: Any) -> str | None:
    """A JSON value as a cell of a String column: numbers keep every digit, half a surrogate pair becomes ``?``."""
    if value is None:
        return None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return json.dumps(value)


def text_column(values: Iterable[Any]) -> pl.Series:
    """JSON values as a String column."""
    return pl.Series([as_text(value) for value in values], dtype=pl.String)


def words(name: str) -> list[str]:
    """A field's name in lower-case words: ``startTimeMs`` and ``start_time (ms)`` are both start, time, ms."""
    return [word.lower() for word in _WORDS.findall(name)]


def split_unit(name: str) -> tuple[str, str | None]:
    """A field's name without separators and without the unit that it ends in, and that unit."""
    parts = words(name)
    unit = _UNIT_WORDS.get(parts[-1]) if len(parts) > 1 else None
    return "".join(parts[:-1] if unit else parts), unit


def present(text: pl.Series) -> pl.Series:
    """The column without surrounding space, null where it says that there is nothing."""
    return _frame(text).select(present_cells(pl.col("x")).alias("x"))["x"]


def present_cells(text: pl.Expr) -> pl.Expr:
    """As `present`, for an expression."""
    stripped = text.str.strip_chars()
    return pl.when(~stripped.str.to_lowercase().is_in(_ABSENT)).then(stripped)


def parse_counts(text: pl.Series, *, most: int | None = MOST_TOKENS) -> Parsed:
    """Whole numbers from 0 to `most` as Int64; ``43.0``, ``"82"`` and ``"1,024"`` are such numbers."""
    plain = _number_text(text)
    number = plain.cast(pl.Float64, strict=False)
    whole = _frame(plain, number).select(
        pl.coalesce(
            pl.col("x").cast(pl.Int64, strict=False),
            pl.when(pl.col("y") == pl.col("y").floor()).then(pl.col("y")).cast(pl.Int64, strict=False),
        )
    )["x"]
    limit = most if most is not None else 2**62
    bad = plain.is_not_null() & (~whole.is_between(0, limit)).fill_null(True)
    expected = f"a whole number from 0 to {most:,}" if most is not None else "a whole number, not negative"
    return Parsed(whole, bad, expected)


def parse_durations(text: pl.Series, unit: str) -> Parsed:
    """Durations in `unit` as Float64 seconds, from 1 us to a day."""
    plain = _number_text(text)
    seconds = quotients(plain.cast(pl.Float64, strict=False), 10**9 // NANOSECONDS[unit])
    bad = plain.is_not_null() & (~seconds.is_between(SHORTEST_LATENCY_S, DAY_S)).fill_null(True)
    return Parsed(seconds, bad, f"a time in {unit} between 0.001 ms and a day", unit)


def quotients(numbers: pl.Series, divisor: int) -> pl.Series:
    """`numbers` over `divisor`, correctly rounded: polars would multiply by an inexact reciprocal."""
    return pl.Series(numbers.name, numbers.to_numpy() / divisor, nan_to_null=True)


def parse_times(text: pl.Series, unit: str | None = None) -> Parsed:
    """Points in time as Int64 nanoseconds: numbers in `unit`, or a wall clock (see `unit_of_times` where not given)."""
    plain = present(text)
    if unit is None:
        unit = unit_of_times(plain)
    if unit == WALL_CLOCK:
        return _wall_clock(plain)
    values = _nanoseconds(plain, NANOSECONDS[unit])
    return Parsed(values, plain.is_not_null() & values.is_null(), f"a time in {unit}", unit)


def unit_of_times(text: pl.Series) -> str:
    """The unit of a column of times, by its first 10,000 values.

    Text that is mostly no number is a wall clock; numbers from 1e11 on are epoch milliseconds (1e14 microseconds, 1e17
    nanoseconds), and smaller ones seconds.
    """
    given = present(text).drop_nulls().head(_ROWS_FOR_UNIT)
    number = given.cast(pl.Float64, strict=False)
    return WALL_CLOCK if len(given) and number.null_count() * 2 > len(given) else _unit_of(number)


def zone_notes(naive: int, given: int) -> list[str]:
    if 0 < naive < given:
        return [f"{naive:,} of {given:,} times name no zone: read as UTC like the others"]
    return []


def _unit_of(number: pl.Series) -> str:
    middle = number.abs().median()
    size = middle if isinstance(middle, float) else 0.0
    for limit, unit in ((1e17, "ns"), (1e14, "us"), (1e11, "ms")):
        if size >= limit:
            return unit
    return "s"


def _nanoseconds(plain: pl.Series, factor: int) -> pl.Series:
    """Decimal digits to nanoseconds in whole numbers, rounded; null where the text is no number or out of range."""
    digits = len(str(factor)) - 1
    parts = _frame(plain).select(
        pl.col("x").str.extract(r"^([+-]?[0-9]+)(?:\.[0-9]*)?$").cast(pl.Int64, strict=False).alias("whole"),
        pl.col("x").str.extract(r"^[+-]?[0-9]+\.([0-9]+)$").fill_null("").str.pad_end(digits, "0").alias("fraction"),
        pl.col("x").str.starts_with("-").alias("negative"),
        pl.col("x").cast(pl.Float64, strict=False).alias("float"),
    )
    fraction = pl.col("fraction").str.slice(0, digits).cast(pl.Int64, strict=False).fill_null(0)
    fraction += (pl.col("fraction").str.slice(digits, 1) >= "5").cast(pl.Int64)
    exact = pl.col("whole") * factor + pl.when(pl.col("negative")).then(-fraction).otherwise(fraction)
    in_range = (pl.col("float") * factor).abs() < 2.0**62
    rounded = (pl.col("float") * factor).round().cast(pl.Int64, strict=False)
    return parts.select(pl.when(in_range).then(pl.coalesce(exact, rounded)).alias("x"))["x"]


def _wall_clock(plain: pl.Series) -> Parsed:
    parts = _frame(plain).select(
        pl.concat_str(pl.col("x").str.extract(CLOCK, 1), pl.lit(" "), pl.col("x").str.extract(CLOCK, 2))
        .str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ns", strict=False)
        .cast(pl.Int64)
        .alias("second"),
        pl.col("x").str.extract(CLOCK, 3).fill_null("0").str.pad_end(9, "0").cast(pl.Int64).alias("fraction"),
        pl.col("x").str.extract(CLOCK, 4).str.to_uppercase().alias("zone"),
        pl.col("x").is_not_null().alias("given"),
    )
    sign = pl.when(pl.col("zone").str.starts_with("-")).then(-1).otherwise(1)
    hours = pl.col("zone").str.extract(r"^[+-]([0-9]{2})").cast(pl.Int64)
    minutes = pl.col("zone").str.extract(r"^[+-][0-9]{2}:?([0-9]{2})$").cast(pl.Int64)
    offset = (sign * (hours * 3600 + minutes * 60)).fill_null(0) * 10**9
    values = parts.select((pl.col("second") + pl.col("fraction") - offset).alias("x"))["x"]
    naive = parts.filter(pl.col("second").is_not_null())["zone"].null_count()
    expected = "a time such as 2024-05-10 00:00:00.5"
    return Parsed(values, parts["given"] & values.is_null(), expected, WALL_CLOCK, naive)


def _number_text(text: pl.Series) -> pl.Series:
    plain = present(text)
    grouped = plain.str.contains(r"^[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?$").fill_null(False)
    if not grouped.any():
        return plain
    return _frame(plain, grouped).select(
        pl.when(pl.col("y")).then(pl.col("x").str.replace_all(",", "", literal=True)).otherwise(pl.col("x"))
    )["x"]


def _frame(x: pl.Series, y: pl.Series | None = None) -> pl.DataFrame:
    return pl.DataFrame({"x": x} if y is None else {"x": x, "y": y})


def lists(values: Sequence[Sequence[int] | None], dtype: type[pl.DataType]) -> pl.Series:
    """Whole numbers of each row as a list column of `dtype`, exact to 64 bits."""
    return pl.Series([None if row is None else pl.Series(row, dtype=dtype) for row in values], dtype=pl.List(dtype))

"""Cells of the usual forms as expressions, for millions of rows: null where a cell needs the careful parsers.

What these read, `inferdoc.traces.columns` reads alike; everything else (thousands separators, exponents, words for
"absent", other zones) is left to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from inferdoc.traces.columns import CLOCK, DAY_S, NANOSECONDS, SHORTEST_LATENCY_S

_ZONE = re.compile(r"([+-])([0-9]{2}):([0-9]{2})")
_LONGEST_FRACTION = 18


def count(text: pl.Expr, most: int) -> pl.Expr:
    """Whole numbers from 0 to `most`."""
    value = text.cast(pl.Int64, strict=False)
    return pl.when(value.is_between(0, most)).then(value)


def duration(text: pl.Expr, unit: str) -> pl.Expr:
    """Durations in `unit` from 1 us to a day."""
    value = text.cast(pl.Float64, strict=False)
    a_second = 10**9 // NANOSECONDS[unit]
    return pl.when(value.is_between(SHORTEST_LATENCY_S * a_second, DAY_S * a_second)).then(value)


def number_of(text: pl.Expr, unit: str) -> pl.Expr:
    """Points in time as whole nanoseconds: digits with or without a fraction, not negative."""
    factor = NANOSECONDS[unit]
    digits = len(str(factor)) - 1
    point = text.str.find(".", literal=True)
    whole = pl.when(point.is_null()).then(text).otherwise(text.str.slice(0, point)).cast(pl.Int64, strict=False)
    behind = text.str.slice(point + 1)
    fraction = behind.str.slice(0, digits).str.pad_end(digits, "0").cast(pl.Int64, strict=False)
    usual = _is_digits(behind) if digits else pl.lit(False)
    up = (behind.str.slice(digits, 1) >= "5").cast(pl.Int64)
    value = whole * factor + pl.when(point.is_null()).then(0).when(usual).then(fraction + up)
    return pl.when(~text.str.starts_with("-") & (whole < 2**61 // factor)).then(value)


@dataclass(frozen=True)
class Clock:
    """The spelling of a wall clock: what stands between day and hour, and the zone behind the fraction."""

    between: str
    zone: str

    @classmethod
    def like(cls, example: str) -> Clock | None:
        """That of `example`, or ``None`` where it has to be read carefully."""
        found = re.match(CLOCK, example)
        if found is None:
            return None
        zone = found[4] or ""
        usual = zone in ("", "Z") or _ZONE.fullmatch(zone)
        return cls(example[10], zone) if usual and example.endswith(zone) else None

    @property
    def offset_s(self) -> int:
        found = _ZONE.fullmatch(self.zone)
        return 0 if found is None else int(f"{found[1]}{int(found[2]) * 3600 + int(found[3]) * 60}")

    def read(self, text: pl.Expr) -> pl.Expr:
        """Points in time as whole nanoseconds since 1970, UTC where the clock names no zone."""
        second = text.str.slice(0, 19).str.to_datetime(f"%Y-%m-%d{self.between}%H:%M:%S", time_unit="ns", strict=False)
        behind = text.str.slice(19)
        rest = behind.str.strip_suffix(self.zone) if self.zone else behind
        digits = rest.str.slice(1)
        fraction = digits.str.slice(0, 9).str.pad_end(9, "0").cast(pl.Int64, strict=False)
        usual = pl.when(rest == "").then(0).when(rest.str.starts_with(".") & _is_digits(digits)).then(fraction)
        value = second.cast(pl.Int64) + usual - self.offset_s * 10**9
        return pl.when(behind.str.ends_with(self.zone)).then(value) if self.zone else value


def _is_digits(text: pl.Expr) -> pl.Expr:
    """Whether a text is digits only, at most as many as a number of 64 bits has."""
    number = text.cast(pl.UInt64, strict=False).is_not_null()
    return number & ~text.str.starts_with("+") & (text.str.len_bytes() <= _LONGEST_FRACTION)

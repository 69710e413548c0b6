"""From cells to values: counts, durations, times and texts of all rows in one pass, what is unusual read carefully."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import polars as pl

from inferdoc.traces import columns, quick
from inferdoc.traces.columns import MOST_TOKENS, NANOSECONDS, WALL_CLOCK, Parsed
from inferdoc.traces.draft import Draft

COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "cache_read", "cache_creation")
DURATIONS = ("ttft_s", "e2e_s", "queue_s")
TEXTS = ("session", "model", "status", "error", "request_id", "operation")
_ORDER = ("row", "arrival", *COUNTS, *DURATIONS, "turn", *TEXTS)
"""Roles in the order in which their faults are told, whatever the order of the columns."""
_LARGEST_TURN = 2**62
_ROWS_FOR_UNIT = 10_000


@dataclass(frozen=True)
class Role:
    """How the cells of a role are read: `quickly`, and `carefully` where that gives null."""

    quickly: pl.Expr
    carefully: Callable[[pl.Series], Parsed]
    unit: str | None = None
    divisor: int = 1
    """What `quickly` gives, over this, is the value."""
    naive: bool = False
    """The times that are read quickly name no zone."""

    @property
    def unsure(self) -> pl.Expr:
        return self.quickly.is_null()


@dataclass(frozen=True)
class Cells:
    """A role's values; `unusual` are the positions that were read carefully, `texts` what stands there."""

    values: pl.Series
    bad: pl.Series
    """Positions (not flags) of cells that hold something else than `expected`."""
    expected: str
    unusual: pl.Series
    texts: pl.Series
    unit: str | None = None
    naive: int = 0
    """Times of a wall clock that name no zone."""

    @property
    def given(self) -> int:
        return len(self.values) - self.values.null_count()

    def text(self, position: int) -> str:
        found = self.unusual.search_sorted(position)
        return str(self.texts[int(found)])


def parse(draft: Draft, notes: list[str]) -> tuple[pl.DataFrame, dict[str, Cells]]:
    """The lines and the texts (session, model, ...) of all rows, and the other roles' cells."""
    texts = draft.texts()
    names = sorted(texts.collect_schema().names(), key=_ORDER.index)
    roles = {role: _role(role, draft, texts) for role in names if role != "row" and role not in TEXTS}
    found = texts.select(
        pl.col("row").cast(pl.UInt32),
        *(columns.present_cells(pl.col(role)).alias(role) for role in TEXTS if role in names),
        *(role.quickly.alias(name) for name, role in roles.items()),
        *((pl.col(name).is_not_null() & role.unsure).alias(f"{name}?") for name, role in roles.items()),
    ).collect(engine="streaming")
    found = _in_one_piece(found)
    cells = {}
    for name, role in roles.items():
        unusual = found[f"{name}?"].arg_true()
        unread = pl.col(name).is_not_null() & role.unsure
        rest = texts.filter(unread).select(name).collect(engine="streaming")[name] if len(unusual) else _no_text()
        cells[name] = _together(role, found[name], unusual, rest)
    notes.extend(_notes(draft, cells))
    return found.select("row", *(role for role in TEXTS if role in names)), cells


def _notes(draft: Draft, cells: dict[str, Cells]) -> list[str]:
    """Units that no name gives, and zones that some times name and others do not."""
    notes = [
        f"{draft.name(role)} names no unit: read as seconds"
        for role in DURATIONS
        if role in cells and role not in draft.units
    ]
    times = cells.get("arrival")
    if times is None or not times.given:
        return notes
    if times.unit == WALL_CLOCK:
        return notes + columns.zone_notes(times.naive, times.given)
    if "arrival" not in draft.units:
        notes.append(f"{draft.name('arrival')} names no unit: read as {times.unit}, by its size")
    return notes


def _role(name: str, draft: Draft, texts: pl.LazyFrame) -> Role:
    text = pl.col(name)
    if name in COUNTS:
        # Narrow until the trace is complete: this is where most memory is used.
        return Role(quick.count(text, MOST_TOKENS).cast(pl.Int32), columns.parse_counts)
    if name in DURATIONS:
        unit = draft.units.get(name, "s")
        carefully = partial(columns.parse_durations, unit=unit)
        return Role(quick.duration(text, unit), carefully, unit, divisor=10**9 // NANOSECONDS[unit])
    if name == "arrival":
        first = texts.select(name).drop_nulls().head(_ROWS_FOR_UNIT).collect(engine="streaming")[name]
        return _times(text, columns.present(first).drop_nulls(), draft.units.get(name))
    # Whole numbers of any size: turns.
    return Role(quick.count(text, _LARGEST_TURN), partial(columns.parse_counts, most=None))


def _times(text: pl.Expr, first: pl.Series, unit: str | None) -> Role:
    unit = unit or columns.unit_of_times(first)
    carefully = partial(columns.parse_times, unit=unit)
    if unit != WALL_CLOCK:
        return Role(quick.number_of(text, unit), carefully, unit)
    clock = quick.Clock.like(first[0])
    quickly = clock.read(text) if clock else pl.lit(None, pl.Int64)
    return Role(quickly, carefully, unit, naive=clock is not None and not clock.zone)


def _together(role: Role, values: pl.Series, unusual: pl.Series, texts: pl.Series) -> Cells:
    parsed = role.carefully(texts)
    if role.divisor > 1:
        values = columns.quotients(values, role.divisor)
    naive = parsed.naive + role.naive * (len(values) - values.null_count())
    if len(unusual):
        # What is out of range has no value here either: such rows are not kept.
        values = values.scatter(unusual, parsed.values.cast(values.dtype, strict=False))
    return Cells(values, unusual.filter(parsed.bad), parsed.expected, unusual, texts, role.unit, naive)


def _in_one_piece(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns without the pieces in which they were read, one after another, so that only one is there twice."""
    names = frame.columns
    return pl.DataFrame([frame.drop_in_place(name).rechunk() for name in names])


def _no_text() -> pl.Series:
    return pl.Series(dtype=pl.String)

"""The order of arrival: one clock, a clock that starts again, or the clocks of independent runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import polars as pl

from inferdoc.traces.restarts import Times, restarts

_ROWS_AT_ONCE = 1 << 20
_EPOCH_NS = 10**18
"""Later times (from 2001 on) are of an absolute clock, which cannot start again."""

Place = Callable[[int], str]
"""Where a row is, as notes say it."""


def in_order(rows: pl.DataFrame, notes: list[str], *, independent: bool, place: Place) -> tuple[pl.DataFrame, bool]:
    """Rows by arrival (stable), and whether the segments' clocks are independent.

    `arrival_s` is counted from the first arrival: of all where there is one clock (a segment of a log whose clock
    starts again follows the one before), of its segment where the clocks are independent.
    """
    segments = rows["segment"].n_unique() if "segment" in rows.columns else 1
    if "arrival" not in rows.columns or rows["arrival"].null_count() == rows.height:
        ordered = rows.sort("segment", maintain_order=True) if segments > 1 else rows
        return _without_times(ordered), independent and segments > 1
    if segments > 1 and rows["arrival"].null_count():
        notes.append("some runs have no arrival times: those of the others are not used either")
        return _without_times(rows.sort("segment", maintain_order=True)), independent
    if segments > 1 and independent:
        notes.append(
            f"{segments:,} parts with clocks of their own: arrival times count from the start of each part, and there"
            " is no rate or duration of the whole"
        )
        return _by_segment(rows, notes), True
    return _on_one_clock(rows, notes, place, given=segments > 1), False


def _without_times(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.drop("arrival", strict=False)


def _by_segment(rows: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    since = rows.select(pl.col("arrival") - pl.col("arrival").min().over("segment"))["arrival"]
    backwards = int(rows.select((pl.col("arrival").diff().over("segment") < 0).sum()).item())
    if backwards:
        notes.append(_disorder(backwards))
    rows = rows.drop("arrival").with_columns(_seconds(since.to_numpy(), 0))
    return rows.sort("segment", "arrival_s", maintain_order=True)


def _on_one_clock(rows: pl.DataFrame, notes: list[str], place: Place, *, given: bool) -> pl.DataFrame:
    """`given`: the source itself says which rows belong to which segment."""
    if given:
        rows = rows.sort("segment", maintain_order=True)
    times = rows["arrival"].to_numpy()
    if given:
        starts = [int(at) + 1 for at in np.flatnonzero(np.diff(rows["segment"].to_numpy()))]
        # A segment that begins after the end of the one before needs no shift: its clock went on.
        starts = [start for start in starts if times[start:].min() < times[:start].max()]
    else:
        starts = restarts(times) if times.max() < _EPOCH_NS else []
    rows = rows.drop("arrival")
    if starts:
        times = _one_after_the_other(times, starts)
        notes.extend(
            f"the clock starts again at {place(rows['row'][start])}: read as a segment that follows the one before"
            for start in starts
        )
        if not given:
            rows = rows.with_columns(pl.Series("segment", np.searchsorted(starts, np.arange(len(times)), "right")))
    backwards = int(np.count_nonzero(times[1:] < times[:-1]))
    rows = rows.with_columns(_seconds(times, int(times.min())))
    if not backwards:
        return rows
    notes.append(_disorder(backwards))
    return rows.sort(["segment", "arrival_s"] if starts else ["arrival_s"], maintain_order=True)


def _one_after_the_other(times: Times, starts: list[int]) -> Times:
    times = times.copy()
    for begin, start in pairwise([0, *starts]):
        stretch = np.sort(times[begin:start])
        gap = int(np.median(np.diff(stretch))) if len(stretch) > 1 else 0
        end = starts[starts.index(start) + 1] if start != starts[-1] else len(times)
        times[start:end] += stretch[-1] + gap - times[start:end].min()
    return times


def _seconds(times: Times, start: int) -> pl.Series:
    """Seconds since `start`, which are exact quotients: polars would multiply by an inexact 1e-9."""
    seconds = np.empty(len(times))
    for at in range(0, len(times), _ROWS_AT_ONCE):
        part = slice(at, at + _ROWS_AT_ONCE)
        np.divide(times[part] - start, 1e9, out=seconds[part])
    return pl.Series("arrival_s", seconds)


def _disorder(backwards: int) -> str:
    return f"rows are not in order of arrival ({backwards:,} steps back): sorted"

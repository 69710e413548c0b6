"""Closed loops: a turn starts when the one before has ended, so that its time depends on the server that ran it."""

from __future__ import annotations

import polars as pl

from inferdoc.traces.columns import parse_counts, present
from inferdoc.traces.draft import Draft


def without_arrivals(draft: Draft, why: str) -> None:
    """Drop the arrival times of `draft` where only some requests have one: half a clock gives no rate and no order."""
    times = draft.cells.get("arrival")
    if times is None:
        return
    known = len(times) - present(times).null_count()
    if known == len(times):
        return
    del draft.cells["arrival"]
    draft.notes.append(
        f"{why}: {known:,} of {len(times):,} requests have a time of their own, so the trace has no arrival times and"
        " no rate; requests stay in the order of the file"
    )


def from_one(numbers: pl.Series) -> pl.Series:
    """Numbers of turns (as text) counted from 1 where the source counts from 0; what is no number stays."""
    parsed = parse_counts(numbers, most=None)
    if parsed.values.filter(~parsed.bad).min() != 0:
        return numbers
    frame = pl.DataFrame({"text": numbers, "value": parsed.values, "bad": parsed.bad})
    return frame.select(pl.when("bad").then("text").otherwise((pl.col("value") + 1).cast(pl.String)).alias("x"))["x"]

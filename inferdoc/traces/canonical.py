"""Our own file of a trace, which keeps every column: JSON lines or Parquet.

Each row has the columns of `SCHEMA` under their own names, in seconds and tokens; absent ones are left out (null in
Parquet). The first row also has the field ``inferdoc``, with what holds for the whole trace. Rows with ids repeat the
block size, so that a part of the file can be read without that field, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import polars as pl
from pydantic import Field, ValidationError

from inferdoc.evidence import Contract
from inferdoc.traces import checks, sessions, summary
from inferdoc.traces.columns import DAY_S, SHORTEST_LATENCY_S
from inferdoc.traces.model_names import model_notes
from inferdoc.traces.trace import SCHEMA, Trace

HEADER = "inferdoc"
BLOCK_SIZE = "block_size"
VERSION = 1
DURATIONS = ("ttft_s", "e2e_s", "queue_s")
COLUMNS: Mapping[str, pl.DataType] = {name: kind for name, kind in SCHEMA.items() if name not in ("row", "status")}
"""Without the line, which is that of the file, and the status, which is the same for all."""


class Header(Contract):
    version: int = VERSION
    block_size: int | None = None
    independent_clocks: bool = False
    notes: list[str] = Field(default_factory=list)

    @classmethod
    def read(cls, text: str | None) -> Header | None:
        """From the field's JSON; ``None`` where it is something else, or of a version that is not read."""
        try:
            found = cls.model_validate(json.loads(text or "null"))
        except (ValueError, ValidationError):
            return None
        return found if found.version == VERSION else None


def frame_of(trace: Trace, notes: list[str]) -> tuple[pl.DataFrame, list[str]]:
    """The file's rows, header included, and what of `trace` they cannot keep."""
    lost = []
    rows = trace.rows.select(name for name in COLUMNS if trace.has(name))
    for name in DURATIONS:
        if name not in rows.columns:
            continue
        usual = pl.col(name).is_between(SHORTEST_LATENCY_S, DAY_S)
        others = rows.filter(~usual).height
        if others:
            lost.append(f"{others:,} values of {name} that are no time from 1 us to a day")
            rows = rows.with_columns(pl.when(usual).then(name).alias(name))
    if "arrival_s" in rows.columns:
        rows = rows.with_columns(pl.col("arrival_s").round(9))
    if trace.has("prefix_blocks"):
        size = pl.when(pl.col("prefix_blocks").is_not_null()).then(pl.lit(trace.block_size, pl.Int64))
        rows = rows.with_columns(size.alias(BLOCK_SIZE))
    header = Header(block_size=trace.block_size, independent_clocks=trace.independent_clocks, notes=notes)
    first = pl.int_range(pl.len()) == 0
    return rows.with_columns(pl.when(first).then(pl.lit(header.model_dump_json())).alias(HEADER)), lost


def lasting_notes(trace: Trace) -> list[str]:
    """Notes of `trace` that a reader of its rows would not make again."""
    rows = trace.rows
    again = {
        *sessions.session_notes(rows),
        *model_notes(rows),
        *checks.repetition_notes(rows, has_ids=False),
        *(summary.clock_notes(rows["arrival_s"].to_numpy()) if trace.duration_s is not None else []),
    }
    return [note for note in trace.notes if note not in again]

"""From what a reader found to a trace: parse, check every row, set aside what failed, put in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces import blocks, columns
from inferdoc.traces.columns import Parsed
from inferdoc.traces.ledger import Ledger, shorten
from inferdoc.traces.sessions import session_notes, with_turns
from inferdoc.traces.source import Source
from inferdoc.traces.summary import clock_notes
from inferdoc.traces.trace import SCHEMA, Trace

COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "cache_read", "cache_creation")
DURATIONS = ("ttft_s", "e2e_s", "queue_s")
TEXTS = ("session", "model", "status", "error")
_FAILED_STATUS = r"(?i)^(fail|error|cancel|abort|timeout|timed|expired|invalid|[45]\d\d)"
_NO_ERROR = ["", "0", "null", "none", "false", "[]", "{}"]
_RESTART_ROWS = 10
_EPOCH_NS = 10**18
"""Later times (from 2001 on) are of an absolute clock, which cannot start again."""


@dataclass
class Draft:
    """What a reader found: cells by what they mean, not yet looked at."""

    format: str
    lines: pl.Series
    """Line of each row in the source (Int64)."""
    cells: dict[str, pl.Series] = field(default_factory=dict)
    """String columns by role: columns of `Trace`, and ``arrival``, ``cache_read``, ``cache_creation``, ``error``."""
    names: dict[str, str] = field(default_factory=dict)
    """The source's own name of each role, for messages."""
    units: dict[str, str] = field(default_factory=dict)
    """Units known from the format or from the column's name."""
    ready: dict[str, pl.Series] = field(default_factory=dict)
    """Columns of `Trace` that need no parsing: texts, ids, blocks."""
    block_size: int | None = None
    partial_last: bool | None = None
    """Whether the last, partly filled block has an id; ``None`` where the source may do either."""
    notes: list[str] = field(default_factory=list)

    def name(self, role: str) -> str:
        return self.names.get(role, role)


def assemble(draft: Draft, source: Source, ledger: Ledger) -> Trace:
    """Check and order the rows of `draft`.

    Raises:
        TraceError: no usable row; no lengths at all; a wrong row (unless bad rows are skipped).
    """
    notes = draft.notes
    rows, time_unit = _parse(draft, ledger, notes)
    if {"cache_read", "cache_creation"} & set(rows.columns):
        rows = _with_cache_on_top(rows, draft)
    rows = _without_failed(rows, ledger)
    rows = _checked(rows, draft, ledger, source)
    rows = _ordered(rows, notes)
    rows = with_turns(rows)
    notes.extend(session_notes(rows))
    if rows["arrival_s"].null_count() == 0:
        notes.extend(clock_notes(rows["arrival_s"].to_numpy()))
    missing = rows.filter(pl.col("output_tokens").is_null() & pl.col("output_text").is_null()).height
    if missing:
        notes.append(f"{missing:,} of {rows.height:,} requests have no output: they can be analysed but not run")
    return Trace(
        rows=rows.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()),
        source=source.name,
        format=draft.format,
        time_unit=time_unit,
        block_size=draft.block_size if rows["prefix_blocks"].null_count() < rows.height else None,
        left_out=ledger.entries,
        notes=tuple(notes),
    )


def _parse(draft: Draft, ledger: Ledger, notes: list[str]) -> tuple[pl.DataFrame, str | None]:
    """The canonical columns and ``arrival`` in ns, without the rows that cannot be read; the unit of the times."""
    height = len(draft.lines)
    empty = {name: pl.Series([None], dtype=kind).new_from_index(0, height) for name, kind in SCHEMA.items()}
    plain = {role: columns.present(draft.cells[role]) for role in TEXTS if role in draft.cells}
    parsed = _parse_cells(draft, notes)
    values = {role: column.values for role, column in parsed.items()}
    rows = _texts_over_counts(pl.DataFrame(empty | {"row": draft.lines} | draft.ready | plain | values))
    failed = _failed(rows)
    readable = pl.Series([True], dtype=pl.Boolean).new_from_index(0, height)
    for role, column in parsed.items():
        # A failed request's latencies are what its tool wrote for "none" (often 0.0): not looked at.
        bad = column.bad & ~failed if role in DURATIONS else column.bad
        cells, name, expected = draft.cells[role], draft.name(role), column.expected

        def message(at: int, cells: pl.Series = cells, name: str = name, expected: str = expected) -> str:
            return f"{name} is {shorten(cells[at])}: expected {expected}"

        # A row is counted once, under the first thing that is wrong with it.
        ledger.refuse_where(bad & readable, draft.lines, message, f"{name} is not {expected}")
        readable = readable & ~bad
    rows = rows.filter(readable)
    _note_suspicious_ttft(rows, draft, notes)
    has_times = "arrival" in parsed and parsed["arrival"].values.null_count() < height
    return rows, parsed["arrival"].unit if has_times else None


def _parse_cells(draft: Draft, notes: list[str]) -> dict[str, Parsed]:
    """Counts, durations and times by role, with remarks on units that no name gives."""
    parsed = {role: columns.parse_counts(draft.cells[role]) for role in COUNTS if role in draft.cells}
    if "turn" in draft.cells:
        parsed["turn"] = columns.parse_counts(draft.cells["turn"], most=None)
    for role in DURATIONS:
        if role in draft.cells:
            parsed[role] = columns.parse_durations(draft.cells[role], draft.units.get(role, "s"))
            if role not in draft.units:
                notes.append(f"{draft.name(role)} names no unit: read as seconds")
    if "arrival" in draft.cells:
        arrival = parsed["arrival"] = columns.parse_times(draft.cells["arrival"], draft.units.get("arrival"))
        notes.extend(arrival.notes)
        if "arrival" not in draft.units and arrival.unit in columns.NANOSECONDS:
            notes.append(f"{draft.name('arrival')} names no unit: read as {arrival.unit}, by its size")
    return parsed


def _texts_over_counts(rows: pl.DataFrame) -> pl.DataFrame:
    """A text with a count of 0 was not counted; an empty answer with a count was not recorded (tokens of reasoning)."""
    uncounted = {
        count: (pl.col(text) != "") & (pl.col(count) == 0)
        for text, count in (("prompt_text", "input_tokens"), ("output_text", "output_tokens"))
    }
    unrecorded = (pl.col("output_text") == "") & (pl.col("output_tokens") > 0)
    return rows.with_columns(
        pl.when(~condition.fill_null(False)).then(name).alias(name)
        for name, condition in (uncounted | {"output_text": unrecorded}).items()
    )


def _failed(rows: pl.DataFrame) -> pl.Series:
    """Requests that produced nothing, or whose source says that they failed."""
    conditions = [pl.col("output_tokens") == 0, pl.col("input_tokens") == 0, pl.col("output_text") == ""]
    if "error" in rows.columns:
        conditions.append(~pl.col("error").str.to_lowercase().is_in(_NO_ERROR))
    conditions.append(pl.col("status").str.contains(_FAILED_STATUS))
    return rows.select(pl.any_horizontal([condition.fill_null(False) for condition in conditions]).alias("x"))["x"]


def _without_failed(rows: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    failed = _failed(rows)
    ledger.leave_out(rows.filter(failed)["row"], "failed requests: no tokens, or marked as failed by the source")
    return rows.filter(~failed).with_columns(pl.lit("ok").alias("status"))


def _checked(rows: pl.DataFrame, draft: Draft, ledger: Ledger, source: Source) -> pl.DataFrame:
    """Rows that agree with themselves and with the others: lengths, cached tokens, times, block counts."""
    if rows.is_empty():
        reasons = "; ".join(f"{entry.rows} {entry.reason}" for entry in ledger.entries)
        raise TraceError(f"no request that can be used ({reasons or 'no rows'})", where=source.where)
    rows = _with_counted_ids(rows, draft)
    prompts = rows.select((pl.col("input_tokens").is_not_null() | pl.col("prompt_text").is_not_null()).alias("x"))["x"]
    outputs = rows.select((pl.col("output_tokens").is_not_null() | pl.col("prompt_text").is_not_null()).alias("x"))["x"]
    for known, role in ((prompts, "input_tokens"), (outputs, "output_tokens")):
        if not known.any():
            raise TraceError(
                f"rows without lengths: no row has {draft.name(role)}; a trace needs the lengths of"
                " prompts and outputs, or text",
                where=source.where,
            )
    rows = _keep(rows, prompts, ledger, f"{draft.name('input_tokens')} is missing")
    cached = rows.select((pl.col("cached_tokens") > pl.col("input_tokens")).fill_null(False).alias("x"))["x"]
    found = rows
    ledger.refuse_where(
        cached,
        rows["row"],
        lambda at: (
            f"{draft.name('cached_tokens')} is {found['cached_tokens'][at]:,} of {draft.name('input_tokens')}"
            f" {found['input_tokens'][at]:,}: cached tokens are read as a part of the prompt"
        ),
        f"{draft.name('cached_tokens')} above {draft.name('input_tokens')}",
    )
    rows = rows.filter(~cached)
    for role in ("arrival", "prefix_blocks"):
        given = rows[role].is_not_null() if role in rows.columns else pl.Series([False])
        if given.any():
            rows = _keep(rows, given, ledger, f"{draft.name(role)} is missing, though other rows have it")
    return _with_matching_blocks(rows, draft, ledger)


def _keep(rows: pl.DataFrame, good: pl.Series, ledger: Ledger, what: str) -> pl.DataFrame:
    ledger.refuse_where(~good, rows["row"], lambda _: what, what)
    return rows.filter(good)


def _with_cache_on_top(rows: pl.DataFrame, draft: Draft) -> pl.DataFrame:
    parts = [pl.col(name) for name in ("cache_read", "cache_creation") if name in rows.columns]
    cached = pl.coalesce("cached_tokens", "cache_read") if "cache_read" in rows.columns else pl.col("cached_tokens")
    draft.notes.append("cache reads and writes are counted on top of the input tokens, as Anthropic's logs do")
    return rows.with_columns(
        (pl.col("input_tokens") + pl.sum_horizontal([part.fill_null(0) for part in parts])).alias("input_tokens"),
        cached.alias("cached_tokens"),
    )


def _with_counted_ids(rows: pl.DataFrame, draft: Draft) -> pl.DataFrame:
    """Lengths from recorded token ids where there are any: they are what an engine would run."""
    for ids, count in (("prompt_ids", "input_tokens"), ("output_ids", "output_tokens")):
        if rows[ids].null_count() == rows.height:
            continue
        counted = pl.col(ids).list.len().cast(pl.Int64)
        differing = rows.filter(pl.col(count) != counted).height
        if differing:
            draft.notes.append(
                f"{draft.name(count)} differs from the number of token ids in {differing:,} rows: the ids are counted"
            )
        rows = rows.with_columns(pl.coalesce(counted, count).alias(count))
    return rows


def _with_matching_blocks(rows: pl.DataFrame, draft: Draft, ledger: Ledger) -> pl.DataFrame:
    size = draft.block_size
    if size is None or rows["prefix_blocks"].null_count() == rows.height:
        return rows
    good = blocks.fits(rows, size, partial_last=draft.partial_last).fill_null(False)

    def message(at: int) -> str:
        tokens, count = rows["input_tokens"][at], len(rows["prefix_blocks"][at])
        return (
            f"{draft.name('prefix_blocks')} has {count} ids for {draft.name('input_tokens')} {tokens:,}:"
            f" blocks of {size} tokens make {-(-tokens // size)}"
        )

    reason = f"number of {draft.name('prefix_blocks')} does not fit {draft.name('input_tokens')}"
    ledger.refuse_where(~good, rows["row"], message, reason)
    return rows.filter(good)


def _ordered(rows: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Rows by arrival (stable), `arrival_s` from the first one. A clock that starts again is not disorder."""
    if rows.is_empty() or "arrival" not in rows.columns or rows["arrival"].null_count():
        return rows
    times = rows["arrival"].to_numpy().copy()
    for start in _restarts(times) if times.max() < _EPOCH_NS else []:
        gap = int(np.median(np.diff(times[:start])))
        times[start:] += times[start - 1] + gap - times[start]
        notes.append(
            f"the clock starts again at line {rows['row'][start]}: read as a segment that follows the one before"
        )
    backwards = int((np.diff(times) < 0).sum())
    if backwards:
        notes.append(f"rows are not in order of arrival ({backwards:,} steps back): sorted")
    arrival_s = (times - times.min()) / 1e9
    return rows.with_columns(pl.Series("arrival_s", arrival_s)).sort("arrival_s", maintain_order=True)


def _restarts(times: npt.NDArray[np.int64]) -> list[int]:
    """Positions where a sorted stretch ends and the clock falls back to about its start, as in concatenated logs."""
    drops = np.flatnonzero(np.diff(times) < 0) + 1
    bounds = [0, *drops.tolist(), len(times)]
    stretches = list(pairwise(bounds))
    if any(end - start < _RESTART_ROWS for start, end in stretches):
        return []
    for (start, end), (following, _) in pairwise(stretches):
        if times[following] - times[start] > 0.1 * (times[end - 1] - times[start]):
            return []
    return [int(drop) for drop in drops]


def _note_suspicious_ttft(rows: pl.DataFrame, draft: Draft, notes: list[str]) -> None:
    typical = rows["ttft_s"].drop_nulls().median()
    if isinstance(typical, float) and typical < 1e-3:
        notes.append(
            f"{draft.name('ttft_s')} has a median of {typical * 1e3:.3g} ms: below one millisecond; is it in seconds?"
        )

"""From what a reader found to a trace: parse, check every row, set aside what failed, put in order of arrival."""

from __future__ import annotations

import polars as pl

from inferdoc.traces import checks, file_ids, shown
from inferdoc.traces.checks import has
from inferdoc.traces.draft import Draft
from inferdoc.traces.inputs import Inputs
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.model_names import model_notes
from inferdoc.traces.ordering import Place, in_order
from inferdoc.traces.parsing import DURATIONS, Cells, parse
from inferdoc.traces.sessions import session_notes, with_turns
from inferdoc.traces.summary import clock_notes
from inferdoc.traces.trace import SCHEMA, Trace

__all__ = ["Draft", "assemble"]


def assemble(draft: Draft, inputs: Inputs, ledger: Ledger) -> Trace:
    """Check and order the rows of `draft`.

    Raises:
        TraceError: no usable row; no lengths at all; a wrong row (unless bad rows are skipped).
    """
    notes = draft.notes
    rows, cells = parse(draft, notes)
    rows = _readable(rows, cells, draft, ledger)
    _note_suspicious_ttft(rows, draft, notes)
    if {"cache_read", "cache_creation"} & set(rows.columns):
        rows = _with_cache_on_top(rows, draft)
    rows = checks.without_repeated_ids(rows, draft, ledger)
    rows = checks.without_embeddings(rows, ledger)
    rows = checks.without_failed(rows, ledger)
    rows = checks.checked(rows, draft, ledger)
    if not draft.independent_clocks:
        rows = file_ids.told_apart(rows, ledger.files, notes)
    rows, independent = in_order(rows, notes, independent=draft.independent_clocks, place=_place(ledger))
    rows = with_turns(_complete(rows))
    notes.extend(session_notes(rows))
    if has(rows, "arrival_s") and not independent:
        notes.extend(clock_notes(rows["arrival_s"].to_numpy()))
    notes.extend(model_notes(rows))
    notes.extend(checks.repetition_notes(rows, has_ids="request_id" in cells or "request_id" in draft.cells))
    if rows["output_tokens"].null_count():
        missing = rows.filter(pl.col("output_tokens").is_null() & pl.col("output_text").is_null()).height
        if missing:
            notes.append(f"{missing:,} of {rows.height:,} requests have no output: they can be analysed but not run")
    return Trace(
        rows=rows,
        source=inputs.name,
        format=draft.format,
        time_unit=cells["arrival"].unit if "arrival" in cells and has(rows, "arrival_s") else None,
        block_size=draft.block_size if has(rows, "prefix_blocks") else None,
        left_out=ledger.entries,
        notes=tuple(notes),
        independent_clocks=independent,
        files=ledger.files,
    )


def _place(ledger: Ledger) -> Place:
    def place(row: int) -> str:
        found = ledger.files.place(row)
        return found if ":" in found else f"line {found}"

    return place


def _complete(rows: pl.DataFrame) -> pl.DataFrame:
    """All columns of `SCHEMA`. What the source lacks is one null for all rows, which takes no memory."""
    names = set(rows.columns)
    # A cast to the same type would copy the column.
    given = rows.select(
        pl.col(name) if rows.schema[name] == kind else pl.col(name).cast(kind)
        for name, kind in SCHEMA.items()
        if name in names - {"status"}
    )
    absent = (pl.lit(None, kind).alias(name) for name, kind in SCHEMA.items() if name not in names | {"status"})
    return given.with_columns(*absent, pl.lit("ok").alias("status")).select(list(SCHEMA))


def _readable(rows: pl.DataFrame, cells: dict[str, Cells], draft: Draft, ledger: Ledger) -> pl.DataFrame:
    """All columns found, without the rows that hold a cell that cannot be read."""
    rows = rows.with_columns(*(column.values.alias(role) for role, column in cells.items()))
    given = {name: column for name, column in draft.ready.items() if column.null_count() < len(column)}
    rows = _texts_over_counts(rows.with_columns(*(column.alias(name) for name, column in given.items())))
    if not any(len(column.bad) for column in cells.values()):
        return rows
    failed = checks.failed(rows)
    readable = pl.repeat(True, rows.height, eager=True)
    for role, column in cells.items():
        # A failed request's latencies are what its tool wrote for "none" (often 0.0): not looked at.
        at = column.bad.filter(~failed.gather(column.bad)) if role in DURATIONS else column.bad
        bad = pl.repeat(False, rows.height, eager=True).scatter(at, True)
        name, expected = draft.name(role), column.expected

        def message(at: int, column: Cells = column, name: str = name, expected: str = expected) -> str:
            return f"{name} is {shown.value(column.text(at))}: expected {expected}"

        # A row is counted once, under the first thing that is wrong with it.
        ledger.refuse_where(bad & readable, rows["row"], message, f"{name} is not {expected}")
        readable = readable & ~bad
    return rows.filter(readable)


def _texts_over_counts(rows: pl.DataFrame) -> pl.DataFrame:
    """A text with a count of 0 was not counted; an empty answer with a count was not recorded (tokens of reasoning)."""
    for count, text in (("input_tokens", "prompt_text"), ("output_tokens", "output_text")):
        if not {count, text} <= set(rows.columns):
            continue
        uncounted = ((pl.col(text) != "") & (pl.col(count) == 0)).fill_null(False)
        unrecorded = ((pl.col(text) == "") & (pl.col(count) > 0)).fill_null(False)
        empty = unrecorded if text == "output_text" else pl.lit(False)
        rows = rows.with_columns(
            pl.when(~uncounted).then(count).alias(count),
            pl.when(~empty).then(text).alias(text),
        )
    return rows


def _with_cache_on_top(rows: pl.DataFrame, draft: Draft) -> pl.DataFrame:
    parts = [name for name in ("cache_read", "cache_creation") if name in rows.columns]
    draft.notes.append("cache reads and writes are counted on top of the input tokens, as Anthropic's logs do")
    total = pl.col("input_tokens") + pl.sum_horizontal([pl.col(part).fill_null(0) for part in parts])
    cached = [name for name in ("cached_tokens", "cache_read") if name in rows.columns]
    return rows.with_columns(
        *([total.alias("input_tokens")] if "input_tokens" in rows.columns else []),
        *([pl.coalesce(cached).alias("cached_tokens")] if cached else []),
    )


def _note_suspicious_ttft(rows: pl.DataFrame, draft: Draft, notes: list[str]) -> None:
    typical = rows["ttft_s"].drop_nulls().median() if "ttft_s" in rows.columns else None
    if isinstance(typical, float) and typical < 1e-3:
        notes.append(
            f"{draft.name('ttft_s')} has a median of {typical * 1e3:.3g} ms: below one millisecond; is it in seconds?"
        )

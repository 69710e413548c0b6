"""Rows that agree with themselves and with the others: lengths, cached tokens, times, block counts, repetitions."""

from __future__ import annotations

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces import blocks
from inferdoc.traces.draft import Draft
from inferdoc.traces.ledger import Ledger

FAILED = "failed requests: no tokens, or marked as failed by the source"
EMBEDDINGS = "embeddings: no output tokens by their nature"
REPEATED_ID = "earlier rows of a request that was written more than once"
_FAILED_STATUS = r"(?i)^(fail|error|cancel|abort|timeout|timed|expired|invalid|[45]\d\d)"
_NO_ERROR = ["", "0", "null", "none", "false", "[]", "{}"]


def has(rows: pl.DataFrame, name: str) -> bool:
    """Whether any row has a value in column `name`, which `rows` may lack."""
    return name in rows.columns and int(rows.select(pl.col(name).null_count()).item()) < rows.height


def without_repeated_ids(rows: pl.DataFrame, draft: Draft, ledger: Ledger) -> pl.DataFrame:
    """Of rows with the same request id the last one, where it has the final counts.

    Where the ids are unsure only rows that agree in all else are one request; the others are kept, and counted in a
    note.
    """
    if not has(rows, "request_id"):
        return rows
    ids = rows["request_id"]
    again = ids.is_not_null() & ~ids.is_last_distinct()
    if not draft.unsure_ids:
        return _set_aside(rows, again, ledger, REPEATED_ID)
    if not again.any():
        return rows
    alike = rows.select(_plain(rows, [name for name in rows.columns if name != "row"])).hash_rows()
    rows = _set_aside(rows, again & ~alike.is_last_distinct(), ledger, REPEATED_ID)
    ids = rows["request_id"].drop_nulls()
    repeated = len(ids) - ids.n_unique()
    if repeated:
        draft.notes.append(
            f"rows whose {draft.name('request_id')} is that of another row that differs in other fields: {repeated:,};"
            " all are kept as requests of their own"
        )
    return rows


def without_embeddings(rows: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    if not has(rows, "operation"):
        return rows
    embeddings = pl.col("operation").str.contains("(?i)embed").fill_null(False)
    return _set_aside(rows, rows.select(embeddings.alias("x"))["x"], ledger, EMBEDDINGS)


def failed(rows: pl.DataFrame) -> pl.Series:
    """Requests that produced nothing, or whose source says that they failed."""
    conditions = [pl.col(name) == 0 for name in ("output_tokens", "input_tokens") if name in rows.columns]
    if "output_text" in rows.columns:
        conditions.append(pl.col("output_text") == "")
    if "error" in rows.columns:
        conditions.append(~pl.col("error").str.to_lowercase().is_in(_NO_ERROR))
    if "status" in rows.columns:
        conditions.append(pl.col("status").str.contains(_FAILED_STATUS))
    found = [condition.fill_null(False) for condition in conditions] or [pl.repeat(False, pl.len())]
    return rows.select(pl.any_horizontal(found).alias("x"))["x"]


def without_failed(rows: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    return _set_aside(rows, failed(rows), ledger, FAILED)


def checked(rows: pl.DataFrame, draft: Draft, ledger: Ledger) -> pl.DataFrame:
    """The rows with lengths, times and blocks that fit.

    Raises:
        TraceError: no row is left, no row has lengths, or one is wrong (unless bad rows are skipped).
    """
    rows = _with_counted_ids(_not_empty(rows, ledger), draft)
    text = pl.col("prompt_text").is_not_null() if "prompt_text" in rows.columns else pl.lit(False)
    for role in ("input_tokens", "output_tokens"):
        # Hashes of prompts without any output length can be analysed, though not run.
        hashes = role == "output_tokens" and has(rows, "prefix_blocks")
        if not (has(rows, role) or has(rows, "prompt_text") or hashes):
            raise TraceError(
                f"rows without lengths: no row has {draft.name(role)}; a trace needs the lengths of"
                " prompts and outputs, or text",
                where=ledger.where,
            )
    if not has(rows, "input_tokens") or rows["input_tokens"].null_count():
        length = pl.col("input_tokens").is_not_null() if "input_tokens" in rows.columns else pl.lit(False)
        known = rows.select((length | text).alias("x"))["x"]
        rows = _keep(rows, known, ledger, f"{draft.name('input_tokens')} is missing")
    rows = _with_cached_inside(rows, draft, ledger)
    for role in ("arrival", "prefix_blocks"):
        if has(rows, role) and rows[role].null_count() and not (role == "arrival" and draft.independent_clocks):
            missing = f"{draft.name(role)} is missing, though other rows have it"
            rows = _keep(rows, rows[role].is_not_null(), ledger, missing)
    return _not_empty(_with_matching_blocks(rows, draft, ledger), ledger)


def repetition_notes(rows: pl.DataFrame, *, has_ids: bool) -> list[str]:
    """Rows that are equal to an earlier one in all that is known, where no id tells whether they are the same."""
    if has_ids:
        return []
    names = ["arrival_s", "input_tokens", "output_tokens", "segment", "session", "prompt_text", "prefix_blocks"]
    names = [name for name in names if has(rows, name)]
    if "arrival_s" in names:
        # Equal rows arrive at the same time, so that they stand side by side.
        same = pl.col("arrival_s") == pl.col("arrival_s").shift(1)
        rows = rows.filter((same | same.shift(-1)).fill_null(False))
    if rows.is_empty():
        return []
    repeated = rows.height - rows.select(_plain(rows, names)).hash_rows().n_unique()
    if not repeated:
        return []
    return [
        f"rows that are equal to another one in all that is recorded: {repeated:,}; no id tells whether they"
        " are the same request, so all are kept"
    ]


def _plain(rows: pl.DataFrame, names: list[str]) -> list[pl.Expr]:
    """Lists each as one number: polars hashes rows of plain columns only."""
    return [pl.col(name).hash() if rows.schema[name].is_nested() else pl.col(name) for name in names]


def _set_aside(rows: pl.DataFrame, flags: pl.Series, ledger: Ledger, reason: str) -> pl.DataFrame:
    if not flags.any():
        return rows
    ledger.leave_out(rows["row"].filter(flags), reason)
    return rows.filter(~flags)


def _keep(rows: pl.DataFrame, good: pl.Series, ledger: Ledger, what: str) -> pl.DataFrame:
    if good.all():
        return rows
    ledger.refuse_where(~good, rows["row"], lambda _: what, what)
    return rows.filter(good)


def _not_empty(rows: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    if rows.height:
        return rows
    reasons = "; ".join(f"{entry.rows:,} {entry.reason}" for entry in ledger.entries)
    faults = f"; the first: {'; '.join(ledger.faults)}" if ledger.faults else ""
    raise TraceError(f"no request that can be used ({reasons or 'no rows'}{faults})", where=ledger.where)


def _with_cached_inside(rows: pl.DataFrame, draft: Draft, ledger: Ledger) -> pl.DataFrame:
    if not (has(rows, "cached_tokens") and has(rows, "input_tokens")):
        return rows
    above = rows.select((pl.col("cached_tokens") > pl.col("input_tokens")).fill_null(False).alias("x"))["x"]
    ledger.refuse_where(
        above,
        rows["row"],
        lambda at: (
            f"{draft.name('cached_tokens')} is {rows['cached_tokens'][at]:,} of {draft.name('input_tokens')}"
            f" {rows['input_tokens'][at]:,}: cached tokens are read as a part of the prompt"
        ),
        f"{draft.name('cached_tokens')} above {draft.name('input_tokens')}",
    )
    return rows.filter(~above) if above.any() else rows


def _with_counted_ids(rows: pl.DataFrame, draft: Draft) -> pl.DataFrame:
    """Lengths from recorded token ids where there are any: they are what an engine would run."""
    for ids, count in (("prompt_ids", "input_tokens"), ("output_ids", "output_tokens")):
        if not has(rows, ids):
            continue
        counted = pl.col(ids).list.len().cast(pl.Int64)
        if count not in rows.columns:
            rows = rows.with_columns(counted.alias(count))
            continue
        differing = rows.filter(pl.col(count) != counted).height
        if differing:
            draft.notes.append(
                f"{draft.name(count)} differs from the number of token ids in {differing:,} rows: the ids are counted"
            )
        rows = rows.with_columns(pl.coalesce(counted, count).alias(count))
    return rows


def _with_matching_blocks(rows: pl.DataFrame, draft: Draft, ledger: Ledger) -> pl.DataFrame:
    size = draft.block_size
    if size is None or not has(rows, "prefix_blocks"):
        return rows
    good = blocks.fits(rows, size, partial_last=draft.partial_last).fill_null(False)
    if good.all():
        return rows

    def message(at: int) -> str:
        tokens, count = rows["input_tokens"][at], len(rows["prefix_blocks"][at])
        return (
            f"{draft.name('prefix_blocks')} has {count} ids for {draft.name('input_tokens')} {tokens:,}:"
            f" blocks of {size} tokens make {-(-tokens // size)}"
        )

    reason = f"number of {draft.name('prefix_blocks')} does not fit {draft.name('input_tokens')}"
    ledger.refuse_where(~good, rows["row"], message, reason)
    return rows.filter(good)

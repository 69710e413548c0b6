"""Ids of several files: those of parts of one trace are the same, those of traces that each number from 0 are not."""

from __future__ import annotations

from itertools import pairwise

import polars as pl

from inferdoc.traces.checks import has
from inferdoc.traces.ledger import Files

_EPOCH_NS = 10**18
_SHIFT = 48
_IDS_FOR_A_BLOCK = 4
_SMALL = 1000


def told_apart(rows: pl.DataFrame, files: Files, notes: list[str]) -> pl.DataFrame:
    """`rows` with `prefix_blocks` and numbered sessions of each file its own where the files are traces of their own.

    They are where a file's clock begins again, before the middle of the file's before it, and its block ids are small
    numbers (at most about 4 for each block) as theirs are. Files whose clock goes on are parts of one trace.
    """
    if len(files) < 2 or not has(rows, "arrival"):
        return rows
    numbered = rows.with_columns(files.indices(rows["row"]).alias("file"))
    group_of = _groups(numbered)
    if not any(group_of.values()):
        return rows
    group = numbered["file"].replace_strict(group_of, return_dtype=pl.UInt64)
    numbered = numbered.drop("file").with_columns(group.alias("group"))
    changed = []
    if has(rows, "prefix_blocks"):
        # The ids are below 2**48, so that no two of different files become equal.
        changed.append("block ids")
        numbered = numbered.with_columns(_mixed(numbered))
    if has(rows, "session") and rows["session"].drop_nulls().str.contains(r"^\d+$").all():
        changed.append("session numbers")
        own = pl.concat_str("session", pl.lit(" of trace "), (pl.col("group") + 1).cast(pl.String))
        numbered = numbered.with_columns(pl.when(pl.col("group") > 0).then(own).otherwise("session").alias("session"))
    if changed:
        starts = ", ".join(
            files.name(file) for before, file in pairwise(group_of) if group_of[file] != group_of[before]
        )
        notes.append(
            f"clock and numbers start again in {starts}: {' and '.join(changed)} of the traces before and from there on"
            " are taken as different"
        )
    return numbered.drop("group")


def _groups(rows: pl.DataFrame) -> dict[int, int]:
    """The trace that each file belongs to, numbered from 0."""
    blocks = has(rows, "prefix_blocks")
    ids = pl.col("prefix_blocks") if blocks else pl.lit(None, pl.List(pl.UInt64))
    stretches = (
        rows.select(
            "file", "arrival", ids.list.max().alias("largest"), ids.list.len().fill_null(0).cast(pl.Int64).alias("ids")
        )
        .group_by("file")
        .agg(
            pl.col("arrival").min().alias("first"),
            pl.col("arrival").max().alias("last"),
            pl.col("largest").max(),
            pl.col("ids").sum(),
        )
        .sort("file")
    )
    groups: dict[int, int] = {}
    group, begin, end, small_before = 0, 0, 0, True
    for file, first, last, largest, count in stretches.iter_rows():
        small = largest is None or largest < _SMALL + _IDS_FOR_A_BLOCK * count
        again = bool(groups) and last < _EPOCH_NS and first < (begin + end) / 2
        if again and small and small_before:
            group, begin, end = group + 1, first, last
        else:
            begin, end = (min(begin, first), max(end, last)) if groups else (first, last)
        small_before = small_before and small
        groups[file] = group
    return groups


def _mixed(rows: pl.DataFrame) -> pl.Series:
    """Block ids with the number of their trace above bit 48; those of the first trace stay what they are."""
    at = pl.int_range(rows.height, eager=True).alias("at")
    ids = rows.select(at, "group", "prefix_blocks").explode("prefix_blocks", keep_nulls=False, empty_as_null=False)
    mixed = ids.select("at", pl.col("group") * 2**_SHIFT + pl.col("prefix_blocks"))
    grouped = mixed.group_by("at", maintain_order=True).agg(pl.col("group").alias("ids"))
    found = rows.select(at, "prefix_blocks").join(grouped, on="at", how="left", maintain_order="left")
    # Rows without ids, or with none, stay as they are.
    return found.select(pl.coalesce("ids", "prefix_blocks").alias("prefix_blocks"))["prefix_blocks"]

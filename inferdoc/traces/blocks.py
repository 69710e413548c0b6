"""How many tokens stand behind one id of a prompt's block hashes."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

SIZES = (16, 32, 64, 128, 256, 512, 1024)
_ROWS_LOOKED_AT = 100


def blocks_needed(tokens: pl.Expr, size: int) -> pl.Expr:
    """Blocks of `size` that hold `tokens`, the last one partly filled."""
    return (tokens + (size - 1)) // size


def fits(rows: pl.DataFrame, size: int, *, partial_last: bool | None = None) -> pl.Series:
    """Whether each row's number of `prefix_blocks` agrees with its `input_tokens` at a block of `size`.

    `partial_last`: True where the last, partly filled block has an id, False where it has none, ``None`` for either.
    Null where a row has no length or no ids.
    """
    count, tokens = pl.col("prefix_blocks").list.len().cast(pl.Int64), pl.col("input_tokens")
    up, down = count == blocks_needed(tokens, size), count == tokens // size
    agrees = {True: up, False: down, None: up | down}[partial_last]
    return rows.select(agrees.alias("fits"))["fits"]


def infer(rows: pl.DataFrame, *, partial_last: bool | None = None, sizes: Iterable[int] = SIZES) -> int | None:
    """The one common block size with which the first rows all agree, or ``None`` (none does, or several do)."""
    sample = rows.filter(pl.col("prefix_blocks").is_not_null()).head(_ROWS_LOOKED_AT)
    if sample.is_empty():
        return None
    agreeing = [size for size in sizes if fits(sample, size, partial_last=partial_last).fill_null(False).all()]
    return agreeing[0] if len(agreeing) == 1 else None

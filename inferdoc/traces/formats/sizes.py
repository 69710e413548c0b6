"""The block size of a trace: one for all its rows, from a field of theirs or from their lengths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces import blocks, shown
from inferdoc.traces.columns import as_text, parse_counts, text_column

ROWS_FOR_ANOTHER_SIZE = 10


def stated(values: Iterable[Any], name: str, where: str) -> int | None:
    """The one size that the field `name` gives; ``None`` where no row has it.

    Raises:
        TraceError: several sizes, or something else than a size.
    """
    column = text_column(sorted({str(as_text(value)) for value in values if value is not None}))
    sizes = parse_counts(column)
    wrong = sizes.bad | (sizes.values == 0).fill_null(False)
    if wrong.any():
        found = column.filter(wrong)[0]
        raise TraceError(f"{name} is {shown.value(found)}: expected the number of tokens in a block", where=where)
    distinct = sizes.values.drop_nulls().unique().sort().to_list()
    if len(distinct) > 1:
        listed = ", ".join(map(str, distinct[:5]))
        raise TraceError(f"{name} has {len(distinct)} values ({listed}): give the files of each apart", where=where)
    return distinct[0] if distinct else None


def inferred(
    lengths: pl.Series, ids: pl.Series, usual: int, name: str, *, partial_last: bool | None, notes: list[str]
) -> int:
    """`usual`, unless the first rows, and enough of them, fit one other size and not that one.

    `lengths`: tokens of each prompt (String); `ids`: its block ids (List); `name`: the field of the ids.
    """
    rows = pl.DataFrame({"prefix_blocks": ids, "input_tokens": parse_counts(lengths).values})
    rows = rows.filter(pl.col("prefix_blocks").is_not_null() & pl.col("input_tokens").is_not_null())
    size = blocks.infer(rows, partial_last=partial_last)
    if size is None or size == usual or rows.height < ROWS_FOR_ANOTHER_SIZE:
        return usual
    notes.append(f"blocks of {size} tokens, by the number of {name} (usual in this format: {usual})")
    return size

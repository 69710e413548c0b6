"""Measured durations that a source writes as 0."""

from __future__ import annotations

import polars as pl

from inferdoc.traces.columns import present
from inferdoc.traces.draft import Draft


def without_zeros(draft: Draft, role: str, meaning: str) -> None:
    """Null instead of 0 in a column of durations, with a note: no request takes no time. `meaning` says why it is 0."""
    cells = draft.cells.get(role)
    if cells is None:
        return
    zero = (present(cells).cast(pl.Float64, strict=False) == 0).fill_null(False)
    if not zero.any():
        return
    frame = pl.DataFrame({"cells": cells, "zero": zero})
    draft.cells[role] = frame.select(pl.when(~pl.col("zero")).then("cells").alias("cells"))["cells"]
    draft.notes.append(f"{int(zero.sum()):,} rows have {draft.name(role)} 0 ({meaning}): read as not known")

"""What a reader found in a trace: cells by what they mean, not yet looked at."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from inferdoc.traces.csvtable import LINE, Table


def _no_lines() -> pl.Series:
    return pl.Series(dtype=pl.Int64)


@dataclass
class Draft:
    """Rows of a trace as text by role, beside columns that need no parsing."""

    format: str
    lines: pl.Series = field(default_factory=_no_lines)
    """Line of each row in the source (Int64); those of `table` where there is one."""
    cells: dict[str, pl.Series] = field(default_factory=dict)
    """String columns by role: columns of `Trace`, and ``arrival``, ``cache_read``, ``cache_creation``, ``error``,
    ``request_id`` (the last row of an id counts), ``operation`` (embeddings are set aside)."""
    names: dict[str, str] = field(default_factory=dict)
    """The source's own name of each role, for messages."""
    units: dict[str, str] = field(default_factory=dict)
    """Units known from the format or from the column's name."""
    ready: dict[str, pl.Series] = field(default_factory=dict)
    """Columns of `Trace` that need no parsing: texts, ids, blocks, segments."""
    block_size: int | None = None
    partial_last: bool | None = None
    """Whether the last, partly filled block has an id; ``None`` where the source may do either."""
    notes: list[str] = field(default_factory=list)
    independent_clocks: bool = False
    """The clocks of the segments have nothing to do with each other: each begins at 0."""
    unsure_ids: bool = False
    """``request_id`` goes by the name of a column alone: rows of one id are one request only where all else agrees."""
    table: Table | None = None
    columns: dict[str, str] = field(default_factory=dict)
    """Columns of `table` by role, in place of `cells`: they are read and parsed as a stream."""

    def name(self, role: str) -> str:
        return self.names.get(role, role)

    def texts(self) -> pl.LazyFrame:
        """The lines as ``row`` and the cells by role."""
        if self.table is None:
            return pl.DataFrame({"row": self.lines, **self.cells}).lazy()
        taken = self.table.scan.select(
            pl.col(LINE).alias("row"), *(pl.col(name).alias(role) for role, name in self.columns.items())
        )
        return taken.collect().hstack(pl.DataFrame(self.cells)).lazy() if self.cells else taken

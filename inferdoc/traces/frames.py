"""Parquet and Arrow files, as records and as tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces.source import Source

_ROWS_AT_ONCE = 10_000


def scan(source: Source) -> pl.LazyFrame:
    """The columns of a file with the types that it has.

    Raises:
        TraceError: the file is cut off or broken.
    """
    try:
        if source.columnar == "parquet":
            frame = pl.scan_parquet(source.plain())
        elif source.columnar == "arrow":
            frame = pl.scan_ipc(source.plain())
        else:
            frame = pl.read_ipc_stream(source.plain()).lazy()
        frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _broken(source, error) from None
    return frame


def records(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows as JSON records, numbered from 1; times become ISO 8601 texts."""
    try:
        frame = scan(source).collect()
    except pl.exceptions.PolarsError as error:
        raise _broken(source, error) from None
    line = 0
    for part in frame.iter_slices(_ROWS_AT_ONCE):
        for row in part.iter_rows(named=True):
            line += 1
            yield line, {name: _plain(value) for name, value in row.items()}


def as_text(source: Source) -> pl.LazyFrame:
    """Columns of single values as String columns, every digit kept; nested columns are left out."""
    frame = scan(source)
    return frame.select(
        _text(name, kind) for name, kind in frame.collect_schema().items() if not kind.is_nested()
    ).with_row_index("", 1)


def is_flat(source: Source) -> bool:
    return not any(kind.is_nested() for kind in scan(source).collect_schema().values())


def _text(name: str, kind: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if isinstance(kind, pl.Datetime):
        zone = "+00:00" if kind.time_zone else ""
        column = column.dt.convert_time_zone("UTC") if kind.time_zone else column
        return column.dt.strftime(f"%Y-%m-%d %H:%M:%S%.9f{zone}")
    if isinstance(kind, pl.Duration):
        return column.dt.total_nanoseconds().cast(pl.String)
    if isinstance(kind, pl.Binary):
        return column.cast(pl.String, strict=False)
    return column.cast(pl.String)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _broken(source: Source, error: Exception) -> TraceError:
    first = str(error).splitlines()[0][:120] if str(error) else "no reason given"
    return TraceError(f"is a broken {source.columnar} file ({first}); fetch it again", where=source.where)

"""CSV and TSV as String columns by header name, each row with its line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.source import Source

_LONGEST_FIELD = 1 << 30


@dataclass(frozen=True)
class Table:
    """Columns of a table in order; `lines` (Int64) is where each row begins."""

    columns: dict[str, pl.Series]
    lines: pl.Series


def read_header(source: Source) -> list[str]:
    """The names in the first line that is not blank."""
    line = next(line for _, line in source.lines() if line.strip())
    return [name.strip() for name in next(csv.reader([line], delimiter=_delimiter(line)))]


def read_table(source: Source, ledger: Ledger) -> Table:
    """All rows. Blank lines are skipped; a header repeated in the middle (concatenated files) is counted.

    Raises:
        TraceError: a row with more or fewer fields than the header (counted when bad rows are skipped).
    """
    header_line, first = next((number, line) for number, line in source.lines() if line.strip())
    names = _distinct(read_header(source))
    delimiter = _delimiter(first)
    data = source.read()
    frame = None if b'"' in data else _read_plain(data, names, delimiter, header_line)
    if frame is None:
        frame = pl.DataFrame(
            list(_read_quoted(source.text(), delimiter, len(names), header_line, ledger)),
            schema={"": pl.Int64, **dict.fromkeys(names, pl.String)},
            orient="row",
        )
    repeated = pl.all_horizontal([pl.col(name).str.strip_chars() == name for name in names]).fill_null(False)
    ledger.leave_out(frame.filter(repeated)[""], "header lines repeated in the middle")
    frame = frame.filter(~repeated)
    return Table({name: frame[name] for name in names}, frame[""])


def _read_plain(data: bytes, names: list[str], delimiter: str, header_line: int) -> pl.DataFrame | None:
    """The fast way, for files without quotes: a line is a row. ``None`` where a row does not have every field."""
    try:
        frame = pl.read_csv(
            io.BytesIO(data),
            has_header=False,
            skip_rows=header_line,
            separator=delimiter,
            quote_char=None,
            schema=dict.fromkeys(names, pl.String),
        )
    except pl.exceptions.NoDataError:
        return pl.DataFrame(schema={"": pl.Int64, **dict.fromkeys(names, pl.String)})
    except pl.exceptions.PolarsError:
        return None
    frame = frame.with_row_index("", header_line + 1).with_columns(pl.col("").cast(pl.Int64))
    if len(names) == 1:
        return frame.drop_nulls()
    blank = pl.all_horizontal([pl.col(name).is_null() for name in names])
    if frame.filter(pl.col(names[-1]).is_null() & ~blank).height:
        return None
    return frame.filter(~blank)


def _read_quoted(
    text: str, delimiter: str, width: int, header_line: int, ledger: Ledger
) -> Iterator[tuple[int | str, ...]]:
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        line = 1
        for fields in reader:
            start, line = line, reader.line_num + 1
            if start <= header_line or not any(field.strip() for field in fields):
                continue
            if len(fields) != width:
                ledger.refuse(
                    start, f"{len(fields)} fields, the header has {width}", "number of fields differs from the header's"
                )
                continue
            yield (start, *fields)
    except csv.Error as error:
        raise TraceError(f"not valid CSV: {error}", where=f"{ledger.where}:{line}") from None
    finally:
        csv.field_size_limit(limit)


def _delimiter(header: str) -> str:
    return max(",\t;", key=header.count)


def _distinct(names: list[str]) -> list[str]:
    """Names made distinct: pandas' index column has none, and some tools repeat a name."""
    seen: dict[str, int] = {}
    distinct = []
    for position, name in enumerate(names, 1):
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if name and seen[name] == 1 else f"{name or 'column'} #{position}")
    return distinct

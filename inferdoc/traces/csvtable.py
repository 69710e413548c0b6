"""CSV and TSV as String columns by header name, each row with its line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces import frames
from inferdoc.traces.ledger import CUT_OFF, Ledger
from inferdoc.traces.source import Source

_LONGEST_FIELD = 1 << 30
LINE = ""
"""Name of the column with the lines: no column of a file has it, see `_distinct`."""


class Columns(Mapping[str, pl.Series]):
    """The columns of a table in order, each read when it is asked for."""

    def __init__(self, scan: pl.LazyFrame, names: Sequence[str]) -> None:
        self._scan = scan
        self._names = list(names)
        self._read: dict[str, pl.Series] = {}

    def __getitem__(self, name: str) -> pl.Series:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = self._scan.select(name).collect(engine="streaming")[name]
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Table:
    """Rows of text: `scan` has the lines (Int64) in column `LINE`, and a String column for each name."""

    scan: pl.LazyFrame
    columns: Mapping[str, pl.Series]

    @classmethod
    def of(cls, scan: pl.LazyFrame, names: Sequence[str]) -> Table:
        return cls(scan, Columns(scan, names))

    @property
    def lines(self) -> pl.Series:
        return self.scan.select(LINE).collect(engine="streaming")[LINE]


def read_header(source: Source) -> list[str]:
    """The names in the first line that is not blank."""
    number, line = next((number, line) for number, line in source.lines() if line.strip())
    try:
        return [name.strip() for name in next(csv.reader([line], delimiter=_delimiter(line)))]
    except csv.Error as error:
        raise TraceError(f"not valid CSV: {error}", where=f"{source.where}:{number}") from None


def split(lines: Sequence[str]) -> list[list[str]]:
    """The cells of the first lines of a table, the header among them; none where they are no table."""
    try:
        return list(csv.reader(lines, delimiter=_delimiter(lines[0]))) if lines else []
    except csv.Error:
        return []


def read_tables(files: Sequence[Source], ledger: Ledger) -> Table:
    """The rows of all files, with running line numbers. The columns are those of any of them."""
    parts = []
    for source in files:
        ledger.begin_file(source.where)
        parts.append(read_table(source, ledger))
    if len(parts) == 1:
        return parts[0]
    scan = pl.concat([part.scan for part in parts], how="diagonal")
    return Table.of(scan, list(dict.fromkeys(name for part in parts for name in part.columns)))


def read_table(source: Source, ledger: Ledger) -> Table:
    """All rows. Blank lines are skipped; a header repeated in the middle (concatenated files) is counted.

    Raises:
        TraceError: a row with more or fewer fields than the header (counted when bad rows are skipped).
    """
    if source.columnar:
        scan, names = frames.as_text(source), [name for name in frames.as_text(source).collect_schema() if name]
        scan = scan.with_columns(pl.col(LINE).cast(pl.Int64))
    else:
        scan, names = _read_text(source, ledger)
    scan, last = _without_repeated_header(scan, names, ledger)
    before = ledger.number(last) - last
    return Table.of(scan.with_columns(pl.col(LINE) + before) if before else scan, names)


def _read_text(source: Source, ledger: Ledger) -> tuple[pl.LazyFrame, list[str]]:
    header_line, first = next((number, line) for number, line in source.lines() if line.strip())
    names = _distinct(read_header(source))
    delimiter = _delimiter(first)
    scan = None if source.has_byte(b'"') else _scan_plain(source, names, delimiter, header_line)
    if scan is None:
        rows = list(_read_careful(source, delimiter, len(names), header_line, ledger))
        scan = pl.DataFrame(rows, schema={LINE: pl.Int64, **dict.fromkeys(names, pl.String)}, orient="row").lazy()
    return scan, names


def _without_repeated_header(scan: pl.LazyFrame, names: list[str], ledger: Ledger) -> tuple[pl.LazyFrame, int]:
    """The rows without headers in the middle, which are counted; and the last line."""
    repeated = pl.all_horizontal([pl.col(name).str.strip_chars() == name for name in names]).fill_null(False)
    # The first column alone is looked at in full: a header in the middle is rare, and the others cost time.
    suspect = (pl.col(names[0]).str.strip_chars() == names[0]).fill_null(False)
    look = scan.select(pl.col(LINE).max().alias("last"), suspect.any().alias("suspect")).collect(engine="streaming")
    if look["suspect"][0]:
        lines = scan.filter(repeated).select(LINE).collect()[LINE]
        ledger.leave_out([ledger.number(line) for line in lines], "header lines repeated in the middle")
        scan = scan.filter(~repeated)
    return scan, look["last"][0] or 1


def _scan_plain(source: Source, names: list[str], delimiter: str, header_line: int) -> pl.LazyFrame | None:
    """The fast way, for files without quotes: a line is a row. ``None`` where a row does not have every field."""
    first, *others = names
    empty = pl.col(first).str.strip_chars().fill_null("") == ""
    scan = pl.scan_csv(
        source.plain(),
        has_header=False,
        skip_rows=header_line,
        separator=delimiter,
        quote_char=None,
        schema=dict.fromkeys(names, pl.String),
        row_index_name=LINE,
        row_index_offset=header_line + 1,
    ).with_columns(pl.col(LINE).cast(pl.Int64))
    scan = scan.filter(~pl.all_horizontal([empty, *(pl.col(name).is_null() for name in others)]))
    try:
        short = scan.select(pl.col(names[-1]).is_null().any()).collect(engine="streaming").item()
        return None if short and _is_ragged(source, delimiter, len(names)) else scan
    except pl.exceptions.NoDataError:
        return pl.LazyFrame(schema={LINE: pl.Int64, **dict.fromkeys(names, pl.String)})
    except pl.exceptions.PolarsError:
        return None


def _is_ragged(source: Source, delimiter: str, width: int) -> bool:
    """Whether a line has another number of fields; an empty last field is no fault."""
    separators = pl.col("line").str.count_matches(delimiter, literal=True)
    wrong = (separators != width - 1) & (pl.col("line").str.strip_chars() != "")
    return bool(pl.scan_lines(source.plain(), name="line").select(wrong.any()).collect(engine="streaming").item())


def _read_careful(
    source: Source, delimiter: str, width: int, header_line: int, ledger: Ledger
) -> Iterator[tuple[int | str, ...]]:
    text = source.text()
    limit = csv.field_size_limit(_LONGEST_FIELD)
    line = 1
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        for fields in reader:
            start, line = line, reader.line_num + 1
            if start <= header_line or not any(field.strip() for field in fields):
                continue
            if len(fields) == width:
                yield (start, *fields)
            elif len(fields) < width and text.count("\n") < reader.line_num:
                ledger.leave_out([ledger.number(start)], CUT_OFF)
            else:
                ledger.refuse(
                    ledger.number(start),
                    f"{len(fields)} fields, the header has {width}",
                    "number of fields differs from the header's",
                )
    except csv.Error as error:
        raise TraceError(f"not valid CSV: {error}", where=f"{source.where}:{line}") from None
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

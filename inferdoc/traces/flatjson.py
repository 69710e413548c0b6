"""JSON lines as columns without a Python object for each value: for files of numbers, texts and lists of ids.

Polars parses strictly: whatever is not as asked for (a broken line, a fraction among ids, a single value for a list)
ends the fast way, and the records are read one by one, which names the line and the fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces.records import Records, is_one_a_line
from inferdoc.traces.source import Source

_ROWS_IN_ORDER = 100
_UNDECODED = "\x00"
"""What polars makes of half a surrogate pair."""


def read_columns(records: Records, schema: Mapping[str, pl.DataType]) -> pl.DataFrame | None:
    """The fields of `schema` (String, or lists of whole numbers), and the lines (Int64) as column ````.

    ``None`` where the records have to be read one by one.
    """
    if not schema:
        return None
    frames = []
    for source in records.files:
        frame = _read(source, schema)
        if frame is None:
            return None
        frames.append(frame)
    numbered = []
    for source, frame in zip(records.files, frames, strict=True):
        records.ledger.begin_file(source.where)
        numbered.append(frame.with_columns(records.ledger.numbers(frame[""])))
    return pl.concat(numbered, rechunk=False)


def keys(records: Records) -> list[str] | None:
    """All keys of the records, those of the first ones in order; ``None`` where records have to be read one by one."""
    if not all(_can_be_flat(source) for source in records.files):
        return None
    found = {name: None for _, record in islice(records.silently(), _ROWS_IN_ORDER) for name in record}
    for source in records.files:
        try:
            found |= dict.fromkeys(pl.scan_ndjson(source.plain(), infer_schema_length=None).collect_schema())
        except (pl.exceptions.PolarsError, TraceError):
            return None
    return list(found)


def _can_be_flat(source: Source) -> bool:
    return source.is_json and not source.columnar and is_one_a_line(source)


def _read(source: Source, schema: Mapping[str, pl.DataType]) -> pl.DataFrame | None:
    if not _can_be_flat(source):
        return None
    filled = pl.col("").str.strip_chars() != ""
    try:
        plain = source.plain()
        frame = pl.read_ndjson(plain, schema=dict(schema))
        lines = pl.scan_lines(plain, name="", row_index_name="line", row_index_offset=1).filter(filled)
        numbers = lines.select(pl.col("line").cast(pl.Int64).alias("")).collect(engine="streaming")
    except (pl.exceptions.PolarsError, TraceError):
        return None
    if numbers.height != frame.height or any(_is_doubtful(column) for column in frame):
        return None
    return numbers.hstack(frame)


def _is_doubtful(column: pl.Series) -> bool:
    if column.dtype == pl.String:
        return bool(column.str.contains(_UNDECODED, literal=True).any())
    return column.explode(keep_nulls=False, empty_as_null=False).null_count() > 0


def list_type(kind: str) -> pl.List:
    return pl.List(pl.UInt64 if kind == "Q" else pl.Int64)


def schema_of(names: Sequence[str], list_kinds: Mapping[str, str]) -> dict[str, pl.DataType]:
    return {**{name: pl.String() for name in names}, **{name: list_type(kind) for name, kind in list_kinds.items()}}

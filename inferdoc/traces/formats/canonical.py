"""Our own JSON lines and Parquet: see `inferdoc.traces.canonical`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces import flatjson, frames, shown
from inferdoc.traces.canonical import BLOCK_SIZE, COLUMNS, DURATIONS, HEADER, Header
from inferdoc.traces.columns import parse_counts, text_column
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.fields import whole_numbers
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record, Records

_CELLS = {"arrival_s": "arrival"} | {
    name: name for name in ("input_tokens", "output_tokens", "cached_tokens", "session", "turn", "model", *DURATIONS)
}
_TEXTS = ("prompt_text", "output_text")
_SEGMENT = "segment"
_IDS = {"prefix_blocks": "Q", "prompt_ids": "q", "output_ids": "q"}
_FIELDS: dict[str, pl.DataType] = {
    HEADER: pl.String(),
    BLOCK_SIZE: pl.String(),
    **{name: kind if kind.is_nested() else pl.String() for name, kind in COLUMNS.items()},
}


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    """Rows as they were written.

    Raises:
        TraceError: no header that this version reads, files with different ones, or a row that is wrong.
    """
    frame = _frame(records, ledger)
    header = _header(frame, ledger.where)
    frame = _with_segments(frame, ledger)
    ready = [
        name for name in (*_TEXTS, *_IDS, _SEGMENT, "itl_s", "components") if frame[name].null_count() < len(frame)
    ]
    return Draft(
        format="inferdoc",
        lines=frame[""],
        cells={role: frame[name] for name, role in _CELLS.items()},
        names={role: name for name, role in _CELLS.items()},
        units={"arrival": "s", **dict.fromkeys(DURATIONS, "s")},
        ready={name: frame[name] for name in ready},
        block_size=header.block_size,
        notes=list(header.notes),
        independent_clocks=header.independent_clocks,
    )


def _frame(records: Iterable[Record], ledger: Ledger) -> pl.DataFrame:
    if isinstance(records, Records):
        if all(source.columnar for source in records.files):
            return pl.concat([_columnar(records, at) for at in range(len(records.files))])
        frame = flatjson.read_columns(records, _FIELDS)
        if frame is not None and not _has_odd_lists(frame):
            return frame
    return _one_by_one(records, ledger)


def _columnar(records: Records, at: int) -> pl.DataFrame:
    source, ledger = records.files[at], records.ledger
    ledger.begin_file(source.where)
    scan = frames.scan(source)
    names = set(scan.collect_schema().names())
    columns = (
        (pl.col(name) if name in names else pl.lit(None)).cast(kind).alias(name) for name, kind in _FIELDS.items()
    )
    try:
        found = scan.select(*columns).with_row_index("", 1).collect()
    except pl.exceptions.PolarsError:
        # The error of polars quotes values.
        raise TraceError("has columns of other types than we write", where=source.where) from None
    return found.with_columns(ledger.numbers(found[""].cast(pl.Int64)))


def _one_by_one(records: Iterable[Record], ledger: Ledger) -> pl.DataFrame:
    lines: list[int] = []
    values: dict[str, list[Any]] = {name: [] for name in _FIELDS}
    for line, record in records:
        try:
            found = {name: _value(record.get(name), name) for name in _FIELDS}
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        lines.append(line)
        for name, value in found.items():
            values[name].append(value)
    columns = [
        pl.Series(name, values[name], dtype=kind) if kind.is_nested() else text_column(values[name]).alias(name)
        for name, kind in _FIELDS.items()
    ]
    return pl.DataFrame({"": pl.Series(lines, dtype=pl.Int64), **{column.name: column for column in columns}})


def _has_odd_lists(frame: pl.DataFrame) -> bool:
    """Whether a row has a gap that is no time, or a component without a kind."""
    gaps = frame["itl_s"].explode(keep_nulls=False, empty_as_null=False)
    kinds = frame["components"].explode(keep_nulls=False, empty_as_null=False).struct.field("kind")
    return bool((~(gaps.is_finite() & (gaps >= 0))).any()) or kinds.null_count() > 0


def _value(value: Any, name: str) -> Any:
    """A field's value, checked where it is a list.

    Raises:
        RowError: another kind of list.
    """
    if name in _IDS:
        numbers = whole_numbers(value, name, _IDS[name])
        return None if numbers is None else pl.Series(numbers, dtype=flatjson.list_type(_IDS[name]).inner)
    if value is None or name not in ("itl_s", "components"):
        return value
    try:
        if name == "itl_s":
            gaps = [float(gap) for gap in value]
            if all(math.isfinite(gap) and gap >= 0 for gap in gaps):
                return gaps
        else:
            parts = [{"kind": part["kind"], "id": part.get("id"), "tokens": part.get("tokens")} for part in value]
            pl.Series([parts], dtype=COLUMNS[name])
            if all(isinstance(part["kind"], str) for part in parts):
                return parts
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, pl.exceptions.PolarsError):
        pass
    raise RowError(f"{name} is {shown.kind(value)}: expected a list as we write it", f"{name} is not what we write")


def _header(frame: pl.DataFrame, where: str) -> Header:
    texts = frame[HEADER].drop_nulls()
    headers = [Header.read(text) for text in texts]
    known = [header for header in headers if header is not None]
    if not known or len(known) < len(headers):
        raise TraceError(f"its field {HEADER!r} is not one of this version; write the file again", where=where)
    if len({header.block_size for header in known} - {None}) > 1:
        raise TraceError("the files have blocks of different sizes: give a trace of one block size", where=where)
    size = next((header.block_size for header in known if header.block_size), None)
    return Header(
        block_size=size,
        independent_clocks=known[0].independent_clocks,
        notes=list(dict.fromkeys(note for header in known for note in header.notes)),
    )


def _with_segments(frame: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    parsed = parse_counts(frame[_SEGMENT], most=None)
    message = f"{_SEGMENT} is not {parsed.expected}"
    ledger.refuse_where(parsed.bad, frame[""], lambda _: message, message)
    return frame.with_columns(parsed.values.alias(_SEGMENT)).filter(~parsed.bad)


FORMAT = Format("inferdoc", "inferdoc's own trace", has(HEADER), read)

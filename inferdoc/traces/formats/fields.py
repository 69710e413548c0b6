"""Fields of JSON records as the columns that a draft takes, in one pass."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from inferdoc.traces import flatjson, shown
from inferdoc.traces.columns import lists, text_column
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.records import Record, Records


@dataclass(frozen=True)
class Fields:
    """Columns by field name: `cells` are String, `lists` List(UInt64) or List(Int64)."""

    lines: pl.Series
    cells: dict[str, pl.Series]
    lists: dict[str, pl.Series]


def gather(records: Iterable[Record], names: Sequence[str], list_kinds: Mapping[str, str], ledger: Ledger) -> Fields:
    """The fields `names` as text, and the list fields of `list_kinds` as whole numbers: ``Q`` unsigned, ``q`` signed
    64 bits. A row with another kind of list is refused."""
    if isinstance(records, Records):
        frame = flatjson.read_columns(records, flatjson.schema_of(names, list_kinds))
        if frame is not None:
            return Fields(frame[""], {name: frame[name] for name in names}, {name: frame[name] for name in list_kinds})
    lines: list[int] = []
    values: dict[str, list[Any]] = {name: [] for name in names}
    rows: dict[str, list[array[int] | None]] = {name: [] for name in list_kinds}
    for line, record in records:
        try:
            found = [whole_numbers(record.get(name), name, kind) for name, kind in list_kinds.items()]
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        lines.append(line)
        for column, numbers in zip(rows.values(), found, strict=True):
            column.append(numbers)
        for name, column in values.items():
            column.append(record.get(name))
    return Fields(
        lines=pl.Series(lines, dtype=pl.Int64),
        cells={name: text_column(column) for name, column in values.items()},
        lists={name: lists(rows[name], pl.UInt64 if kind == "Q" else pl.Int64) for name, kind in list_kinds.items()},
    )


def all_keys(records: Iterable[Record]) -> list[str]:
    """The keys of all records in order of appearance."""
    found = flatjson.keys(records) if isinstance(records, Records) else None
    if found is not None:
        return found
    ahead = records.silently() if isinstance(records, Records) else records
    return list({name: None for _, record in ahead for name in record})


def whole_numbers(value: Any, name: str, kind: str) -> array[int] | None:
    """A list of whole numbers, exact to 64 bits.

    Raises:
        RowError: something else.
    """
    if value is None:
        return None
    try:
        if isinstance(value, list):
            return array(kind, value)
    except (TypeError, OverflowError):
        pass
    expected = "whole numbers from 0 to 2**64 - 1" if kind == "Q" else "whole numbers"
    raise RowError(
        f"{name} is {shown.kind(value)}: expected a list of {expected}", f"{name} is not a list of {expected}"
    )

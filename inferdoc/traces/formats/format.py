"""What a format is: how it is told from the others, and who reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from inferdoc.traces.csvtable import Table
from inferdoc.traces.draft import Draft
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

Keys = Mapping[str, Any]
"""A JSON record, the names of a table's header (with ``None`` as values), or the first lines of a text (likewise)."""
Matches = Callable[[Keys], bool]
Line = tuple[int, str]

RecordReader = Callable[[Iterable[Record], Ledger], Draft]
TableReader = Callable[[Table, Ledger], Draft]
LineReader = Callable[[Iterable[Line], Ledger], Draft]


@dataclass(frozen=True)
class Format:
    """A format that is read. `name` is what ``--trace-format`` takes, `title` what messages say."""

    name: str
    title: str
    matches: Matches
    read: RecordReader | TableReader | LineReader
    kind: Literal["records", "table", "lines"] = "records"
    """What `read` takes: JSON records (also the rows of Parquet and Arrow files), a table, or a log's lines."""
    arrivals_by_tool: bool = False
    """A benchmark's output: its arrival times tell about the tool's settings, not about users."""
    also_tables: bool = False
    """A format of records that is exported as CSV too: a row is then a record whose values are text."""
    detected: bool = True
    """False where the content cannot tell it from another format: taken only where the user names it."""


@dataclass(frozen=True)
class Refusal:
    """What is known but holds no data of single requests; `advice` says how to get them."""

    title: str
    matches: Matches
    advice: str
    kind: Literal["records", "table", "lines"] = "records"


def has(*names: str) -> Matches:
    """All of `names` are keys."""
    return lambda record: all(name in record for name in names)


def has_any(*names: str) -> Matches:
    """One of `names` is a key."""
    return lambda record: any(name in record for name in names)


def has_prefix(*prefixes: str) -> Matches:
    """A key begins with one of `prefixes`."""
    return lambda record: any(name.startswith(prefixes) for name in record)


def list_with(field: str, *names: str) -> Matches:
    """Field `field` is a list whose first element is an object with all of `names`."""

    def matches(record: Keys) -> bool:
        values = record.get(field)
        return (
            isinstance(values, list)
            and bool(values)
            and isinstance(values[0], Mapping)
            and all(name in values[0] for name in names)
        )

    return matches


def all_of(*tests: Matches) -> Matches:
    return lambda record: all(test(record) for test in tests)


def any_of(*tests: Matches) -> Matches:
    return lambda record: any(test(record) for test in tests)


def line_with(pattern: str) -> Matches:
    """One of the first lines of a text has `pattern` (a regular expression)."""
    found = re.compile(pattern).search
    return lambda lines: any(found(line) for line in lines)

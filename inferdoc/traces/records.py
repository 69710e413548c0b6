"""JSON in the shapes in which logs come: one object a line, arrays, one object, or several in a row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from inferdoc.errors import TraceError
from inferdoc.traces import csvtable, frames, shown
from inferdoc.traces.ledger import CUT_OFF, Ledger
from inferdoc.traces.source import Source

Record = tuple[int, dict[str, Any]]
_BROKEN = "not valid JSON"


class Records:
    """The records of all files of a trace, with running line numbers. Each iteration reads the files again."""

    def __init__(self, files: Sequence[Source], ledger: Ledger) -> None:
        self.files = files
        self.ledger = ledger

    def __iter__(self) -> Iterator[Record]:
        for source in self.files:
            self.ledger.begin_file(source.where)
            yield from read_records(source, self.ledger)

    def silently(self) -> Records:
        """The same records for a look ahead, whose faults are not counted."""
        return Records(self.files, Ledger(self.ledger.where, skip_bad_rows=True))


def read_records(source: Source, ledger: Ledger) -> Iterator[Record]:
    """The objects of a file, each with the line on which it begins. Blank lines are skipped.

    Raises:
        TraceError: broken JSON, or a value that is no object (counted instead when bad rows are skipped and the file
            has one object a line; inside an array nothing after a fault can be trusted).
    """
    if source.columnar:
        return ((ledger.number(line), record) for line, record in frames.records(source))
    if not source.is_json:
        return _rows(source, ledger)
    if is_one_a_line(source):
        return _one_a_line(source, ledger)
    return _elements(source, ledger)


def is_one_a_line(source: Source) -> bool:
    """Whether a JSON file has one object on each line, as far as its first line tells."""
    if source.head.startswith("["):
        return False
    _, line = next((number, line) for number, line in source.lines() if line.strip())
    return not _goes_on(line)


def _goes_on(line: str) -> bool:
    """Whether the first line is only the beginning of an object, or holds several."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        rest = line[error.pos :].lstrip()
        return not rest or (error.msg == "Extra data" and rest.startswith("{"))
    except (ValueError, RecursionError):
        return False
    return False


def _rows(source: Source, ledger: Ledger) -> Iterator[Record]:
    """The rows of a table as records of text; an empty cell is absent."""
    table = csvtable.read_table(source, ledger)
    names = list(table.columns)
    for line, *cells in table.scan.select(csvtable.LINE, *names).collect().iter_rows():
        yield line, {name: cell or None for name, cell in zip(names, cells, strict=True)}


def _one_a_line(source: Source, ledger: Ledger) -> Iterator[Record]:
    for number, line, is_last in _with_last(source.lines()):
        at = ledger.number(number)
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if is_last and number > 1 and not source.ends_with_line():
                ledger.leave_out([at], CUT_OFF)
            elif isinstance(error, json.JSONDecodeError):
                ledger.refuse(at, _describe(error, line), _BROKEN)
            else:
                ledger.refuse(at, f"{_BROKEN}: {error}", _BROKEN)
            continue
        if isinstance(value, dict):
            yield at, value
        else:
            ledger.refuse(at, f"expected a JSON object, found {shown.kind(value)}", "not a JSON object")


def _with_last(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, bool]]:
    """Lines that are not blank, and whether each is the last one."""
    waiting: tuple[int, str] | None = None
    for number, line in lines:
        if not line.strip():
            continue
        if waiting is not None:
            yield (*waiting, False)
        waiting = (number, line)
    if waiting is not None:
        yield (*waiting, True)


def _elements(source: Source, ledger: Ledger) -> Iterator[Record]:
    """Objects one after another, or inside arrays, each with its line."""
    text = source.text()
    decode = json.JSONDecoder().raw_decode
    position, line, counted = 0, 1, 0
    inside_array = False
    while (position := _skip(text, position, " \t\r\n," if inside_array else " \t\r\n")) < len(text):
        line, counted = line + text.count("\n", counted, position), position
        if text[position] == ("]" if inside_array else "["):
            inside_array, position = not inside_array, position + 1
            continue
        try:
            value, position = decode(text, position)
        except json.JSONDecodeError as error:
            where = f"{source.where}:{error.lineno}"
            raise TraceError(_describe(error, text.split("\n")[error.lineno - 1]), where=where) from None
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{_BROKEN}: {error}", where=f"{source.where}:{line}") from None
        if isinstance(value, dict):
            yield ledger.number(line), value
        else:
            ledger.refuse(
                ledger.number(line), f"expected a JSON object, found {shown.kind(value)}", "not a JSON object"
            )
    if inside_array:
        raise TraceError("the array is not closed: the file may be cut off", where=f"{source.where}:{line}")


def _skip(text: str, position: int, characters: str) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position


def _describe(error: json.JSONDecodeError, line: str) -> str:
    what = shown.json_fault(line, error.colno - 1)
    return f"{_BROKEN} at column {error.colno}: {error.msg[0].lower()}{error.msg[1:]}, {what}"

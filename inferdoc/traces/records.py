"""JSON in the shapes in which logs come: one object a line, one array, one object, or several in a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from inferdoc.errors import TraceError
from inferdoc.traces.ledger import Ledger, shorten
from inferdoc.traces.source import Source

Record = tuple[int, dict[str, Any]]
_BROKEN = "not valid JSON"


def read_records(source: Source, ledger: Ledger) -> Iterator[Record]:
    """The objects of a JSON file, each with the line on which it begins. Blank lines are skipped.

    Raises:
        TraceError: broken JSON, or a value that is no object (counted instead when bad rows are skipped and the file
            has one object a line; inside an array nothing after a fault can be trusted).
    """
    if source.head.startswith("["):
        return _elements(source, ledger)
    lines = ((number, line) for number, line in source.lines() if line.strip())
    first = next(lines)
    if _goes_on(first[1]):
        return _elements(source, ledger)
    return _one_a_line(chain([first], lines), ledger)


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


def _one_a_line(lines: Iterator[tuple[int, str]], ledger: Ledger) -> Iterator[Record]:
    for number, line in lines:
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            ledger.refuse(number, _describe(error, line), _BROKEN)
            continue
        except (ValueError, RecursionError) as error:
            ledger.refuse(number, f"{_BROKEN}: {shorten(str(error), 80)}", _BROKEN)
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            ledger.refuse(number, f"expected a JSON object, found {shorten(line)}", "not a JSON object")


def _elements(source: Source, ledger: Ledger) -> Iterator[Record]:
    """Objects one after another, or inside one array, each with its line."""
    text = source.text()
    decode = json.JSONDecoder().raw_decode
    position = _skip(text, 0, " \t\r\n")
    inside_array = text[position] == "["
    separators = " \t\r\n," if inside_array else " \t\r\n"
    position += inside_array
    line, counted = 1, 0
    while (position := _skip(text, position, separators)) < len(text):
        line, counted = line + text.count("\n", counted, position), position
        if inside_array and text[position] == "]":
            return
        try:
            value, position = decode(text, position)
        except json.JSONDecodeError as error:
            where = f"{source.where}:{error.lineno}"
            raise TraceError(_describe(error, text.split("\n")[error.lineno - 1]), where=where) from None
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{_BROKEN}: {shorten(str(error), 80)}", where=f"{source.where}:{line}") from None
        if isinstance(value, dict):
            yield line, value
        else:
            ledger.refuse(line, f"expected a JSON object, found {shorten(value)}", "not a JSON object")
    if inside_array:
        raise TraceError("the array is not closed: the file may be cut off", where=f"{source.where}:{line}")


def _skip(text: str, position: int, characters: str) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position


def _describe(error: json.JSONDecodeError, line: str) -> str:
    found = line[error.colno - 1 :]
    what = f"found {shorten(found, 20)}" if found.strip() else "the line ends"
    return f"{_BROKEN} at column {error.colno}: {error.msg[0].lower()}{error.msg[1:]}, {what}"

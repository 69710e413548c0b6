"""Lines of servers' logs: colours taken away, and the time that a container's runtime or the server wrote first."""

from __future__ import annotations

import ast
import re

from inferdoc.traces.formats.values import instant

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STAMP = re.compile(
    r"^(?:\d{13}\s+)?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d))\s+(?:std(?:out|err) [FP] )?"
)
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_DIGITS = 10
_NUMBERS = re.compile(r"\[[\d, ]*\]")


def plain(line: str) -> tuple[str, int | None]:
    """A line without colours and without its container's RFC 3339 stamp, and that stamp in epoch ns."""
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    found = _STAMP.match(line)
    return (line[found.end() :], instant(found[1].replace(",", "."))) if found else (line, None)


def quoted(text: str, name: str) -> str | None:
    """The text that first follows ``name:``, as Python writes it; ``None`` where there is none."""
    found = _after(text, text.find(f"{name}: "), name, _TEXT)
    if found is None:
        return None
    try:
        value = ast.literal_eval(found.replace("\n", "\\n"))
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, str) else None


def numbers(text: str, name: str) -> list[int] | None:
    """The list of whole numbers that last follows ``name:`` (a prompt before it may quote anything); ``None`` where
    there is none, or where it is empty."""
    found = _after(text, text.rfind(f"{name}: "), name, _NUMBERS)
    given = found[1:-1].replace(" ", "").strip(",").split(",") if found else []
    return [int(number) for number in given] if all(0 < len(number) <= _DIGITS for number in given) and given else None


def _after(text: str, start: int, name: str, pattern: re.Pattern[str]) -> str | None:
    found = pattern.match(text, start + len(name) + len(": ")) if start >= 0 else None
    return found[0] if found else None

"""What of a trace may stand in messages and notes: numbers, times and names of fields, never its texts.

Prompts, e-mail addresses, account ids and paths come as values of any field, as keys, and as first lines of files
that are no table. So a value is shown only where it reads as a number or a time, else told by its kind and length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_LONGEST_VALUE = 40
_LONGEST_KEY = 40
_MOST_WORDS = 4
_KEYS_SHOWN = 20
_WORDS = r"null|none|nan|true|false|[+-]?inf(?:inity)?"
_NUMBER_LIKE = re.compile(
    rf"(?i:{_WORDS})"
    r"|(?=.*\d)(?:[-+.,:\s\d]|(?<=\d)[TZeE](?![A-Za-z]))*(?:ns|us|µs|ms|s|min|m|h|d|k|K|M|G|B|%|UTC)?"
)
_KEY = re.compile(rf"[A-Za-z0-9_.\- ]{{1,{_LONGEST_KEY}}}")
_COLUMN = re.compile(rf"[A-Za-z0-9_.\- #()/%]{{0,{_LONGEST_KEY}}}")
_LONG_NUMBER = re.compile(r"\d{6}|\d{3}-\d\d-\d{4}")
_AFTER_NUMBER = re.compile(r"[:\[,]\s*-?\d[\d.eE+-]*,?\s*$")
_BARE = re.compile(rf"(?:[-+.\d][-+.\deE]{{0,20}}|(?i:{_WORDS}))(?=[\s,\]}}]|$),?")
_PUNCTUATION = "{}[],:\"'"


def value(given: object) -> str:
    """A value of a field of numbers or times: in quotes where it reads as one, else as `kind`."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return kind(given)
    text = " ".join(given.split()) if isinstance(given, str) else repr(given)
    if len(text) <= _LONGEST_VALUE and _NUMBER_LIKE.fullmatch(text):
        return repr(text)
    return kind(given) if isinstance(given, str) else f"a number of {len(text):,} characters"


def kind(given: object) -> str:
    """What a value is: ``text of 812 characters``, ``a list of 3``; of a number its value."""
    if isinstance(given, str):
        return f"text of {len(given):,} character{'s' if len(given) != 1 else ''}"
    if isinstance(given, list | tuple):
        return f"a list of {len(given):,}"
    if isinstance(given, Mapping):
        return "an object"
    if given is None or isinstance(given, bool):
        return {None: "null", True: "true", False: "false"}[given]
    if isinstance(given, int | float):
        return value(given)
    return "something else"


def keys(names: Iterable[Any], most: int = _KEYS_SHOWN) -> str:
    """Keys of an object, those that read as names of fields; the others are counted."""
    given = [str(name) for name in names]
    plain = [name for name in given if is_name(name, _KEY)]
    rest = len(given) - len(plain)
    parts = [", ".join(plain[:most]) + (", ..." if len(plain) > most else "")] if plain else []
    if rest:
        parts.append(f"{rest:,} that read{'s' if rest == 1 else ''} as no field's name")
    return " and ".join(parts) or "none"


def columns(names: Iterable[str], most: int = _KEYS_SHOWN) -> str:
    """Columns of a table, all or none: a line of which one cell reads as no name may be prose, cut at its commas."""
    given = list(names)
    if len(given) < 2 or not all(not name or is_name(name, _COLUMN) for name in given):
        return f"none (the first line does not read as names of columns: {len(given):,} part{'s' * (len(given) != 1)})"
    return ", ".join(given[:most]) + (", ..." if len(given) > most else "")


def json_fault(line: str, at: int) -> str:
    """What stands at position `at` of a line that is no JSON: a number after a number, else the kind of character."""
    rest = line[at:].lstrip()
    if not rest:
        return "the line ends"
    bare = _BARE.match(rest)
    if bare and (_AFTER_NUMBER.search(line[:at]) or rest[0].isalpha()):
        return f"found {bare.group()!r}"
    first = rest[0]
    if first in _PUNCTUATION:
        return f"found {first!r}"
    what = "a letter" if first.isalpha() else "a digit" if first.isdigit() else "another character"
    return f"found {what}"


def is_name(name: str, pattern: re.Pattern[str] = _KEY) -> bool:
    """Whether `name` reads as that of a field: a few words without other characters, and no long number."""
    reads = pattern.fullmatch(name) and any(map(str.isalpha, name)) and not _LONG_NUMBER.search(name)
    return bool(reads) and len(name.split()) <= _MOST_WORDS

"""TOML that remembers on which line each key stands. ``tomllib`` reads the values; this finds the places."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from inferdoc.errors import PolicyError
from inferdoc.rules.yaml_lines import Document

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(r"""(?:[A-Za-z0-9_-]|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[ \t.])+""")
_HEADER = re.compile(r"\[\[?")
_HEADER_END = re.compile(r"\]\]?")
_EQUALS = re.compile("=")
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}'''  # a text may end in two quotes of its own
    r"""|'''.*?'{3,5}"""
    r'''|"(?:\\.|[^"\\\n])*"'''
    r"""|'[^'\n]*'""",
    re.DOTALL,
)
_BARE = re.compile(r"[^,\]}#\n]+")


def read_toml(content: bytes, name: str) -> Document:
    """Parse a TOML document and keep the line of every key, table and item, by path.

    Raises:
        PolicyError: not UTF-8, or not TOML; with the line.
    """
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise PolicyError("not UTF-8 text; save the file as UTF-8", where=f"{name}:{line}") from None
    try:
        data = tomllib.loads(text)
        return Document(name, data, _Scanner(text).lines())
    except tomllib.TOMLDecodeError as error:
        what, line = _explain(error, text)
        raise PolicyError(f"not valid TOML: {what}", where=f"{name}:{line}") from None
    except RecursionError:
        raise PolicyError("nested too deeply", where=f"{name}:1") from None


def _explain(error: tomllib.TOMLDecodeError, text: str) -> tuple[str, int]:
    """What is wrong, and the line; of what is never closed, where it was opened."""
    what, _, place = str(error).rpartition(" (at ")
    # tomllib names a table by its tuple of keys.
    what = re.sub(r"\(('.*'),?\)", lambda table: "[" + ".".join(re.findall(r"'([^']*)'", table[1])) + "]", what)
    found = re.match(r"line (\d+)", place)
    if found:
        return what, int(found[1])
    try:
        _Scanner(text).lines()
    except _UnclosedError as unclosed:
        return what, unclosed.line
    return what, text.rstrip("\n").count("\n") + 1


class _UnclosedError(Exception):
    """The text ends, or goes on otherwise, inside what starts on `line`."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Scanner:
    """Walks through a text that is valid TOML, or valid up to what is never closed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[Path, int] = {(): 1}
        self._tables: dict[Path, int] = {}
        """Tables so far of each array of tables."""

    def lines(self) -> dict[Path, int]:
        """The line of every path.

        Raises:
            _UnclosedError: something is never closed.
        """
        table: Path = ()
        self._take(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._take(_BLANK)
        return self._lines

    def _header(self) -> Path:
        line = self._line()
        opening = self._take(_HEADER)
        *parents, last = _parts(self._take(_KEY))
        self._take(_HEADER_END)
        path: Path = ()
        for part in parents:
            path = self._newest((*path, part), line)
        path = (*path, last)
        if opening == "[[":
            self._tables[path] = self._tables.get(path, 0) + 1
        return self._newest(path, line)

    def _newest(self, path: Path, line: int) -> Path:
        """`path`, or the newest table of it where it is an array of tables."""
        self._lines.setdefault(path, line)
        if path in self._tables:
            path = (*path, self._tables[path] - 1)
            self._lines.setdefault(path, line)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for part in _parts(self._take(_KEY)):
            path = (*path, part)
            self._lines.setdefault(path, line)
        self._take(_EQUALS)
        self._take(_BLANK)
        self._value(path)

    def _value(self, path: Path) -> None:
        opened = self._line()
        match self._text[self._at : self._at + 1]:
            case '"' | "'":
                self._take(_STRING)
            case "[":
                self._at += 1
                index = 0
                while not self._closed("]", opened):
                    self._lines[*path, index] = self._line()
                    self._value((*path, index))
                    index += 1
            case "{":
                self._at += 1
                while not self._closed("}", opened):
                    self._pair(path)
            case _:
                self._take(_BARE)

    def _closed(self, mark: str, opened: int) -> bool:
        """Pass a comma, and `mark` where it comes next."""
        self._take(_BLANK)
        if self._text.startswith(",", self._at):
            self._at += 1
            self._take(_BLANK)
        if self._at == len(self._text):
            raise _UnclosedError(opened)
        closed = self._text[self._at] == mark
        self._at += closed
        return closed

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise _UnclosedError(self._line())
        self._at = match.end()
        return match[0]

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1


def _parts(key: str) -> list[str]:
    """Parts of a dotted key, unquoted."""
    if '"' not in key and "'" not in key:
        return [part.strip() for part in key.split(".")]
    parts: list[str] = []
    table: Any = tomllib.loads(f"{key} = 0")
    while isinstance(table, dict):
        ((part, table),) = table.items()
        parts.append(part)
    return parts

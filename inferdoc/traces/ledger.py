"""The book of rows that are not used: each is either the error that ends the reading, or counted with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.evidence import LeftOut

SKIP_HINT = "mend the line, or leave such rows out with --skip-bad-rows"


class RowError(ValueError):
    """One row of a trace is wrong. `reason` is the short form under which such rows are counted."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def shorten(value: object, limit: int = 40) -> str:
    """`value` as it may appear in a message: quoted, one line, at most `limit` characters."""
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return f"{text[:limit]!r}..." if len(text) > limit else repr(text)


def merge(entries: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Entries of the same reason as one, in the order in which the reasons first appear."""
    merged: dict[str, LeftOut] = {}
    for entry in entries:
        seen = merged.get(entry.reason)
        if seen is None:
            merged[entry.reason] = entry
            continue
        firsts = [line for line in (seen.first_line, entry.first_line) if line is not None]
        merged[entry.reason] = LeftOut(
            reason=entry.reason, rows=seen.rows + entry.rows, first_line=min(firsts, default=None)
        )
    return tuple(merged.values())


class Ledger:
    """Rows read and not used. `where` is the path as the user gave it."""

    def __init__(self, where: str, *, skip_bad_rows: bool) -> None:
        self.where = where
        self.skip_bad_rows = skip_bad_rows
        self._entries: list[LeftOut] = []

    @property
    def entries(self) -> tuple[LeftOut, ...]:
        return merge(self._entries)

    def refuse(self, line: int, message: str, reason: str) -> None:
        """A wrong row.

        Raises:
            TraceError: unless bad rows are skipped; then the row is counted under `reason`.
        """
        if not self.skip_bad_rows:
            raise TraceError(f"{message}; {SKIP_HINT}", where=f"{self.where}:{line}")
        self._entries.append(LeftOut(reason=reason, rows=1, first_line=line))

    def refuse_where(self, bad: pl.Series, lines: pl.Series, message: Callable[[int], str], reason: str) -> None:
        """The wrong rows of a column: `bad` is Boolean, `message` tells what is wrong with the row at a position."""
        if not bad.any():
            return
        positions = bad.arg_true()
        first = int(positions[0])
        if not self.skip_bad_rows:
            raise TraceError(f"{message(first)}; {SKIP_HINT}", where=f"{self.where}:{lines[first]}")
        self.leave_out(lines.gather(positions), reason)

    def leave_out(self, lines: pl.Series | list[int], reason: str) -> None:
        """Rows that are right but cannot be used (failed requests, repeated headers): counted, never an error."""
        if len(lines):
            self._entries.append(LeftOut(reason=reason, rows=len(lines), first_line=min(lines)))

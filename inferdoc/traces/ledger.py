"""The book of rows that are not used: each is either the error that ends the reading, or counted with a reason."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import PurePath

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.evidence import LeftOut

SKIP_HINT = "mend the line, or leave such rows out with --skip-bad-rows"
CUT_OFF = "cut off last line"
_PLACES_KEPT = 20
_FAULTS_KEPT = 3


class RowError(ValueError):
    """One row of a trace is wrong. `reason` is the short form under which such rows are counted."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


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
            reason=entry.reason,
            rows=seen.rows + entry.rows,
            first_line=min(firsts, default=None),
            places=[*seen.places, *entry.places][:_PLACES_KEPT],
        )
    return tuple(merged.values())


class Files:
    """Which file a line is in. Lines of a trace in several files have running numbers, from 1 in the first file."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._names: list[str] = []

    def begin(self, start: int, where: str) -> None:
        self._starts.append(start)
        self._names.append(where)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, file: int) -> str:
        """Without its folder."""
        return PurePath(self._names[file]).name

    def indices(self, lines: pl.Series) -> pl.Series:
        """The file of each line, from 0."""
        starts = pl.Series(self._starts, dtype=pl.Int64)
        return starts.search_sorted(lines.cast(pl.Int64) - 1, side="right").cast(pl.Int64) - 1

    def locate(self, line: int, default: str) -> str:
        """``path:line`` with the path as the user gave it."""
        at = bisect_right(self._starts, line - 1) - 1
        return f"{default}:{line}" if at < 0 else f"{self._names[at]}:{line - self._starts[at]}"

    def place(self, line: int) -> str:
        """The line alone where there is one file, else ``file:line``."""
        return str(line) if len(self._names) < 2 else PurePath(self.locate(line, "")).name

    def counted(self, reason: str, lines: pl.Series) -> LeftOut:
        """Rows not used, with the first lines on which they are."""
        first = lines.sort().head(_PLACES_KEPT)
        return LeftOut(
            reason=reason, rows=len(lines), first_line=int(first[0]), places=[self.place(line) for line in first]
        )


class Ledger:
    """Rows read and not used. `where` is the path as the user gave it; lines are running numbers over all `files`."""

    def __init__(self, where: str, *, skip_bad_rows: bool) -> None:
        self.where = where
        self.skip_bad_rows = skip_bad_rows
        self.files = Files()
        self.faults: list[str] = []
        """The first wrong rows that were counted: place and message."""
        self._entries: list[LeftOut] = []
        self._before = 0
        self._last = 0

    @property
    def entries(self) -> tuple[LeftOut, ...]:
        return merge(self._entries)

    def begin_file(self, where: str) -> None:
        """The lines that follow are those of the file `where`."""
        self._before = self._last
        self.files.begin(self._before, where)

    def number(self, line: int) -> int:
        """The running number of a line of the present file."""
        self._last = max(self._last, self._before + line)
        return self._before + line

    def numbers(self, lines: pl.Series) -> pl.Series:
        """As `number`, for a column."""
        if len(lines):
            self.number(int(lines.to_numpy().max()))
        return lines + self._before if self._before else lines

    def refuse(self, line: int, message: str, reason: str) -> None:
        """A wrong row.

        Raises:
            TraceError: unless bad rows are skipped; then the row is counted under `reason`.
        """
        where = self.files.locate(line, self.where)
        if not self.skip_bad_rows:
            raise TraceError(f"{message}; {SKIP_HINT}", where=where)
        self._note_fault(where, message)
        self.leave_out([line], reason)

    def refuse_where(self, bad: pl.Series, lines: pl.Series, message: Callable[[int], str], reason: str) -> None:
        """The wrong rows of a column: `bad` is Boolean, `message` tells what is wrong with the row at a position."""
        if not bad.any():
            return
        positions = bad.arg_true()
        for at in positions.head(_FAULTS_KEPT):
            where = self.files.locate(int(lines[at]), self.where)
            if not self.skip_bad_rows:
                raise TraceError(f"{message(at)}; {SKIP_HINT}", where=where)
            self._note_fault(where, message(at))
        self.leave_out(lines.gather(positions), reason)

    def leave_out(self, lines: pl.Series | list[int], reason: str) -> None:
        """Rows that are right but cannot be used (failed requests, repeated headers): counted, never an error."""
        if len(lines):
            self._entries.append(self.files.counted(reason, pl.Series(lines, dtype=pl.Int64)))

    def _note_fault(self, where: str, message: str) -> None:
        if len(self.faults) < _FAULTS_KEPT:
            self.faults.append(f"{where}: {message}")

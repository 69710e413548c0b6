"""The lines of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferdoc.traces.ledger import Ledger
from inferdoc.traces.source import Source


class Lines:
    """The lines of all files of a trace, with running numbers. Each iteration reads the files again."""

    def __init__(self, files: Sequence[Source], ledger: Ledger) -> None:
        self.files = files
        self.ledger = ledger

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for source in self.files:
            self.ledger.begin_file(source.where)
            for number, line in source.lines():
                yield self.ledger.number(number), line

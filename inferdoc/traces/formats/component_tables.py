"""RAGPulse's tables of component lengths: rows such as ``{"passage_id": 7, "token_length": 163}``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.columns import MOST_TOKENS
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import read_records
from inferdoc.traces.source import Source

_IDS = {
    "sys_prompt_id": "sys_prompt",
    "passage_id": "passages",
    "history_id": "history",
    "user_input_id": "user_input",
    "web_search_id": "web_search",
}
_FILES = ("1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search")
_ENDINGS = (".jsonl", ".jsonl.gz")


def is_table_row(record: Mapping[str, Any]) -> bool:
    return "token_length" in record and any(name in record for name in _IDS)


class Tables:
    """Tokens of each component by kind and id; `unread` counts wrong rows of tables beside the trace."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, int], int] = {}
        self.unread = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self, kind: str, id: int) -> int | None:
        return self._tokens.get((kind, id))

    def add(self, line: int, record: Mapping[str, Any], ledger: Ledger) -> None:
        """One row of a table.

        Raises:
            TraceError: the id or the length is no whole number (counted where bad rows are skipped).
        """
        name = next(name for name in _IDS if name in record)
        for field, most in ((name, 2**64 - 1), ("token_length", MOST_TOKENS)):
            value = record[field]
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                ledger.refuse(
                    line, f"{field} is {shown.value(value)}: expected a whole number", f"{field} is not a whole number"
                )
                return
        self._tokens[_IDS[name], record[name]] = record["token_length"]

    def read_beside(self, ledger: Ledger) -> None:
        """The tables in the folder of the trace, unless they came with it."""
        if self._tokens:
            return
        given = Path(ledger.where)
        folder = given if given.is_dir() else given.parent
        for path in (folder / f"{file}{ending}" for file in _FILES for ending in _ENDINGS):
            if not path.is_file():
                continue
            beside = Ledger(str(path), skip_bad_rows=ledger.skip_bad_rows)
            for line, record in read_records(Source.find(path), beside):
                if is_table_row(record):
                    self.add(line, record, beside)
            self.unread += sum(entry.rows for entry in beside.entries)

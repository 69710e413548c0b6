"""BurstGPT CSV in both layouts, by column name: part 3 has ``Session ID`` and ``Elapsed time`` in the middle.

Format: https://github.com/HPMLL/BurstGPT. Times are whole seconds from the first day of the whole collection.
"""

from __future__ import annotations

import polars as pl

from inferdoc.traces.columns import parse_counts, present
from inferdoc.traces.csvtable import Table
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.durations import without_zeros
from inferdoc.traces.formats.format import Format
from inferdoc.traces.formats.headers import header_has, pick
from inferdoc.traces.ledger import Ledger

_FIELDS = {
    "arrival": "Timestamp",
    "input_tokens": "Request tokens",
    "output_tokens": "Response tokens",
    "model": "Model",
    "session": "Session ID",
    "e2e_s": "Elapsed time",
}
_OTHERS = {"total": "Total tokens", "log": "Log Type"}

_KINDS = ("Conversation log", "API log")


def read(table: Table, ledger: Ledger) -> Draft:
    names = pick(table, _FIELDS, ("arrival", "input_tokens", "output_tokens"), ledger.where)
    draft = Draft(
        format="burstgpt",
        lines=table.lines,
        cells={role: table.columns[name] for role, name in names.items()},
        names=names,
        units={"arrival": "s", "e2e_s": "s"},
    )
    without_zeros(draft, "e2e_s", "shorter than the clock's second")
    others = pick(table, _OTHERS, (), ledger.where)
    if "log" in others:
        _describe_kinds(draft, table.columns[others["log"]])
    if "total" in others:
        _compare_totals(draft, table.columns[others["total"]])
    return draft


def _describe_kinds(draft: Draft, kinds: pl.Series) -> None:
    given = present(kinds).drop_nulls()
    counts = given.replace_strict(_KINDS, _KINDS, default="of another kind").value_counts(sort=True)
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.iter_rows())
    if listed:
        draft.notes.append(f"rows by kind: {listed}; only rows of conversations have a session")


def _compare_totals(draft: Draft, totals: pl.Series) -> None:
    parts = [parse_counts(draft.cells[role]).values for role in ("input_tokens", "output_tokens")]
    differing = int((parts[0] + parts[1] != parse_counts(totals).values).sum())
    if differing:
        draft.notes.append(
            f"{differing:,} rows have a total that is not the sum of request and response tokens: the parts are used"
        )


FORMAT = Format(
    "burstgpt", "BurstGPT", header_has("Timestamp", "Request tokens", "Response tokens"), read, kind="table"
)

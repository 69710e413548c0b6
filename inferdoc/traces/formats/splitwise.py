"""Splitwise-sim CSV: ``arrival_timestamp`` (s), ``prompt_size``, ``token_size``, one request a row.

Format: https://github.com/Mutinifni/splitwise-sim (traces).
"""

from __future__ import annotations

from inferdoc.traces.columns import parse_counts
from inferdoc.traces.csvtable import Table
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format
from inferdoc.traces.formats.headers import header_has, pick
from inferdoc.traces.ledger import Ledger

_FIELDS = {
    "arrival": "arrival_timestamp",
    "input_tokens": "prompt_size",
    "output_tokens": "token_size",
    "model": "model_type",
}
_BATCH = {"batch_size": "batch_size"}


def read(table: Table, ledger: Ledger) -> Draft:
    names = pick(table, _FIELDS, ("arrival", "input_tokens", "output_tokens"), ledger.where)
    draft = Draft(
        format="splitwise",
        table=table,
        columns=names,
        names=names,
        units={"arrival": "s"},
    )
    for column in pick(table, _BATCH, (), ledger.where).values():
        batched = int((parse_counts(table.columns[column]).values > 1).sum())
        if batched:
            draft.notes.append(f"{batched:,} rows have a {column} above 1: each is read as one request")
    return draft


FORMAT = Format(
    "splitwise",
    "Splitwise-sim trace",
    header_has("arrival_timestamp", "prompt_size", "token_size"),
    read,
    kind="table",
)

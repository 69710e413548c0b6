"""Vidur CSV: ``arrived_at`` (s), ``num_prefill_tokens``, ``num_decode_tokens``; some files have lengths only.

Format: https://github.com/microsoft/vidur (data/processed_traces).
"""

from __future__ import annotations

from inferdoc.traces.csvtable import Table
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format
from inferdoc.traces.formats.headers import header_has, pick
from inferdoc.traces.ledger import Ledger

_FIELDS = {"arrival": "arrived_at", "input_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}


def read(table: Table, ledger: Ledger) -> Draft:
    """Other columns (pandas' index, totals, ratios) say nothing new and are not used."""
    names = pick(table, _FIELDS, ("input_tokens", "output_tokens"), ledger.where)
    draft = Draft(
        format="vidur",
        table=table,
        columns=names,
        names=names,
        units={"arrival": "s"},
    )
    if "arrival" not in names:
        draft.notes.append("the file has lengths only: no arrival times, so no rate, burstiness or windows")
    return draft


FORMAT = Format("vidur", "Vidur trace", header_has("num_prefill_tokens", "num_decode_tokens"), read, kind="table")

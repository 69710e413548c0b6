"""Azure LLM inference traces: ``TIMESTAMP`` (wall clock), ``ContextTokens``, ``GeneratedTokens``.

Format: https://github.com/Azure/AzurePublicDataset. 2023 files have 7 fractional digits and no zone, 2024 files an
offset, the multimodal file a column ``NumImages``. No sessions, no prefixes, no model.
"""

from __future__ import annotations

from inferdoc.traces.columns import parse_counts
from inferdoc.traces.csvtable import Table
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format
from inferdoc.traces.formats.headers import header_has, pick
from inferdoc.traces.ledger import Ledger

_FIELDS = {"arrival": "TIMESTAMP", "input_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}
_IMAGES = {"images": "NumImages"}


def read(table: Table, ledger: Ledger) -> Draft:
    names = pick(table, _FIELDS, tuple(_FIELDS), ledger.where)
    draft = Draft(format="azure", table=table, columns=names, names=names)
    for column in pick(table, _IMAGES, (), ledger.where).values():
        images = parse_counts(table.columns[column]).values
        draft.notes.append(f"{int((images > 0).sum()):,} requests carry images; only their token counts are used")
    return draft


FORMAT = Format("azure", "Azure", header_has(*_FIELDS.values()), read, kind="table")

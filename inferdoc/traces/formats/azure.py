"""Azure LLM inference traces: ``TIMESTAMP`` (wall clock), ``ContextTokens``, ``GeneratedTokens``.

Format: https://github.com/Azure/AzurePublicDataset. 2023 files have 7 fractional digits and no zone, 2024 files an
offset, the multimodal file a column ``NumImages``. No sessions, no prefixes, no model.
"""

from __future__ import annotations

from inferdoc.traces.draft import Draft
from inferdoc.traces.columns import parse_counts
from inferdoc.traces.csvtable import Table
from inferdoc.traces.formats.format import Format, Keys
from inferdoc.traces.ledger import Ledger

_FIELDS = {"arrival": "timestamp", "input_tokens": "contexttokens", "output_tokens": "generatedtokens"}
HEADER = frozenset(_FIELDS.values())


def read(table: Table, ledger: Ledger) -> Draft:
    by_name = {name.lower(): name for name in table.columns}
    names = {role: by_name[field] for role, field in _FIELDS.items()}
    draft = Draft(format="azure", table=table, columns=names, names=names)
    if "numimages" in by_name:
        images = parse_counts(table.columns[by_name["numimages"]]).values
        draft.notes.append(f"{int((images > 0).sum()):,} requests carry images; only their token counts are used")
    return draft


def _matches(header: Keys) -> bool:
    return {name.lower() for name in header} >= HEADER


FORMAT = Format("azure", "Azure", _matches, read, kind="table")

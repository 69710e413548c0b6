"""Any CSV or JSONL whose columns have names that we know: see `inferdoc.traces.aliases`."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces import aliases, blocks
from inferdoc.traces.columns import parse_counts, words
from inferdoc.traces.csvtable import Table
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.fields import all_keys, gather
from inferdoc.traces.formats.format import Format, Keys, any_of, has, has_any
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record, Records

_LISTS = {"prefix_blocks": "Q", "prompt_ids": "q", "output_ids": "q"}
_TEXTS = ("prompt_text", "output_text")
_IDS = frozenset(("requestid", "reqid", "id", "uuid", "requestuuid"))


def read_csv(table: Table, ledger: Ledger) -> Draft:
    names, units = _match(table.columns)
    names = {role: name for role, name in names.items() if role not in _LISTS and role != "block_size"}
    return Draft(
        format="csv",
        table=table,
        columns={role: name for role, name in names.items() if role not in _TEXTS},
        names=names,
        units=units,
        ready={role: table.columns[names[role]] for role in _TEXTS if role in names},
        notes=[_used(names, units)],
        unsure_ids=True,
    )


def read_jsonl(records: Iterable[Record], ledger: Ledger) -> Draft:
    """Records as they are; lists of ids count where they stand under a known name.

    Raises:
        TraceError: block hashes whose block size is neither given nor follows from the lengths.
    """
    rows = records if isinstance(records, Records) else list(records)
    names, units = _match(all_keys(rows))
    list_kinds = {names[role]: kind for role, kind in _LISTS.items() if role in names}
    fields = gather(rows, [name for name in names.values() if name not in list_kinds], list_kinds, ledger)
    ready = {role: fields.lists[names[role]] for role in _LISTS if role in names}
    ready |= {role: fields.cells[names[role]] for role in _TEXTS if role in names}
    cells = {role: fields.cells[name] for role, name in names.items() if role not in ready}
    sizes = cells.pop("block_size", None)
    draft = Draft("jsonl", fields.lines, cells, names, units, ready, notes=[_used(names, units)], unsure_ids=True)
    if "prefix_blocks" in ready:
        draft.block_size = _block_size(draft, sizes, ledger.where)
    return draft


def _block_size(draft: Draft, sizes: pl.Series | None, where: str) -> int:
    given = parse_counts(sizes).values.drop_nulls().unique() if sizes is not None else pl.Series(dtype=pl.Int64)
    if len(given) == 1 and given[0] > 0:
        return int(given[0])
    if len(given) > 1:
        raise TraceError(f"block_size has {len(given)} different values: give a file for each", where=where)
    lengths = parse_counts(draft.cells["input_tokens"]).values if "input_tokens" in draft.cells else None
    if lengths is not None:
        inferred = blocks.infer(
            pl.DataFrame({"input_tokens": lengths, "prefix_blocks": draft.ready["prefix_blocks"]}), partial_last=None
        )
        if inferred is not None:
            draft.notes.append(f"blocks of {inferred} tokens, by the number of {draft.name('prefix_blocks')}")
            return inferred
    raise TraceError(
        f"the block size of {draft.name('prefix_blocks')} is not known and does not follow from the lengths;"
        " add a field block_size",
        where=where,
    )


def _match(columns: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Names and units by role, with the column of the requests' ids: the most telling name of those in `_IDS`."""
    columns = list(columns)
    names, units = aliases.match(columns)
    ids = [name for name in columns if "".join(words(name)) in _IDS and name not in names.values()]
    if ids:
        names["request_id"] = max(ids, key=lambda name: len("".join(words(name))))
    return names, units


def _used(names: dict[str, str], units: dict[str, str]) -> str:
    used = ", ".join(
        f"{role.removesuffix('_s')} = {names[role]}" + (f" ({units[role]})" if role in units else "")
        for role in aliases.ALIASES
        if role in names
    )
    return f"columns used: {used}"


def _has_lengths(record: Keys) -> bool:
    roles, _ = aliases.match(record)
    return "input_tokens" in roles and "output_tokens" in roles


FORMATS = (
    Format("csv", "CSV by column names", any_of(_has_lengths, has("prompt")), read_csv, kind="table"),
    Format("jsonl", "JSONL by column names", any_of(_has_lengths, has_any("prompt", "text", "text_input")), read_jsonl),
)

"""Mooncake JSONL: ``timestamp`` in ms, ``input_length``, ``output_length``, ``hash_ids`` of 512-token chained blocks.

Format: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces).
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from inferdoc.traces import blocks, quick
from inferdoc.traces.columns import parse_counts
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats import sizes
from inferdoc.traces.formats.fields import gather
from inferdoc.traces.formats.format import Format, Keys
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

BLOCK_SIZE = 512
_FIELDS = {
    "arrival": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "session": "session_id",
}
_ROWS_FOR_ANOTHER_SIZE = 10
_ROWS_LOOKED_AT = 1000
_TEXTS = ("messages", "prompt", "prompt_text", "text", "text_input", "input_text")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    fields = gather(records, [*_FIELDS.values(), "block_size"], {"hash_ids": "Q"}, ledger)
    draft = Draft(
        format="mooncake",
        lines=fields.lines,
        cells={role: fields.cells[name] for role, name in _FIELDS.items()},
        names=_FIELDS | {"prefix_blocks": "hash_ids"},
        units={"arrival": "ms"},
        ready={"prefix_blocks": fields.lists["hash_ids"]},
        partial_last=True,
    )
    if draft.ready["prefix_blocks"].null_count() < len(draft.lines):
        given = sizes.stated(fields.cells["block_size"].drop_nulls().unique(), "block_size", ledger.where)
        draft.block_size = given or _block_size(draft)
        draft.partial_last = None if given else True
    _describe_clock(draft)
    return draft


def _block_size(draft: Draft) -> int:
    """512, unless the first rows, and enough of them, all fit one other size and not 512."""
    first = pl.DataFrame({"prefix_blocks": draft.ready["prefix_blocks"], "input_tokens": draft.cells["input_tokens"]})
    first = first.filter(pl.col("prefix_blocks").is_not_null()).head(_ROWS_LOOKED_AT)
    rows = first.with_columns(parse_counts(first["input_tokens"]).values.alias("input_tokens"))
    inferred = blocks.infer(rows, partial_last=True)
    if inferred is None or inferred == BLOCK_SIZE or rows.height < _ROWS_FOR_ANOTHER_SIZE:
        return BLOCK_SIZE
    draft.notes.append(f"blocks of {inferred} tokens, by the number of hash_ids (Mooncake's own files: {BLOCK_SIZE})")
    return inferred


def _describe_clock(draft: Draft) -> None:
    cells = draft.cells["arrival"].to_frame("x")
    times = cells.select(quick.number_of(pl.col("x"), "ms"))["x"].drop_nulls()
    if times.is_empty():
        return
    if (times % 10**6 != 0).any():
        draft.notes.append(
            "timestamps are read as milliseconds, as Mooncake writes them, but have fractions of one; if they are"
            " seconds, read the file with --trace-format jsonl"
        )
    start = times.to_numpy().min()
    if start > 0:
        draft.notes.append(
            f"the first timestamp is {start / 1e9:,.3f} s: a slice of a longer trace, whose requests may reuse blocks"
            " from before it, so that the ideal hit rate is a lower bound"
        )


def _matches(record: Keys) -> bool:
    """Rows of lengths; those that hold the prompt itself, and no ids of its blocks, are read for their text."""
    lengths = "input_length" in record and "output_length" in record
    return lengths and (record.get("hash_ids") is not None or all(record.get(name) is None for name in _TEXTS))


FORMAT = Format("mooncake", "Mooncake", _matches, read)

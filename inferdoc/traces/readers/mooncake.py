"""Mooncake JSONL: ``timestamp`` in ms, ``input_length``, ``output_length``, ``hash_ids`` of 512-token chained blocks.

Format: https://github.com/kvcache-ai/Mooncake (FAST25-release/traces).
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from inferdoc.traces import blocks
from inferdoc.traces.assembly import Draft
from inferdoc.traces.columns import parse_counts, parse_times
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.readers.fields import gather
from inferdoc.traces.records import Record

BLOCK_SIZE = 512
_FIELDS = {
    "arrival": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "session": "session_id",
}
_ROWS_FOR_ANOTHER_SIZE = 10


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    fields = gather(records, list(_FIELDS.values()), {"hash_ids": "Q"}, ledger)
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
        draft.block_size = _block_size(draft)
    _describe_clock(draft)
    return draft


def _block_size(draft: Draft) -> int:
    """512, unless the first rows, and enough of them, all fit one other size and not 512."""
    rows = pl.DataFrame(
        {
            "prefix_blocks": draft.ready["prefix_blocks"],
            "input_tokens": parse_counts(draft.cells["input_tokens"]).values,
        }
    ).filter(pl.col("prefix_blocks").is_not_null())
    inferred = blocks.infer(rows, partial_last=True)
    if inferred is None or inferred == BLOCK_SIZE or rows.height < _ROWS_FOR_ANOTHER_SIZE:
        return BLOCK_SIZE
    draft.notes.append(f"blocks of {inferred} tokens, by the number of hash_ids (Mooncake's own files: {BLOCK_SIZE})")
    return inferred


def _describe_clock(draft: Draft) -> None:
    cells = draft.cells["arrival"]
    times = parse_times(cells, "ms").values.drop_nulls()
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

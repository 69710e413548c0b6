"""Baseten completion traces (Parquet, Arrow or JSONL): ``timestamp_start_unix_ms``, prompt, lengths, maybe hashes.

Canceled requests have ``output_tokens`` 0 or ``request_canceled`` 1. ``provided_session_id`` may be different in every
row; then the derived ``poor_man_session_id`` names the sessions. Format: AIPerf's documentation of Baseten traces.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from inferdoc.traces import blocks
from inferdoc.traces.columns import parse_counts, present
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats import sizes
from inferdoc.traces.formats.durations import without_zeros
from inferdoc.traces.formats.fields import Fields, gather
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

_FIELDS = {
    "arrival": "timestamp_start_unix_ms",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "ttft_s": "duration_ttft_ms",
    "e2e_s": "duration_e2e_ms",
    "model": "model",
}
_SESSIONS = ("provided_session_id", "poor_man_session_id")
_OTHERS = ("request_canceled", "prompt", "output_text", "block_size", *_SESSIONS)
_TRUE = ["1", "1.0", "true", "yes"]


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    fields = gather(records, [*_FIELDS.values(), *_OTHERS], {"total_hashes": "Q"}, ledger)
    canceled = present(fields.cells["request_canceled"]).str.to_lowercase().is_in(_TRUE).fill_null(False)
    draft = Draft(
        format="baseten",
        lines=fields.lines,
        cells={role: fields.cells[name] for role, name in _FIELDS.items()},
        names=_FIELDS | {"prefix_blocks": "total_hashes"},
        units={"arrival": "ms", "ttft_s": "ms", "e2e_s": "ms"},
        ready={"prompt_text": fields.cells["prompt"], "output_text": fields.cells["output_text"]},
    )
    draft.cells["status"] = pl.DataFrame({"x": canceled}).select(pl.when("x").then(pl.lit("canceled")).alias("x"))["x"]
    draft.cells["session"] = _sessions(fields, draft)
    for role in ("ttft_s", "e2e_s"):
        without_zeros(draft, role, "shorter than the clock's millisecond")
    _add_blocks(draft, fields, canceled, ledger)
    return draft


def _sessions(fields: Fields, draft: Draft) -> pl.Series:
    """The first column of ids in which one stands twice."""
    columns = {name: present(fields.cells[name]) for name in _SESSIONS}
    for name, column in columns.items():
        if column.drop_nulls().is_duplicated().any():
            draft.notes.append(f"sessions are those of {name}")
            return column
    return columns[_SESSIONS[0]]


def _add_blocks(draft: Draft, fields: Fields, canceled: pl.Series, ledger: Ledger) -> None:
    """The hashes, where they are complete and fit the lengths: the text says the same about prefixes."""
    hashes = fields.lists["total_hashes"]
    size = sizes.stated(fields.cells["block_size"], "block_size", ledger.where)
    if size is None or not (hashes.list.len() > 0).any():
        return
    rows = pl.DataFrame(
        {"prefix_blocks": hashes, "input_tokens": parse_counts(draft.cells["input_tokens"]).values}
    ).filter(~canceled)
    fitting = int(blocks.fits(rows, size).fill_null(False).sum())
    if fitting < rows.height and fields.cells["prompt"].count():
        draft.notes.append(
            f"total_hashes are not used: in {rows.height - fitting:,} of {rows.height:,} requests they are missing or"
            " do not fit input_tokens; prefixes are found in the text"
        )
        return
    draft.block_size = size
    draft.ready["prefix_blocks"] = hashes


FORMAT = Format("baseten", "Baseten trace", has("timestamp_start_unix_ms", "input_tokens"), read)

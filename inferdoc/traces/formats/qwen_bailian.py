"""Qwen-Bailian JSONL: ``timestamp`` in seconds, ``hash_ids`` of 16-token blocks, chats that name their parent.

The ids name the content of a block, not its whole prefix: equal ids reuse a prefix only in a common leading run.
A session is a whole tree of chats, named by its root. Format: https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from inferdoc.traces.columns import present
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats import sizes
from inferdoc.traces.formats.fields import gather
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.formats.lineage import Families
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

BLOCK_SIZE = 16
_FIELDS = {
    "arrival": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "turn": "turn",
}
_NO_PARENT = (None, "-1", "-1.0")

_TYPES = ("text", "search", "image", "file", "thinking")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    fields = gather(records, [*_FIELDS.values(), "chat_id", "parent_chat_id", "type"], {"hash_ids": "Q"}, ledger)
    draft = Draft(
        format="qwen-bailian",
        lines=fields.lines,
        cells={role: fields.cells[name] for role, name in _FIELDS.items()},
        names=_FIELDS | {"prefix_blocks": "hash_ids"},
        units={"arrival": "s"},
        ready={"prefix_blocks": fields.lists["hash_ids"]},
        partial_last=True,
    )
    draft.cells["session"] = _sessions(present(fields.cells["chat_id"]), present(fields.cells["parent_chat_id"]), draft)
    if draft.ready["prefix_blocks"].null_count() < len(draft.lines):
        draft.block_size = sizes.inferred(
            draft.cells["input_tokens"],
            draft.ready["prefix_blocks"],
            BLOCK_SIZE,
            "hash_ids",
            partial_last=True,
            notes=draft.notes,
        )
        draft.notes.append(
            "hash_ids name the content of blocks, not whole prefixes: a prefix cache can reuse only a common leading"
            " run of them"
        )
    types = present(fields.cells["type"]).drop_nulls()
    kinds = types.replace_strict(_TYPES, _TYPES, default="of another type").value_counts(sort=True)
    if kinds.height > 1:
        draft.notes.append(f"requests by type: {', '.join(f'{count:,} {kind}' for kind, count in kinds.iter_rows())}")
    return draft


def _sessions(chats: pl.Series, parents: pl.Series, draft: Draft) -> pl.Series:
    """The root of each chat's chain of parents; it may lie before the file."""
    families, known = Families(), set(chats.drop_nulls())
    missing, circles = 0, 0
    for chat, parent in zip(chats, parents, strict=True):
        if chat is None or parent in _NO_PARENT:
            continue
        missing += parent not in known
        circles += not families.join(chat, parent)
    if missing:
        draft.notes.append(
            f"{missing:,} requests follow a chat that is not in the file: their sessions began before it, so the hit"
            " rate of their first turns here is a lower bound"
        )
    if circles:
        draft.notes.append(f"{circles:,} requests name a parent that follows from them, or one twice: one session each")
    return pl.Series([None if chat is None else families.root(chat) for chat in chats], dtype=pl.String)


FORMAT = Format("qwen-bailian", "Qwen-Bailian", has("chat_id", "parent_chat_id", "hash_ids"), read)

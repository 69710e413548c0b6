"""A trace without texts, names or ids: chained keyed hashes of blocks, pseudonyms of sessions, lengths and times.

Names of models that hold an account, a path or an address get pseudonyms, too; those of a model hub stay.

A hash is BLAKE2b with a secret key, over the hash of the blocks before and the block's content. Who has the key can
test guesses of a text, so the key stays where the texts are; files made with one key can be joined. Lengths and times
stay as they are: they are what is analysed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from inferdoc.errors import InputError, TraceError
from inferdoc.traces import shown
from inferdoc.traces.chains import as_lists, chain, keyed, known_blocks
from inferdoc.traces.ledger import Files
from inferdoc.traces.model_names import is_public
from inferdoc.traces.prompt_blocks import PromptBlocks
from inferdoc.traces.trace import SCHEMA, Trace

KEY_BYTES = 32
_SHORTEST_KEY = 16
_REMOVED = ("prompt_text", "output_text", "prompt_ids", "output_ids")


@dataclass(frozen=True)
class Anonymized:
    trace: Trace
    notes: list[str]
    """What was done, for the file and the user; nothing that identifies."""


def read_key(path: Path) -> tuple[bytes, bool]:
    """The key in `path`, and whether it was made here: a new one is written for its owner alone (mode 600).

    Raises:
        InputError: the file cannot be read or written, or is too short to be a key.
    """
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            text = secrets.token_hex(KEY_BYTES)
            file.write(text + "\n")
            return _derived(text.encode()), True
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"{path}: the key cannot be written ({error.strerror or error})") from None
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise InputError(f"{path}: the key cannot be read ({error.strerror or error})") from None
    if len(secret) < _SHORTEST_KEY:
        raise InputError(
            f"{path}: {len(secret)} bytes are too short for a key; give at least {_SHORTEST_KEY}, or name a file that"
            " does not exist: a key is made in it"
        )
    return _derived(secret), False


def anonymize(trace: Trace, key: bytes, *, block_size: int = 16, hide_models: bool = False) -> Anonymized:
    """`trace` with hashes in place of all that could identify.

    Args:
        block_size: tokens a block, where the trace has token ids or texts; recorded blocks keep their size.
        hide_models: give all models pseudonyms, not only those whose names tell more than the model.

    Raises:
        TraceError: the size of recorded blocks is not known.
    """
    rows, notes = trace.rows, ["anonymized: sessions and prompts are keyed hashes"]
    models, hidden = _models(rows["model"], _sub(key, b"model"), hide_all=hide_models)
    notes += hidden
    size: int | None = None
    if trace.content == "block hashes":
        if trace.block_size is None:
            raise TraceError("the block size of the recorded hashes is not known", where=trace.source)
        size = trace.block_size
        rows = rows.with_columns(_rekeyed(rows["prefix_blocks"], key))
        notes.append(f"the recorded ids of blocks of {size} tokens are hashed once more, each for itself")
    elif (found := known_blocks(trace, block_size)) is not None:
        size = block_size
        chains = chain(found)
        ids = as_lists(keyed(chains, _sub(key, b"prefix"))[chains.numbers], chains.count)
        rows = rows.with_columns(ids.alias("prefix_blocks"), pl.Series("input_tokens", found.tokens))
        notes += _notes_on_blocks(trace, found)
        if found.of_bytes:
            rows = rows.with_columns(_output_lengths(rows, found))
    if trace.has("components"):
        rows = rows.with_columns(_components(rows["components"], key))
    rows = rows.with_columns(
        pl.int_range(1, pl.len() + 1).alias("row"),
        *(pl.lit(None, SCHEMA[name]).alias(name) for name in _REMOVED),
        _renamed(rows["session"], lambda name: "s" + _digest(name, _sub(key, b"session"), 8)),
        models,
    )
    if trace.left_out:
        count = sum(entry.rows for entry in trace.left_out)
        notes.append(f"{count:,} rows of the source that were left out on reading are not in it")
    made = replace(
        trace,
        rows=rows.select(list(SCHEMA)),
        source="anonymized",
        block_size=size,
        left_out=(),
        notes=(),
        files=Files(),
    )
    return Anonymized(made, notes)


def _notes_on_blocks(trace: Trace, found: PromptBlocks) -> list[str]:
    notes = [f"blocks of {found.block_size} tokens are hashed with all that stands before them"]
    if not found.of_bytes:
        return notes
    notes += [*found.notes, "so blocks are pieces of text; lengths stay as recorded"]
    unknown = trace.rows["input_tokens"].null_count()
    if unknown:
        notes.append(f"{unknown:,} prompts had no token count: theirs, and that of their answers, follows from bytes")
    return notes


def _output_lengths(rows: pl.DataFrame, prompts: PromptBlocks) -> pl.Series:
    """Recorded lengths of answers; where none is recorded, as many bytes a token as the prompts have."""
    width = max(1.0, float(rows["prompt_text"].str.len_bytes().sum()) / int(prompts.tokens.sum()))
    estimated = (pl.col("output_text").str.len_bytes() / width).ceil().cast(pl.Int64)
    return rows.select(pl.coalesce("output_tokens", estimated).alias("output_tokens"))["output_tokens"]


def _sub(key: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(purpose, key=key, digest_size=32).digest()


def _derived(secret: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=32, person=b"inferdoc-trace").digest()


def _rekeyed(lists: pl.Series, key: bytes) -> pl.Series:
    """Each id hashed for itself: equal ids stay equal wherever they stand."""
    secret = _sub(key, b"id")
    values, at = np.unique(lists.explode(keep_nulls=False, empty_as_null=False).to_numpy(), return_inverse=True)
    hashed = b"".join(
        hashlib.blake2b(value.to_bytes(8, "little"), key=secret, digest_size=8).digest() for value in values.tolist()
    )
    count = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    made = as_lists(np.frombuffer(hashed, dtype="<u8").astype(np.uint64)[at], count)
    known = lists.is_not_null()
    return made if known.all() else pl.select(pl.when(known).then(made).alias("prefix_blocks"))["prefix_blocks"]


def _components(column: pl.Series, key: bytes) -> pl.Series:
    """Lengths stay, and kinds that read as names of fields; ids are hashed with their kind."""
    secret = _sub(key, b"component")
    known: dict[tuple[str, int], int] = {}

    def hashed(kind: str, id: int) -> int:
        if (kind, id) not in known:
            content = kind.encode() + b"\0" + id.to_bytes(8, "little")
            known[kind, id] = int.from_bytes(hashlib.blake2b(content, key=secret, digest_size=8).digest(), "little")
        return known[kind, id]

    def named(kind: str | None) -> str | None:
        return kind if kind is None or shown.is_name(kind) else "kind-" + _digest(kind, secret, 4)

    def renamed(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                **part,
                "kind": named(part["kind"]),
                "id": None if part["id"] is None else hashed(part["kind"] or "", part["id"]),
            }
            for part in parts
        ]

    made = [None if parts is None else renamed(parts) for parts in column.to_list()]
    return pl.Series("components", made, dtype=SCHEMA["components"])


def _models(names: pl.Series, secret: bytes, *, hide_all: bool) -> tuple[pl.Series, list[str]]:
    """The models under names that tell nothing but the model, and what was hidden."""
    known = names.drop_nulls().unique().to_list()
    hidden = {name for name in known if hide_all or not is_public(name)}
    made = _renamed(names, lambda name: "model-" + _digest(name, secret, 4) if name in hidden else name)
    if not known:
        return made, []
    why = "" if hide_all else " (an account, a path, an address or a long number in the name)"
    kept = "" if hide_all else "; --hide-models hides all"
    return made, [f"names of models: {len(hidden):,} of {len(known):,} hidden{why if hidden else ''}{kept}"]


def _digest(name: str, secret: bytes, size: int) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=secret, digest_size=size).hexdigest()


def _renamed(names: pl.Series, new: Callable[[str], str]) -> pl.Series:
    made = {name: new(name) for name in names.drop_nulls().unique(maintain_order=True).to_list()}
    return names.replace_strict(made, default=None, return_dtype=pl.String)

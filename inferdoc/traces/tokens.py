"""Token ids for a trace's prompts: counted by a tokenizer, derived from block hashes, or made up from a seed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces.trace import Trace

Encode = Callable[[list[str]], list[list[int]]]
_TEXTS_AT_ONCE = 256
_ROW, _BLOCK = 0, 1
"""First word after the seed: ids of rows and of blocks never come from the same stream."""


def tokenize(trace: Trace, encode: Encode, begin: Sequence[int] = ()) -> Trace:
    """Token ids of the texts, and lengths counted from them; rows without text stay as they are.

    `encode` is the model's tokenizer over a list of texts, without special tokens of its own. `begin`: ids (a
    beginning-of-sequence token) that stand before each prompt, once: a text that spells them out gets no second one.
    Recorded counts of another tokenizer are replaced, and a
    recorded number of cached tokens that no longer fits its prompt becomes unknown.
    """
    if not trace.has("prompt_text"):
        return trace
    rows = trace.rows
    for text, name, count in (
        ("prompt_text", "prompt_ids", "input_tokens"),
        ("output_text", "output_ids", "output_tokens"),
    ):
        ids_of = _encode(rows[text], encode)
        if text == "prompt_text":
            ids_of = [_begun(ids, list(begin)) if ids else ids for ids in ids_of]
        encoded = pl.Series(ids_of, dtype=pl.List(pl.Int64))
        rows = rows.with_columns(
            pl.coalesce(encoded, name).alias(name), pl.coalesce(encoded.list.len().cast(pl.Int64), count).alias(count)
        )
    rows = rows.with_columns(
        pl.when(pl.col("cached_tokens") <= pl.col("input_tokens")).then("cached_tokens").alias("cached_tokens")
    )
    notes = trace.notes
    recorded = trace.rows["input_tokens"]
    if recorded.drop_nulls().sum():
        counted = rows["input_tokens"].filter(recorded.is_not_null())
        change = int(counted.sum()) / int(recorded.sum()) - 1
        notes = (*notes, f"prompt lengths are counted with the model's tokenizer: {change:+.1%} against those recorded")
    return replace(trace, rows=rows, notes=notes).without(
        (pl.col("output_tokens") == 0) | (pl.col("input_tokens") == 0), "texts that make no token"
    )


def _begun(ids: list[int], begin: list[int]) -> list[int]:
    return ids if ids[: len(begin)] == begin else begin + ids


def _encode(texts: pl.Series, encode: Encode) -> list[list[int] | None]:
    ids: list[list[int] | None] = [None] * len(texts)
    places = texts.is_not_null().arg_true().to_list()
    for start in range(0, len(places), _TEXTS_AT_ONCE):
        part = places[start : start + _TEXTS_AT_ONCE]
        for place, encoded in zip(part, encode([texts[place] for place in part]), strict=True):
            ids[place] = list(encoded)
    return ids


def with_token_ids(trace: Trace, *, vocab_size: int, seed: int, reserved: Collection[int] = ()) -> Trace:
    """`prompt_ids` for every request, from ``[0, vocab_size)`` without `reserved`; recorded ids stay untouched.

    A row with block hashes gets for each block the ids that belong to its hash, so that prefixes repeat exactly as
    recorded (the last block cut to the prompt's length). A row with a length only gets ids of its own. Equal seeds
    give equal ids, in any window of the trace. Uniform draws by numpy's default generator (PCG64), seeded with
    ``[seed, kind, row or hash]``. Memory: 8 bytes a prompt token, so call it on the window that is run.

    Raises:
        TraceError: the trace holds text that no tokenizer has encoded.
        ValueError: nothing is left of the vocabulary.
    """
    alphabet = np.setdiff1d(np.arange(vocab_size), np.fromiter(reserved, dtype=np.int64, count=len(reserved)))
    if not len(alphabet):
        raise ValueError(f"no token ids left of {vocab_size} after {len(reserved)} reserved ones")
    if trace.rows.filter(pl.col("prompt_text").is_not_null() & pl.col("prompt_ids").is_null()).height:
        raise TraceError(
            "the prompts are text: a model with a tokenizer is needed, or a trace with lengths", where=trace.source
        )
    if not trace.rows["prompt_ids"].null_count():
        return trace
    maker = _Maker(alphabet, seed, trace.block_size)
    filled = [
        recorded if recorded is not None else pl.Series(maker.prompt(row, tokens, hashes), dtype=pl.Int64)
        for row, tokens, hashes, recorded in zip(
            *(trace.rows[name] for name in ("row", "input_tokens", "prefix_blocks", "prompt_ids")), strict=True
        )
    ]
    rows = trace.rows.with_columns(pl.Series("prompt_ids", filled, dtype=pl.List(pl.Int64)))
    notes = trace.notes
    if maker.collisions:
        notes = (
            *notes,
            f"at a block of {trace.block_size} tokens and {len(alphabet):,} token ids, {maker.collisions:,} of"
            f" {len(maker.blocks):,} block hashes have the ids of another: prompts share more than recorded",
        )
    return replace(trace, rows=rows, seeded_ids=True, notes=notes)


class _Maker:
    """Draws token ids; remembers those of each block hash."""

    def __init__(self, alphabet: npt.NDArray[np.int64], seed: int, block_size: int | None) -> None:
        self._alphabet = alphabet
        self._seed = seed
        self._block_size = block_size
        self.blocks: dict[int, npt.NDArray[np.int64]] = {}

    @property
    def collisions(self) -> int:
        return len(self.blocks) - len({ids.tobytes() for ids in self.blocks.values()})

    def prompt(self, row: int, tokens: int, hashes: pl.Series | None) -> npt.NDArray[np.int64]:
        if hashes is None or self._block_size is None:
            return self._draw(_ROW, row, tokens)
        parts = [self._block(int(key), self._block_size) for key in hashes.to_list()]
        covered = len(parts) * self._block_size
        if covered < tokens:  # sources that give no id to a partly filled last block
            parts.append(self._draw(_ROW, row, tokens - covered))
        return np.concatenate(parts)[:tokens] if parts else np.empty(0, dtype=np.int64)

    def _block(self, key: int, size: int) -> npt.NDArray[np.int64]:
        if key not in self.blocks:
            self.blocks[key] = self._draw(_BLOCK, key, size)
        return self.blocks[key]

    def _draw(self, kind: int, key: int, count: int) -> npt.NDArray[np.int64]:
        generator = np.random.default_rng([self._seed, kind, key])
        return self._alphabet[generator.integers(0, len(self._alphabet), count)]


def fit_context(trace: Trace, context_length: int) -> Trace:
    """The requests whose prompt and output fit in `context_length` tokens; the others are counted in `left_out`.

    Raises:
        TraceError: none fits.
    """
    needed = pl.col("input_tokens") + pl.col("output_tokens").fill_null(0)
    kept = trace.without(needed > context_length, f"prompt and output beyond the context of {context_length:,} tokens")
    if not len(kept):
        shortest = int(trace.rows.select(needed.min()).item())
        raise TraceError(
            f"no request fits the model's context of {context_length:,} tokens (the shortest needs {shortest:,});"
            " choose a model with a longer context, or shorten a trace of lengths with --length-scale",
            where=trace.source,
        )
    return kept

"""A trace as Mooncake's file: milliseconds, lengths, and one id for each block of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces import blocks as block_sizes
from inferdoc.traces.chains import Ints, Words, as_lists, chain, known_blocks
from inferdoc.traces.files import trace_file, write_lines
from inferdoc.traces.formats.mooncake import BLOCK_SIZE
from inferdoc.traces.trace import Trace

_NOT_KEPT = {
    "cached_tokens": "cached tokens",
    "prompt_text": "texts of prompts",
    "output_text": "texts of answers",
    "prompt_ids": "token ids of prompts",
    "output_ids": "token ids of answers",
    "turn": "numbers of turns (their order stays)",
    "model": "models",
    "ttft_s": "times to first token",
    "e2e_s": "end-to-end times",
    "queue_s": "queueing times",
    "itl_s": "times between tokens",
    "segment": "the segments of a clock that starts again (times go on)",
    "components": "components of prompts",
}
_ROWS_TO_TELL_A_SIZE = 10


@dataclass(frozen=True)
class Mooncake:
    """Rows of a Mooncake file, its block size, what is lost on the way, and what a reader should know."""

    rows: pl.DataFrame
    block_size: int | None
    lost: list[str]
    notes: list[str]


def write_mooncake(trace: Trace, target: Path, block_size: int | None = None) -> Mooncake:
    """Write `trace` as Mooncake's file.

    Raises:
        TraceError: as `mooncake_rows`.
        InputError: the file cannot be written.
    """
    made = mooncake_rows(trace, block_size)
    with trace_file(target) as file:
        write_lines(made.rows, file)
    return made


def mooncake_rows(trace: Trace, block_size: int | None = None) -> Mooncake:
    """`trace` in Mooncake's fields. Blocks are those recorded, or of 512 tokens where there are token ids.

    Args:
        block_size: another block, in tokens; of recorded blocks a multiple.

    Raises:
        TraceError: lengths that are not known, clocks that have nothing to do with each other, or a block size that
            cannot be had or that a reader of the file could not tell.
    """
    rows = trace.rows
    for name in ("input_tokens", "output_tokens"):
        if rows[name].null_count():
            raise TraceError(
                f"a Mooncake file needs all lengths: {rows[name].null_count():,} of {len(rows):,} requests have no"
                f" {name}; count texts with --model, or convert --to jsonl",
                where=trace.source,
            )
    if trace.independent_clocks:
        raise TraceError(
            "has parts with clocks of their own, and a Mooncake file has one clock: convert one part, or --to jsonl",
            where=trace.source,
        )
    lost = [text for name, text in _NOT_KEPT.items() if trace.has(name)]
    notes = []
    columns = []
    if trace.has("arrival_s"):
        stamps = _milliseconds(rows["arrival_s"])
        if stamps.dtype != pl.Int64:
            notes.append("times have fractions of a millisecond, which some readers of Mooncake files cut off")
        columns.append(stamps)
    columns += [rows["input_tokens"].rename("input_length"), rows["output_tokens"].rename("output_length")]
    size, ids = _hash_ids(trace, block_size, lost)
    columns += [ids] if ids is not None else []
    if trace.has("session"):
        columns.append(rows["session"].rename("session_id"))
    made = pl.DataFrame(columns)
    if size is not None:
        _check_size(trace, made, size)
        if size != BLOCK_SIZE:
            notes.append(
                f"hash_ids stand for {size} tokens each; readers that assume Mooncake's {BLOCK_SIZE} misread them"
            )
    return Mooncake(made, size, lost, notes)


def _milliseconds(arrival_s: pl.Series) -> pl.Series:
    """Whole numbers where all are whole, else with up to six decimals."""
    stamps = (arrival_s * 1000).round(6).rename("timestamp")
    return stamps.cast(pl.Int64) if (stamps % 1 == 0).all() else stamps


def _hash_ids(trace: Trace, asked: int | None, lost: list[str]) -> tuple[int | None, pl.Series | None]:
    recorded = trace.block_size if trace.content == "block hashes" else None
    size = asked or recorded or BLOCK_SIZE
    if recorded is not None and size % recorded:
        raise TraceError(f"--block-size {size} is no multiple of the recorded blocks of {recorded}", where=trace.source)
    if trace.content == "text" and not trace.has("prompt_ids"):
        lost.append("what prompts share: blocks of tokens need the model's tokenizer (--model)")
        return None, None
    found = known_blocks(trace, size)
    if found is None:
        return None, None
    if recorded == size:
        ids, count = _recorded(trace.rows["prefix_blocks"], found.count)
    else:
        joined = size // found.block_size
        chains = chain(found)
        count = chains.count // joined
        rows = np.repeat(np.arange(len(count)), count)
        depth = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        ids = chains.numbers[chains.first[rows] + (depth + 1) * joined - 1].astype(np.uint64)
    return size, _with_last(ids, count, found.tokens, size, trace)


def _recorded(lists: pl.Series, full: Ints) -> tuple[Words, Ints]:
    """The recorded ids of the full blocks."""
    heads = pl.DataFrame({"ids": lists, "count": full}).select(pl.col("ids").list.head(pl.col("count")))["ids"]
    kept = heads.explode(keep_nulls=False, empty_as_null=False)
    return kept.to_numpy(), full


def _with_last(ids: Words, count: Ints, tokens: Ints, size: int, trace: Trace) -> pl.Series:
    """An id for the last, partly filled block of each prompt: that recorded, else one that nothing else has."""
    needed = -(-tokens // size)
    rows = np.flatnonzero(needed > count)
    given = _last_recorded(trace, size, rows, count)
    own = _unused(ids, given, len(rows))
    last = np.where(given.known, given.ids, own)
    starts = np.cumsum(needed) - needed
    every = np.empty(int(needed.sum()), dtype=np.uint64)
    at = np.repeat(starts, count) + np.arange(len(ids)) - np.repeat(np.cumsum(count) - count, count)
    every[at] = ids
    every[starts[rows] + count[rows]] = last
    return as_lists(every, needed).rename("hash_ids")


@dataclass(frozen=True)
class _Last:
    ids: Words
    known: npt.NDArray[np.bool_]


def _last_recorded(trace: Trace, size: int, rows: Ints, count: Ints) -> _Last:
    if trace.block_size != size or trace.content != "block hashes":
        return _Last(np.zeros(len(rows), dtype=np.uint64), np.zeros(len(rows), dtype=bool))
    lists = trace.rows["prefix_blocks"].gather(rows)
    more = (lists.list.len().cast(pl.Int64) > pl.Series(count[rows])).to_numpy()
    last = lists.list.get(-1, null_on_oob=True).fill_null(0).to_numpy()
    return _Last(last, more)


def _unused(ids: Words, given: _Last, wanted: int) -> Words:
    """Numbers that no block has."""
    taken = np.unique(np.concatenate((ids, given.ids)))
    largest = int(taken[-1]) if len(taken) else -1
    if largest + wanted < 2**64:
        return np.arange(wanted, dtype=np.uint64) + np.uint64(largest + 1)
    free: Words = np.setdiff1d(np.arange(len(taken) + wanted, dtype=np.uint64), taken)[:wanted]
    return free


def _check_size(trace: Trace, made: pl.DataFrame, size: int) -> None:
    """Raises:
    TraceError: a reader would take the blocks for those of 512 tokens, since the file does not name their size.
    """
    if size == BLOCK_SIZE:
        return
    rows = made.select(pl.col("hash_ids").alias("prefix_blocks"), pl.col("input_length").alias("input_tokens"))
    inferred = block_sizes.infer(rows.head(1000), partial_last=True)
    if inferred != size or len(rows) < _ROWS_TO_TELL_A_SIZE:
        raise TraceError(
            f"a Mooncake file does not name its block size, and from these {len(rows):,} requests nobody could tell"
            f" blocks of {size} tokens from others: give --block-size {BLOCK_SIZE}, or convert --to jsonl",
            where=trace.source,
        )

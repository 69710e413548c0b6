"""The blocks of every prompt of a trace as one flat array of 64-bit ids, whatever the trace records of its prompts.

Recorded ids are taken as they are, and compared only behind equal leading blocks, so chained ids and ids of contents
need no distinction. Blocks of token ids or of text are hashed to 64 bits: among ``n`` different blocks, any two get the
same id with a probability of about ``n**2 / 2**65`` (3e-6 for ten million).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces.text_blocks import TextBlocks
from inferdoc.traces.trace import Trace

Ints = npt.NDArray[np.int64]
_BLOCKS_AT_ONCE = 1 << 18
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINISH = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(frozen=True)
class PromptBlocks:
    """The full blocks of the prompts, one prompt after the other. Request ``r`` has `count[r]` from `first[r]` on."""

    block_size: int
    """Tokens in a block."""
    ids: npt.NDArray[np.uint64]
    first: Ints
    count: Ints
    tokens: Ints
    """Length of each prompt, tokens."""
    estimated: bool = False
    """True where the tokens of some prompts are not counted but follow from the bytes of the texts."""
    of_bytes: bool = False
    """True where blocks are pieces of text, so that what prompts share follows from bytes."""
    notes: tuple[str, ...] = ()


def recorded_multiple(trace: Trace, asked: int) -> tuple[int, int, str | None]:
    """The block to use for `asked` tokens, the recorded blocks that make it, and a remark where it is another one.

    Raises:
        TraceError: the recorded block size is not known, or neither block size divides the other.
    """
    recorded = trace.block_size
    if recorded is None:
        raise TraceError("the block size of the recorded hashes is not known", where=trace.source)
    if asked % recorded == 0:
        return asked, asked // recorded, None
    if recorded % asked == 0:
        note = f"the trace records blocks of {recorded} tokens: what is shared in blocks of {asked} is unknown"
        return recorded, 1, note
    raise TraceError(
        f"blocks of {asked} tokens and the trace's blocks of {recorded} cannot be converted: neither divides the other;"
        f" choose a multiple or a divisor of {recorded}",
        where=trace.source,
    )


def unknown_prompts(trace: Trace) -> str | None:
    """Why the blocks of the prompts are not known, or ``None`` where `recorded_blocks` or `token_blocks` has them."""
    if trace.content == "block hashes":
        return "some prompts have no block hashes" if trace.rows["prefix_blocks"].null_count() else None
    if trace.has("prompt_ids") and not trace.seeded_ids:
        return "some prompts have no token ids" if trace.rows["prompt_ids"].null_count() else None
    if trace.content == "text":
        return "the prompts are text that no tokenizer has encoded"
    return "the trace has no prefixes"


def recorded_blocks(trace: Trace) -> PromptBlocks:
    """The blocks that the source recorded, at its own block size; a partly filled last block is not among them."""
    size = trace.block_size
    assert size is not None
    ids, first, recorded = _flat(trace.rows["prefix_blocks"])
    tokens = trace.rows["input_tokens"].to_numpy().astype(np.int64)
    return PromptBlocks(size, ids.view(np.uint64), first, np.minimum(recorded, tokens // size), tokens)


def token_blocks(trace: Trace, block_size: int) -> PromptBlocks:
    """Blocks of `block_size` token ids."""
    flat, first, length = _flat(trace.rows["prompt_ids"])
    tokens = trace.rows["input_tokens"].to_numpy().astype(np.int64)
    count = np.minimum(length, tokens) // block_size
    ids = _hashed(flat, first, count, block_size)
    return PromptBlocks(block_size, ids, np.cumsum(count) - count, count, tokens)


def text_blocks(trace: Trace, block_size: int) -> PromptBlocks:
    """Blocks of bytes of text in place of tokens, scaled to the recorded counts: see `inferdoc.traces.text_blocks`."""
    made = TextBlocks(trace, block_size)
    return PromptBlocks(
        block_size=block_size,
        ids=made.ids,
        first=np.cumsum(made.count) - made.count,
        count=made.count,
        tokens=made.tokens,
        estimated=made.estimated,
        of_bytes=True,
        notes=made.notes(),
    )


def numbered(names: pl.Series, *, unnamed_alone: bool = False) -> Ints:
    """Equal names as equal numbers, by first appearance from 0; rows without a name are alike, or each alone."""
    rows = pl.DataFrame({"name": names}).with_row_index("index")
    first = rows.select(pl.col("index").min().over("name").alias("first"), "index", "name").select(
        pl.when(pl.col("name").is_null()).then("index").otherwise("first") if unnamed_alone else pl.col("first")
    )
    return np.unique(first.to_series().to_numpy(), return_inverse=True)[1].astype(np.int64)


def _flat(lists: pl.Series) -> tuple[npt.NDArray[np.int64], Ints, Ints]:
    """The values of a column of lists, and where each list begins and how long it is."""
    length = lists.list.len().to_numpy().astype(np.int64)
    if not length.all():
        lists = lists.filter(pl.Series(length > 0))
    values = lists.explode() if len(lists) else pl.Series([], dtype=pl.Int64)
    return values.to_numpy(), np.cumsum(length) - length, length


def _hashed(values: npt.NDArray[np.integer], first: Ints, count: Ints, width: int) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each group of `width` values; every step can be undone, so one changed value always shows."""
    if width == 1:
        return _gather(values, first, count, 1, lambda at: values[at].astype(np.int64).view(np.uint64))

    def of_group(at: Ints) -> npt.NDArray[np.uint64]:
        state = np.full(len(at), _MULTIPLIER, dtype=np.uint64)
        for step in range(width):
            state ^= values[at + step].astype(np.int64).view(np.uint64)
            state *= _MULTIPLIER
            state ^= state >> np.uint64(32)
        state *= _FINISH
        return state ^ (state >> np.uint64(31))

    return _gather(values, first, count, width, of_group)


def _gather(
    values: npt.NDArray[np.integer],
    first: Ints,
    count: Ints,
    width: int,
    of_group: Callable[[Ints], npt.NDArray[np.uint64]],
) -> npt.NDArray[np.uint64]:
    """`of_group` of the positions where the groups begin, a bounded number of them at a time."""
    total = int(count.sum())
    ids = np.empty(total, dtype=np.uint64)
    ends = np.cumsum(count)
    for start in range(0, total, _BLOCKS_AT_ONCE):
        group = np.arange(start, min(start + _BLOCKS_AT_ONCE, total))
        row = np.searchsorted(ends, group, side="right")
        ids[start : start + len(group)] = of_group(first[row] + (group - (ends[row] - count[row])) * width)
    return ids

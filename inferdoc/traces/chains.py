"""Blocks of prompts as chains: equal numbers stand for equal whole prefixes, whatever a trace records of prompts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from inferdoc.traces.prompt_blocks import (
    PromptBlocks,
    recorded_blocks,
    text_blocks,
    token_blocks,
    unknown_prompts,
)
from inferdoc.traces.trace import Trace

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Chains:
    """Numbers of chained blocks. Request ``r`` has `count[r]` from `first[r]` on; a parent has a lower number."""

    numbers: Ints
    """For each block of each prompt, prompt after prompt."""
    first: Ints
    count: Ints
    parent: Ints
    """For each chain the one that it extends, -1 for first blocks."""
    content: Words
    """For each chain the id of its last block."""

    def __len__(self) -> int:
        return len(self.parent)


def known_blocks(trace: Trace, block_size: int) -> PromptBlocks | None:
    """Full blocks as recorded, else of `block_size` tokens, else of as many bytes of text; ``None`` without prompts."""
    if trace.content == "block hashes":
        return recorded_blocks(trace) if unknown_prompts(trace) is None else None
    if unknown_prompts(trace) is None:
        return token_blocks(trace, block_size)
    return text_blocks(trace, block_size) if trace.content == "text" else None


def chain(blocks: PromptBlocks) -> Chains:
    """Number the chains of `blocks`, shorter ones first. Time grows with the blocks, and a little with the longest."""
    count = blocks.count
    starts = np.cumsum(count) - count
    numbers = np.empty(int(count.sum()), dtype=np.int64)
    parents, contents = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.uint64)]
    behind = np.full(len(count), -1, dtype=np.int64)
    longest_first = np.argsort(-count, kind="stable")
    descending = -count[longest_first]
    made = 0
    for depth in range(int(count.max(initial=0))):
        active = longest_first[: int(np.searchsorted(descending, -depth, side="left"))]
        content, before = blocks.ids[blocks.first[active] + depth], behind[active]
        order = np.lexsort((content, before))
        content, before = content[order], before[order]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (content[1:] != content[:-1]) | (before[1:] != before[:-1])
        given = made + np.cumsum(new) - 1
        parents.append(before[new])
        contents.append(content[new])
        active = active[order]
        numbers[starts[active] + depth] = given
        behind[active] = given
        made += int(new.sum())
    return Chains(numbers, starts, count, np.concatenate(parents), np.concatenate(contents))


def keyed(chains: Chains, key: bytes) -> Words:
    """A 64-bit keyed hash of each chain: BLAKE2b over the parent's whole digest and the last block's id."""
    digests: list[bytes] = []
    root = bytes(16)
    for parent, content in zip(chains.parent.tolist(), chains.content.tolist(), strict=True):
        before = digests[parent] if parent >= 0 else root
        digests.append(hashlib.blake2b(before + content.to_bytes(8, "little"), key=key, digest_size=16).digest())
    return np.frombuffer(b"".join(digests), dtype="<u8")[::2].astype(np.uint64)


def as_lists(values: Words, count: Ints) -> pl.Series:
    """Consecutive values as one list for each prompt."""
    offsets = np.concatenate(([0], np.cumsum(count)))
    rows = np.repeat(np.arange(len(count)), count)
    frame = pl.DataFrame({"row": rows, "value": values}, schema={"row": pl.Int64, "value": pl.UInt64})
    grouped = frame.group_by("row", maintain_order=True).agg("value")
    every = pl.DataFrame({"row": np.arange(len(offsets) - 1)}, schema={"row": pl.Int64})
    joined = every.join(grouped, on="row", how="left", maintain_order="left")
    return joined["value"].fill_null([]).rename("prefix_blocks")

"""What an ideal prefix cache would serve: nothing is ever evicted, and every earlier prompt is there.

Only whole blocks are shared. Of a prompt of ``n`` tokens at most ``(n - 1) // block_size`` blocks are served, since an
engine computes at least the last token. Answers are not counted as cached: they count when they come back in a later
prompt. The rate is the ratio of the sums, cached prompt tokens over prompt tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from inferdoc.errors import TraceError
from inferdoc.traces.trace import Trace


@dataclass(frozen=True)
class IdealHits:
    """Reuse between the prompts of a trace, in tokens. Shares and rates are ``None`` with a `reason`, never 0."""

    block_size: int
    """The block that was used; coarser than asked for where the trace records coarser ones (`note`)."""
    prompt_tokens: int | None
    hit_tokens: int | None
    """Prompt tokens that an earlier prompt had already brought."""
    hit_rate: float | None
    compulsory_tokens: int | None
    """Prompt tokens seen for the first time, or in blocks that cannot be shared."""
    shared_request_share: float | None
    """Share of the requests that find at least one block of an earlier request."""
    median_shared_tokens: float | None
    """Median over the requests of the tokens that they find, 0 for those that find nothing."""
    reason: str | None = None
    note: str | None = None

    @property
    def compulsory_share(self) -> float | None:
        """Share of the prompt tokens that no cache, however large, could have held."""
        if self.prompt_tokens is None or self.compulsory_tokens is None:
            return None
        return self.compulsory_tokens / self.prompt_tokens


def ideal_hits(trace: Trace, block_size: int, *, per_model: bool = False) -> IdealHits:
    """Reuse at a block of `block_size` tokens; `per_model` keeps the prompts of different models (adapters) apart.

    Recorded block hashes are joined where their block divides `block_size`. Where `block_size` divides theirs, sharing
    below their block is unknown, so their own block is used and `note` says so.

    Raises:
        TraceError: neither block size divides the other.
        ValueError: a block below one token.
    """
    source = _prompt_blocks(trace, block_size)
    if isinstance(source, str):
        return _unknown(block_size, source)
    prompts, block_size, note = source
    lengths = trace.rows["input_tokens"].to_numpy()
    roots = trace.rows["model"].to_list() if per_model else [None] * len(trace)
    hits = np.fromiter(_hits(prompts, lengths.tolist(), roots, block_size), dtype=np.int64, count=len(trace))
    total, hit = int(lengths.sum()), int(hits.sum())
    return IdealHits(
        block_size=block_size,
        prompt_tokens=total,
        hit_tokens=hit,
        hit_rate=hit / total,
        compulsory_tokens=total - hit,
        shared_request_share=float((hits > 0).mean()),
        median_shared_tokens=float(np.median(hits)),
        note=note,
    )


@dataclass(frozen=True)
class WindowHits:
    """Reuse in a window of a trace that goes on from what came before it."""

    from_history: list[int]
    """Prompt tokens of each request that requests before the window have brought."""
    hit_rate: float | None
    """Share of the window's prompt tokens that any earlier request has brought; ``None`` with a `reason`."""
    reason: str | None = None


def window_hits(trace: Trace, start: int, count: int, block_size: int) -> WindowHits:
    """Like `ideal_hits`, for the `count` requests from position `start` on, with everything before them in the cache.

    Raises:
        TraceError: neither block size divides the other.
    """
    upto = replace(trace, rows=trace.rows.head(start + count))
    source = _prompt_blocks(upto, block_size)
    if isinstance(source, str):
        return WindowHits([0] * count, None, source)
    prompts, block_size, _ = source
    blocks = list(prompts)
    lengths = upto.rows["input_tokens"].to_list()
    whole = list(_hits(iter(blocks), lengths, [None] * len(blocks), block_size))[start:]
    before = list(_hits(iter(blocks), lengths, [None] * len(blocks), block_size, learn=start))[start:]
    return WindowHits(before, sum(whole) / sum(lengths[start:]))


def _prompt_blocks(trace: Trace, block_size: int) -> tuple[Iterator[list[Hashable]], int, str | None] | str:
    """Each prompt's blocks, the block size used, and a remark; or why the prompts' identity is not known."""
    if block_size < 1:
        raise ValueError(f"block_size {block_size}")
    if trace.content == "block hashes":
        block_size, joined, note = _usable_block(trace, block_size)
        return _hash_blocks(trace, joined), block_size, note
    if trace.has("prompt_ids") and not trace.seeded_ids:
        if trace.rows["prompt_ids"].null_count():
            return "some prompts have no token ids"
        return _id_blocks(trace, block_size), block_size, None
    if trace.content == "text":
        return "the prompts are text that no tokenizer has encoded"
    return "the trace has no prefixes"


def _unknown(block_size: int, reason: str) -> IdealHits:
    return IdealHits(block_size, None, None, None, None, None, None, reason)


def _hits(
    prompts: Iterator[list[Hashable]],
    lengths: list[int],
    roots: list[str | None],
    block_size: int,
    *,
    learn: int | None = None,
) -> Iterator[int]:
    """Tokens served of each prompt, in order. A block is known by its parent and its content, as in a hash chain.

    Only the first `learn` prompts leave their blocks behind (all of them for ``None``).
    """
    known: dict[tuple[Hashable, Hashable], int] = {}
    for index, (blocks, length, root) in enumerate(zip(prompts, lengths, roots, strict=True)):
        parent: Hashable = root
        found, missed = 0, False
        for block in blocks[: length // block_size]:
            key = (parent, block)
            missed = missed or key not in known
            found += not missed
            if missed and learn is not None and index >= learn:
                break
            parent = known.setdefault(key, len(known))
        yield min(found, (length - 1) // block_size) * block_size


def _usable_block(trace: Trace, asked: int) -> tuple[int, int, str | None]:
    """The block to use, how many recorded blocks make it, and a remark where it is not the one asked for."""
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


def _hash_blocks(trace: Trace, joined: int) -> Iterator[list[Hashable]]:
    for hashes in trace.rows["prefix_blocks"]:
        ids = hashes.to_list()
        yield ids if joined == 1 else [tuple(ids[at : at + joined]) for at in range(0, len(ids), joined)]


def _id_blocks(trace: Trace, block_size: int) -> Iterator[list[Hashable]]:
    for ids in trace.rows["prompt_ids"]:
        raw, width = ids.cast(pl.Int64).to_numpy().tobytes(), 8 * block_size
        yield [raw[at : at + width] for at in range(0, len(raw), width)]

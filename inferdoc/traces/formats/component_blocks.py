"""Prefix blocks of prompts that are recorded as sequences of components with known lengths.

A block's id stands for everything up to and including the component that holds the block's last token:

    components   |--- a: 20 ---|--- b: 30 ---------|-- c: 6 --|   (56 tokens)
    blocks of 16 |--- 0 ---|--- 1 ---|--- 2 ---|               (48 tokens, the rest is no full block)
    known by      a         a b       a b

so that two prompts share exactly the blocks that lie wholly inside their common leading components.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

BLOCK_SIZE = 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Sized = tuple[str, int, int | None]


def prompt_blocks(prompts: Sequence[Sequence[Sized]], totals: Sequence[int | None]) -> pl.Series:
    """Ids (List(UInt64)) of the full blocks of each prompt of `totals` tokens; null where its length is not known.

    What follows the last component of known length (the template, or a component in no table and all after it) counts
    as one piece that stands for the whole prompt.
    """
    links: dict[tuple[bytes, str, int], bytes] = {}
    rows: list[pl.Series | None] = []
    for prompt, total in zip(prompts, totals, strict=True):
        if total is None:
            rows.append(None)
            continue
        ends, chains, chain, end = [], [], b"", 0
        measured = True
        for kind, id, tokens in prompt:
            key = (chain, kind, id)
            if key not in links:
                links[key] = hashlib.blake2b(chain + f"{kind}:{id}".encode(), digest_size=8).digest()
            chain = links[key]
            measured = measured and tokens is not None
            if measured and tokens is not None:
                end += tokens
                ends.append(end)
                chains.append(chain)
        chains.append(hashlib.blake2b(chain + f"end:{total}".encode(), digest_size=8).digest())
        rows.append(pl.Series(_ids(np.array(ends, dtype=np.int64), b"".join(chains), total), dtype=pl.UInt64))
    return pl.Series(rows, dtype=pl.List(pl.UInt64))


def _ids(ends: npt.NDArray[np.int64], chains: bytes, total: int) -> npt.NDArray[np.uint64]:
    """One id for each full block: that of its component's chain, mixed with the block's position.

    `ends`: tokens up to the end of each component; `chains`: 8 bytes for each of them and for the rest.
    """
    position = np.arange(total // BLOCK_SIZE)
    last_token = (position + 1) * BLOCK_SIZE
    component = np.searchsorted(ends, last_token, side="left")
    ids: npt.NDArray[np.uint64] = np.frombuffer(chains, dtype="<u8")[component] + position.astype(np.uint64) * _GOLDEN
    return ids

"""A step's rows as packed arrays: what the model and the attention need, built once a step on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferdoc.engine.scheduler import Batch

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StepInput:
    """One packed row of tokens. T tokens in R rows; all arrays are int64.

        rows      |---- row 0 ----|- row 1 -|--- row 2 ---|
        tokens     t t t t t t t t t t t t t t t t t t t t     query_starts = [0, 8, 13, 20]

    A block table row is padded with block 0; lengths say what is real.
    """

    token_ids: Ints
    """[T] set from the requests' tokens."""
    positions: Ints
    """[T] position of each token in its sequence."""
    slots: Ints
    """[T] where its K/V go: block * block_size + offset."""
    query_starts: Ints
    """[R + 1]"""
    lengths: Ints
    """[R] K/V tokens of each row after this step."""
    block_tables: Ints
    """[R, most blocks]"""
    sampled: Ints
    """[S] index of the last token of each row that samples."""
    block_size: int

    @classmethod
    def from_batch(cls, batch: Batch) -> StepInput:
        rows = batch.rows
        size = batch.block_size
        counts = np.array([row.num_tokens for row in rows])
        starts = np.array([row.start for row in rows])
        lengths = starts + counts
        widths = -(-lengths // size)
        tables = np.zeros((len(rows), widths.max()), dtype=np.int64)
        for index, row in enumerate(rows):
            tables[index, : widths[index]] = row.request.block_ids[: widths[index]]
        ends = np.cumsum(counts)
        query_starts = np.concatenate(([0], ends))
        row_of = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(ends[-1]) - query_starts[row_of] + starts[row_of]
        token_ids = np.fromiter(
            (token for row in rows for token in row.request.tokens[row.start : row.start + row.num_tokens]),
            dtype=np.int64,
            count=int(ends[-1]),
        )
        return cls(
            token_ids=token_ids,
            positions=positions,
            slots=tables[row_of, positions // size] * size + positions % size,
            query_starts=query_starts,
            lengths=lengths,
            block_tables=tables,
            sampled=ends[[row.samples for row in rows]] - 1,
            block_size=size,
        )

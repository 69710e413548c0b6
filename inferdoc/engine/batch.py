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
    """[S] index of the last token of each row that samples, with drafted tokens also of those before it."""
    block_size: int

    @classmethod
    def from_batch(cls, batch: Batch) -> StepInput:
        """Without memory of an earlier step; copies every block table."""
        return BatchArrays().build(batch)


class BatchArrays:
    """Makes each step's `StepInput`, and keeps the block tables from step to step.

    A table grows by one entry in `block_size` steps, so a step of decodes copies next to nothing, however long their
    contexts are. A row is recognised by its request's list of blocks: the KV manager adds to the list while the request
    holds it, and begins a new one when the request is admitted again.
    """

    def __init__(self) -> None:
        self._tables = np.zeros((0, 0), dtype=np.int64)
        self._widths = np.zeros(0, dtype=np.int64)
        """Blocks copied so far, of each row of the step before."""
        self._block_ids: list[list[int]] = []
        """Whose they are."""

    def build(self, batch: Batch) -> StepInput:
        """The arrays of one step. `block_tables` is valid until the next call."""
        rows, size = batch.rows, batch.block_size
        requests = [row.request for row in rows]
        starts, lengths = _array(batch.starts), _array(batch.ends)
        query_starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths - starts, out=query_starts[1:])
        ends = query_starts[1:]
        row_of, positions = np.arange(len(rows)), starts
        token_ids = _array([request.tokens[at] for request, at in zip(requests, batch.starts, strict=True)])
        if ends[-1] > len(rows):
            row_of, positions, token_ids = self._unfold(batch, query_starts, token_ids)
        tables = self._update_tables([request.block_ids for request in requests], -(-lengths // size))
        return StepInput(
            token_ids=token_ids,
            positions=positions,
            slots=tables[row_of, positions // size] * size + positions % size,
            query_starts=query_starts,
            lengths=lengths,
            block_tables=tables,
            sampled=_sampled(batch, ends),
            block_size=size,
        )

    def _unfold(self, batch: Batch, query_starts: Ints, first_tokens: Ints) -> tuple[Ints, Ints, Ints]:
        """Row, position and id of each token, where some rows have more than one."""
        firsts, counts = query_starts[:-1], np.diff(query_starts)
        row_of = np.repeat(np.arange(len(counts)), counts)
        positions = np.arange(query_starts[-1]) + (np.array(batch.starts) - firsts)[row_of]
        token_ids = np.empty(query_starts[-1], dtype=np.int64)
        token_ids[firsts] = first_tokens
        for row in np.flatnonzero(counts > 1).tolist():
            draft = batch.rows[row].draft
            if draft is not None:
                token_ids[firsts[row] + 1 : query_starts[row + 1]] = draft.tokens
                continue
            tokens = np.frombuffer(batch.rows[row].request.tokens, dtype=np.int32)
            token_ids[firsts[row] : query_starts[row + 1]] = tokens[batch.starts[row] : batch.ends[row]]
        return row_of, positions, token_ids

    def _update_tables(self, block_ids: list[list[int]], widths: Ints) -> Ints:
        """Bring the tables up to date for these rows, each with its first `widths` blocks, and zeros after them."""
        most = int(widths.max())
        if len(block_ids) > self._tables.shape[0] or most > self._tables.shape[1]:
            self._enlarge(len(block_ids), most)
        if block_ids != self._block_ids:
            self._move_rows(block_ids)
        changed = np.flatnonzero(widths != self._widths)
        changes = zip(changed.tolist(), self._widths[changed].tolist(), widths[changed].tolist(), strict=True)
        for row, had, width in changes:
            blocks = block_ids[row]
            if width == had + 1:  # most often, and faster so
                self._tables[row, had] = blocks[had]
            else:
                self._tables[row, had:width] = blocks[had:width]
                self._tables[row, width:had] = 0
        self._widths = widths
        return self._tables[: len(block_ids), :most]

    def _move_rows(self, block_ids: list[list[int]]) -> None:
        """Requests came, left or changed places: take along the tables that are known, empty the others.

        What lies past a row's width, and in rows that are not in use, is zero before and after.
        """
        known = {id(blocks): row for row, blocks in enumerate(self._block_ids)}
        sources = np.array([known.get(id(blocks), -1) for blocks in block_ids])
        widths = np.append(self._widths, 0)[sources]
        moved = np.flatnonzero(sources != np.arange(len(sources)))
        replaced = self._widths[moved[moved < len(self._widths)]]
        used = max(widths[moved].max(initial=0), replaced.max(initial=0))
        tables = self._tables[sources[moved], :used]
        tables[sources[moved] < 0] = 0
        self._tables[moved, :used] = tables
        self._tables[len(sources) : len(self._widths), : self._widths[len(sources) :].max(initial=0)] = 0
        self._widths = widths
        self._block_ids = block_ids

    def _enlarge(self, rows: int, width: int) -> None:
        """Twice what there was, so that growing contexts do not copy at every block."""
        old = self._tables
        height, most = old.shape
        self._tables = np.zeros((max(rows, height), max(width, 2 * most if width > most else most)), dtype=np.int64)
        self._tables[:height, :most] = old


def _sampled(batch: Batch, ends: Ints) -> Ints:
    """Tokens whose logits are wanted."""
    samples = [row.samples for row in batch.rows]
    if not batch.drafted:
        return (ends if all(samples) else ends[samples]) - 1
    sampling = zip(ends[samples].tolist(), [row for row in batch.rows if row.samples], strict=True)
    return np.concatenate([np.arange(end - 1 - row.drafted, end) for end, row in sampling])


def _array(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)

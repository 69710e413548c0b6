"""Blocks of texts that no tokenizer has encoded: bytes (UTF-8) stand for tokens, as many as each prompt recorded.

A prompt of ``n`` tokens in ``b`` bytes shares ``s / b * n`` tokens with an earlier one whose first ``s`` bytes it has.
Two such prompts may have a different number of bytes a token, so pieces of their texts do not correspond. A prompt
therefore takes the ids of its first whole shared blocks over from the earlier prompt that shares most bytes with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from inferdoc.traces.trace import Trace

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
_BYTES_A_TOKEN = 4
_BYTES_AT_ONCE = 1 << 22
_FIRST_COMPARED = 256
_BASE, _MIX, _FINISH = np.uint64(0xD6E8FEB86659FD93), np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


class TextBlocks:
    """The blocks of a trace's texts: `ids` prompt after prompt, `count` of each, and the prompts' `tokens`.

    Without a recorded count the bytes of a token are those of the rows that have a text and a count, 4 where no row
    has both. A prompt without text shares nothing, and counts as one token where its length is not recorded.
    """

    def __init__(self, trace: Trace, block_size: int) -> None:
        texts = trace.rows["prompt_text"].fill_null("")
        recorded = trace.rows["input_tokens"].fill_null(0).to_numpy().astype(np.int64)
        length = texts.str.len_bytes().to_numpy().astype(np.int64)
        both = (length > 0) & (recorded > 0)
        self._width, self._basis = _BYTES_A_TOKEN, "assumed"
        if both.any():
            self._width, self._basis = max(1, round(int(length[both].sum()) / int(recorded[both].sum()))), "as recorded"
        self.tokens = np.where(recorded > 0, recorded, np.maximum(-(-length // self._width), 1))
        self.estimated = bool((recorded <= 0).any())
        # Bytes and tokens whose quotient is the bytes of a token.
        self._bytes = np.where(both, length, self._width)
        self._tokens = np.where(both, recorded, 1)
        self.count = self.tokens // block_size
        self._without = int((length == 0).sum())
        self._uncounted = int(((length > 0) & ~both).sum())
        self.ids = self._own(texts, length, block_size)
        self._take_over(texts, block_size)

    def notes(self) -> tuple[str, ...]:
        scaled = "shared bytes are scaled to the recorded tokens of each prompt"
        each = f"{self._width} for a token ({self._basis})"
        how = scaled if not self._uncounted else each if self._basis == "assumed" else f"{scaled}, else {each}"
        found = [f"no tokenizer has encoded the texts: prompts are compared in bytes, {how}"]
        if self._without:
            unknown = " and counts as one token where its length is not recorded" if self.estimated else ""
            found.append(f"{self._without:,} prompts have no text: such a prompt shares nothing{unknown}")
        return tuple(found)

    def _own(self, texts: pl.Series, length: Ints, block_size: int) -> Words:
        """An id for each block by its bytes; by its place alone in a prompt without text."""
        parts, row = [np.empty(0, dtype=np.uint64)], 0
        for end in _batches(length):
            data = np.frombuffer("".join(texts[row:end]).encode(), dtype=np.uint8)
            count, size = self.count[row:end], length[row:end]
            owner = np.repeat(np.arange(end - row), count)
            depth = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
            cuts = [
                np.minimum(
                    -(-at * block_size * self._bytes[row:end][owner] // self._tokens[row:end][owner]), size[owner]
                )
                for at in (depth, depth + 1)
            ]
            begin = (np.cumsum(size) - size)[owner]
            alone = _mixed((owner + row).astype(np.uint64) << np.uint64(32) | depth.astype(np.uint64))
            parts.append(np.where(size[owner] > 0, _hashes(data, begin + cuts[0], begin + cuts[1]), alone))
            row = end
        return np.concatenate(parts)

    def _take_over(self, texts: pl.Series, block_size: int) -> None:
        first = np.cumsum(self.count) - self.count
        for row, (partner, shared) in enumerate(_shared_bytes(texts.to_list())):
            whole = shared * int(self._tokens[row]) // (int(self._bytes[row]) * block_size)
            taken = min(whole, int(self.count[row]), int(self.count[partner]))
            if taken > 0:
                source = self.ids[first[partner] : first[partner] + taken]
                self.ids[first[row] : first[row] + taken] = source


def _batches(length: Ints) -> Iterator[int]:
    """Ends of consecutive rows with a bounded number of bytes (one row at least)."""
    ends, row = np.cumsum(length), 0
    while row < len(length):
        before = int(ends[row - 1]) if row else 0
        row = max(row + 1, int(np.searchsorted(ends, before + _BYTES_AT_ONCE, side="right")))
        yield row


def _hashes(data: npt.NDArray[np.uint8], start: Ints, end: Ints) -> Words:
    """A 64-bit hash of each stretch of `data`: its bytes as digits of a number in an odd base, modulo 2**64."""
    digits = _mixed(data.astype(np.uint64) + np.uint64(1))
    powers = np.multiply.accumulate(np.full(len(data) + 1, _BASE))
    inverse = np.multiply.accumulate(np.full(len(data) + 1, np.uint64(pow(int(_BASE), -1, 2**64))))
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(digits * powers[:-1], dtype=np.uint64)))
    return _mixed((sums[end] - sums[start]) * inverse[start] + (end - start).astype(np.uint64))


def _mixed(values: Words) -> Words:
    values = values * _MIX
    values ^= values >> np.uint64(32)
    values *= _FINISH
    return values ^ (values >> np.uint64(31))


def _shared_bytes(texts: Sequence[str]) -> list[tuple[int, int]]:
    """For each text the earlier one that begins with most of the same bytes (the earliest of two), and how many.

    In the order of the texts, what two share is the least of what neighbours between them share. So it is one of the
    two texts nearest in that order that came earlier.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)
    found = [(0, 0)] * len(texts)
    links = [0, *(_common(texts[one], texts[other]) for one, other in pairwise(order))]
    for rows, shared_before in ((order, links), (order[::-1], [0, *links[:0:-1]])):
        open_: list[tuple[int, int]] = []
        for row, shared in zip(rows, shared_before, strict=True):
            least = shared
            while open_ and open_[-1][0] > row:
                least = min(least, open_.pop()[1])
            if open_:
                partner = open_[-1][0]
                if (least, -partner) > (found[row][1], -found[row][0]) and least:
                    found[row] = (partner, least)
            open_.append((row, least))
    return found


def _common(one: str, other: str) -> int:
    """Bytes of UTF-8 in which both texts agree from their starts."""
    start, step = 0, _FIRST_COMPARED
    while start < min(len(one), len(other)) and one[start : start + step] == other[start : start + step]:
        start, step = start + step, 2 * step
    start = min(start, len(one), len(other))
    a, b = (np.frombuffer(text[start : start + step].encode(), dtype=np.uint8) for text in (one, other))
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    return len(one[:start].encode()) + (int(differs.argmax()) if differs.any() else size)

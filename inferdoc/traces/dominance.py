"""Weighted sums over earlier, not larger values: the counting behind LRU stack distances, in whole-array steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_FAN = 64
_CHUNK = 32
_COLUMNS = 4096
_INDEX = np.uint64(0xFFFFFFFF)


def earlier_not_above(value: Ints, weight: Ints) -> Ints:
    """For each ``i``: the sum of ``weight[j]`` over ``j < i`` with ``value[j] <= value[i]``.

    Values are at least 0 and below ``2**32 - 1``. The positions are cut into blocks of 64, those are joined 64 at a
    time, and so on up to all of them. Pairs within a block of 64 are compared one by one. Where blocks are joined, the
    elements of the joined block are sorted by value; what an element gains are the weights before it in that order that
    come from earlier blocks: a running histogram over the blocks, kept every 32 elements, and a comparison one by one
    within those 32. Time grows as ``n`` times the number of levels, 4 for ten million.
    """
    length = len(value)
    sizes = [_FAN]
    while sizes[-1] < length:
        sizes.append(sizes[-1] * _FAN)
    below_top = sizes[-2] if len(sizes) > 1 else sizes[0]
    padded = -(-length // below_top) * below_top
    if length == 0:
        return np.zeros(0, dtype=np.int64)
    sizes[-1] = min(sizes[-1], padded)
    values = np.full(padded, np.iinfo(np.uint32).max, dtype=np.int64)
    values[:length] = value
    weights = np.zeros(padded, dtype=np.int64)
    weights[:length] = weight
    total = _within(values, weights, _FAN, strictly=False)
    by_value = (values.astype(np.uint64) << np.uint64(32)) | np.arange(padded, dtype=np.uint64)
    for part, whole in pairwise(sizes):
        by_value.reshape(-1, whole).sort(axis=1)
        at = (by_value & _INDEX).astype(np.int64)
        total[at] += _from_earlier_parts(at // part % _FAN, weights[at], whole // part, whole)
    return total[:length]


def _from_earlier_parts(part: Ints, weight: Ints, parts: int, whole: int) -> Ints:
    """For each element, the weights before it in its stretch of `whole` elements that belong to a lower part."""
    chunks = len(part) // _CHUNK
    chunk = np.repeat(np.arange(chunks), _CHUNK)
    # Sums below 2**53 are exact as the floats that bincount gives.
    sums = np.bincount(part * chunks + chunk, weights=weight, minlength=parts * chunks).astype(np.int64)
    sums = sums.reshape(parts, -1, whole // _CHUNK)
    before = np.cumsum(sums, axis=2) - sums
    lower = np.zeros_like(before)
    np.cumsum(before[:-1], axis=0, out=lower[1:])
    from_chunks_before: Ints = lower.reshape(-1)[part * chunks + chunk]
    return from_chunks_before + _within(part, weight, _CHUNK, strictly=True)


def _within(value: Ints, weight: Ints, size: int, *, strictly: bool) -> Ints:
    """For each element, the weights before it in its stretch of `size` elements whose value is lower (or equal)."""
    compare = np.less if strictly else np.less_equal
    # Stretches side by side: each step then works on long rows, a bounded number of stretches at a time.
    values = value.reshape(-1, size).T.astype(np.uint32)
    weights = np.ascontiguousarray(weight.reshape(-1, size).T)
    sums = np.zeros_like(weights)
    for start in range(0, values.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        some, theirs, gained = np.ascontiguousarray(values[:, columns]), weights[:, columns], sums[:, columns]
        for row in range(1, size):
            gained[row] = (theirs[:row] * compare(some[:row], some[row])).sum(axis=0)
    return np.ascontiguousarray(sums.T).reshape(-1)

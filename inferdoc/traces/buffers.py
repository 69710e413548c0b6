"""A column's values as bytes, the same on every machine and however the column is held in memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import polars as pl

_ROWS_AT_ONCE = 1 << 20


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def feed(digest: Digest, frame: pl.DataFrame) -> None:
    """Which rows of the one column are null, and the values of the others: numbers little-endian, texts and lists with
    their lengths."""
    for part in frame.iter_slices(_ROWS_AT_ONCE):
        _feed(digest, part.to_series())


def _feed(digest: Digest, column: pl.Series) -> None:
    digest.update(np.packbits(column.is_null().to_numpy()).tobytes() if column.null_count() else b"-")
    values = column.drop_nulls()
    if isinstance(column.dtype, pl.List):
        digest.update(values.list.len().cast(pl.UInt32).to_numpy().astype("<u4").tobytes())
        _feed(digest, values.explode(keep_nulls=False, empty_as_null=False))
    elif isinstance(column.dtype, pl.Struct):
        for name in values.struct.fields:
            digest.update(name.encode())
            _feed(digest, values.struct.field(name))
    elif column.dtype == pl.String:
        digest.update(values.str.len_bytes().to_numpy().astype("<u4").tobytes())
        digest.update("".join(values).encode())
    else:
        numbers = values.to_numpy()
        digest.update(np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<")).data.tobytes())

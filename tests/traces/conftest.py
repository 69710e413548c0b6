"""Small traces written for a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from inferdoc.traces import SCHEMA, Trace


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file and give its path."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def jsonl(write: Callable[[str, str | bytes], Path]) -> Callable[[Iterable[Any]], Path]:
    """Write objects one a line and give the path."""
    return lambda rows: write("trace.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="session")
def trace_of() -> Callable[..., Trace]:
    """A trace of the given columns, the others null."""

    def make(*, independent_clocks: bool = False, **columns: Any) -> Trace:
        values = {name: list(column) for name, column in columns.items()}
        count = len(next(iter(values.values())))
        values.setdefault("row", list(range(1, count + 1)))
        frame = pl.DataFrame({name: values.get(name, [None] * count) for name in SCHEMA}, schema=SCHEMA)
        return Trace(frame, "made.jsonl", "jsonl", independent_clocks=independent_clocks)

    return make

"""Small traces written for a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


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

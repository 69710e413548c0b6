"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path` at the end: a reader sees the old content or the new, no part.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    temporary: str | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            yield file
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write `path` as a whole.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    with whole_file(path) as file:
        file.write(content)

"""One writer at a time for the files of a folder, between processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferdoc.errors import InputError

_LONGEST_WAIT_S = 30.0
_BETWEEN_TRIES_S = 0.05


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; waits for another writer.

    The lock is on the folder itself where the system can do that (``flock``: it goes with its process), so that no lock
    file is left among the baselines; elsewhere it is a file that exists while it is held.

    Raises:
        InputError: another writer holds the lock file for longer than 30 s.
    """
    handle = _flock(folder)
    if handle is not None:
        try:
            yield
        finally:
            os.close(handle)
        return
    file = _create(folder / ".lock")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _flock(folder: Path) -> int | None:
    """An open handle that holds the lock; ``None`` where the system or the file system has no ``flock``."""
    try:
        import fcntl
    except ImportError:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        os.close(handle)
        return None
    return handle


def _create(file: Path) -> Path:
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while True:
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return file
        except FileExistsError:
            if time.monotonic() > deadline:
                raise InputError(
                    f"{file}: another process holds this lock for more than {_LONGEST_WAIT_S:.0f} s; remove the file "
                    "if none is running"
                ) from None
            time.sleep(_BETWEEN_TRIES_S)

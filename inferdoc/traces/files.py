"""Writing a trace: into a new file that is there whole or not at all."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import polars as pl

from inferdoc.errors import InputError
from inferdoc.files import whole_file
from inferdoc.traces import canonical
from inferdoc.traces.inputs import STDIN, find_inputs
from inferdoc.traces.trace import Trace

_SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".parquet")


def check_target(target: Path, given: Sequence[Path | str], *, force: bool) -> None:
    """Refuse a file that must not be written, before anything is read.

    Raises:
        InputError: `target` is one of the files read, is there already (unless `force`), or has no folder.
    """
    if target.is_dir():
        raise InputError(f"{target}: is a folder; name a file")
    if not target.parent.is_dir():
        raise InputError(f"{target}: the folder {target.parent} does not exist")
    if not target.exists():
        return
    own = target.stat()
    for each in given:
        if str(each) == STDIN:
            continue
        for source in find_inputs(each).files:
            theirs = source.path.stat()
            if (own.st_dev, own.st_ino) == (theirs.st_dev, theirs.st_ino):
                raise InputError(f"{target}: is the trace that is read; name another file")
    if not force:
        raise InputError(f"{target}: exists; name another file, or give --force")


def check_suffix(target: Path) -> None:
    """Raises:
    InputError: our own format is not written to a file of that name.
    """
    if not target.name.lower().endswith(_SUFFIXES):
        raise InputError(f"{target}: name a file that ends in {', '.join(_SUFFIXES)}: its end tells the format")


def write_trace(trace: Trace, target: Path, notes: list[str]) -> list[str]:
    """Write our own format, Parquet or JSON lines by the name of `target`; returns what could not be kept.

    Raises:
        InputError: the file cannot be written.
    """
    frame, lost = canonical.frame_of(trace, notes)
    with trace_file(target) as file:
        if target.suffix.lower() == ".parquet":
            frame.write_parquet(file)
        else:
            write_lines(frame, file)
    return lost


def write_lines(frame: pl.DataFrame, file: IO[bytes]) -> None:
    """One JSON object a line; columns that only the first row has stand in that row alone."""
    only_first = [name for name in frame.columns if frame[name].slice(1).null_count() == max(0, frame.height - 1)]
    frame.head(1).write_ndjson(file)
    if frame.height > 1:
        frame.slice(1).drop(only_first).write_ndjson(file)


@contextmanager
def trace_file(target: Path, *, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `target` at the end; packed where the name ends in ``.gz``.

    Raises:
        InputError: it cannot be written; what was there before stays.
    """
    try:
        with whole_file(target, mode=mode) as raw:
            if target.suffix.lower() == ".gz":
                with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield raw
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None

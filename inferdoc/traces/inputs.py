"""What the user points at: a file, several, a folder, a pattern or standard input, as the files of one trace."""

from __future__ import annotations

import glob
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from inferdoc.errors import TraceError
from inferdoc.traces.source import Source

STDIN = "-"
SUFFIXES = frozenset(
    (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".log", ".traj", ".txt", ".parquet", ".arrow", ".ipc", ".feather")
)
PACKED = frozenset((".gz", ".bz2", ".zst"))
_NAMES_SHOWN = 5

Given = Path | str | Sequence[Path | str]


@dataclass(frozen=True)
class Inputs:
    """The files of one trace, in order of their names; `where` is what the user gave."""

    files: tuple[Source, ...]
    where: str
    notes: tuple[str, ...] = ()
    spool: IO[bytes] | None = None
    """Standard input as a file that is removed when this is."""
    found: frozenset[Path] = frozenset()
    """Files that a folder or a pattern stands for: the user did not name them one by one."""

    @property
    def name(self) -> str:
        """Without folders, for reports."""
        if len(self.files) == 1:
            return self.files[0].name
        return f"{Path(self.where).name or self.where} ({len(self.files)} files)"


def find_inputs(given: Given) -> Inputs:
    """The files that `given` stands for.

    A folder stands for all files in it and below, other than hidden ones and those of a suffix that no log has.

    Raises:
        TraceError: there is none, or one of them is no text, empty or a stand-in for the data.
    """
    parts = [_find_one(each) for each in ([given] if isinstance(given, Path | str) else dict.fromkeys(given))]
    if not parts:
        raise TraceError("no trace file was given")
    files, repeated = _once([file for part in parts for file in part.files])
    notes = [note for part in parts for note in part.notes]
    given_twice = {} if isinstance(given, Path | str) else Counter(map(str, given))
    repeated += [Path(name).name for name, times in given_twice.items() if times > 1]
    if repeated:
        notes.append(f"given more than once, read once: {_listed(repeated)}")
    return Inputs(
        files,
        ", ".join(part.where for part in parts),
        tuple(notes),
        next((part.spool for part in parts if part.spool is not None), None),
        frozenset(path for part in parts for path in part.found),
    )


def _once(files: list[Source]) -> tuple[tuple[Source, ...], list[str]]:
    """Each file once, whatever paths lead to it, and the names of those that came again."""
    kept: dict[tuple[int, int], Source] = {}
    repeated: list[str] = []
    for source in files:
        status = source.path.stat()
        first = kept.setdefault((status.st_dev, status.st_ino), source)
        if first is not source:
            repeated.append(source.name)
    return tuple(kept.values()), repeated


def _find_one(given: Path | str) -> Inputs:
    where, path = str(given), Path(given)
    if where == STDIN:
        return _spooled(sys.stdin.buffer)
    if path.is_dir():
        return _opened(*_in_folder(path), where)
    if glob.has_magic(where) and not path.exists():
        found = sorted(Path(name) for name in glob.glob(where, recursive=True) if Path(name).is_file())
        if not found:
            raise TraceError("no file matches the pattern", where=where)
        return _opened(found, [], where)
    return Inputs((Source.find(path),), where)


def _spooled(stream: IO[bytes]) -> Inputs:
    spool = tempfile.NamedTemporaryFile(prefix="inferdoc-trace-")  # noqa: SIM115
    shutil.copyfileobj(stream, spool)
    spool.flush()
    return Inputs((Source.find(Path(spool.name), "stdin"),), "stdin", spool=spool)


def _in_folder(folder: Path) -> tuple[list[Path], list[str]]:
    """Files to read, and names of those that are not."""
    found: list[Path] = []
    others: list[str] = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file():
            continue
        hidden = any(part.startswith(".") for part in inside.parts)
        suffixes = [suffix.lower() for suffix in path.suffixes]
        if suffixes and suffixes[-1] in PACKED:
            suffixes.pop()
        if hidden or not suffixes or suffixes[-1] not in SUFFIXES:
            others.append(inside.as_posix())
        else:
            found.append(path)
    if not found:
        beside = f"; other files: {_listed(others)}" if others else ""
        raise TraceError(f"the folder holds no trace file ({', '.join(sorted(SUFFIXES))}){beside}", where=str(folder))
    return found, others


def _opened(paths: list[Path], others: list[str], where: str) -> Inputs:
    files: list[Source] = []
    empty: list[str] = []
    for path in paths:
        if path.stat().st_size or len(paths) == 1:
            files.append(Source.find(path))
        else:
            empty.append(path.name)
    if not files:
        raise TraceError(f"all {len(empty)} files are empty", where=where)
    notes = []
    if others:
        notes.append(f"not read in the folder: {_listed(others)}")
    if empty:
        notes.append(f"empty files: {_listed(empty)}")
    return Inputs(tuple(files), where, tuple(notes), found=frozenset(file.path for file in files))


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + rest

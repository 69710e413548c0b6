"""The weight files of a model directory: which of them count, what they hold, what lies beside them unread."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferdoc.errors import ModelError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_DTYPE_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Checkpoint:
    """Stored weights of one directory.

    tensor_bytes: bytes of the tensors in the files that count. files: those files, by name.
    ignored: other weight files in the folder or below it (a second copy in another format), not added up.
    dtype: type of most bytes among floating-point tensors; None where no safetensors file tells.
    """

    tensor_bytes: int
    files: tuple[str, ...]
    ignored: tuple[str, ...]
    dtype: str | None


def checkpoint_bytes(directory: Path) -> Checkpoint:
    """Adds up one copy of the weights: the files that the index lists, else ``model.safetensors``, never the folder.

    Raises:
        ModelError: no safetensors weights, a listed file is missing, or a file is damaged.
    """
    files = weight_files(directory)
    if not files:
        raise ModelError(f"{directory}: no safetensors weights")
    by_dtype: Counter[str] = Counter()
    total = 0
    for name in files:
        for dtype, size in _tensors(directory / name):
            total += size
            by_dtype[dtype] += size
    floats = [(size, _DTYPE_NAMES[dtype]) for dtype, size in by_dtype.items() if dtype in _DTYPE_NAMES]
    return Checkpoint(total, files, _ignored(directory, files), max(floats)[1] if floats else None)


def weight_files(directory: Path) -> tuple[str, ...]:
    """Names of the safetensors files that count; empty where the directory has none.

    Raises:
        ModelError: the index cannot be read, or lists a file that is not there.
    """
    index = directory / _INDEX
    if not index.is_file():
        return (_SINGLE,) if (directory / _SINGLE).is_file() else ()
    try:
        listed = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise ModelError(f"{index}: not an index of safetensors files (weight_map is missing)") from None
    absent = [name for name in listed if not (directory / name).is_file()]
    if absent:
        raise ModelError(f"{directory}: {_INDEX} lists {absent[0]}, which is not there ({len(absent)} missing in all)")
    return tuple(listed)


def gguf_files(directory: Path) -> tuple[str, ...]:
    """Names of the GGUF files in `directory`."""
    return tuple(sorted(path.name for path in directory.glob("*.gguf")))


def _ignored(directory: Path, files: tuple[str, ...]) -> tuple[str, ...]:
    found = (path for path in directory.rglob("*") if path.suffix in _WEIGHT_SUFFIXES and path.is_file())
    return tuple(sorted(name for path in found if (name := path.relative_to(directory).as_posix()) not in files))


def _tensors(path: Path) -> list[tuple[str, int]]:
    """Type and bytes of each tensor, from the file's header alone (8 bytes of length, then JSON)."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _LONGEST_HEADER:
                raise ValueError
            header: dict[str, Any] = json.loads(file.read(length))
        return [
            (str(entry["dtype"]), int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]))
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, IndexError, struct.error, AttributeError):
        raise ModelError(f"{path}: not a safetensors file, or cut short; download it again") from None

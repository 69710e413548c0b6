"""Which weights a model has, so that two results can be told to be of the same ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from inferdoc.errors import ModelError
from inferdoc.models.checkpoint import weight_files
from inferdoc.models.config_file import Source

if TYPE_CHECKING:
    from hashlib import _Hash

_SAMPLE = 1024**2


def model_revision(source: Source, *, load_format: str = "auto", seed: int = 0) -> str | None:
    """The hub's commit, or ``sha256:`` and 12 digits over what the model is made of; ``None`` where neither is known.

    Of a hub model, also one whose folder in the hub's cache was given, the commit of the snapshot (with the name of the
    GGUF file, if one of several was chosen). Of other folders and files the configuration and, for each weight file in
    order, its name, its size, and its first, middle and last MiB: a sample, so a change that lies between those and
    leaves the size the same is not seen. Of random weights (``dummy``) the configuration and the seed. Where the model
    lies does not count.

    Raises:
        ModelError: a weight file cannot be read.
    """
    if load_format == "dummy":
        return _digest(source, [], seed)
    place = _in_hub_cache(source) if source.directory is None else source.directory.resolve()
    commit = _commit(place) if place is not None else None
    if commit is not None:
        return commit if source.gguf_file is None else f"{commit}/{source.gguf_file}"
    if source.directory is None:
        return None
    return _digest(source, _weights(source, source.directory), None)


def _in_hub_cache(source: Source) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(source.location, source.gguf_file or "config.json")
    return Path(path).parent if isinstance(path, str) else None


def _commit(folder: Path) -> str | None:
    """``<commit>`` of ``models--<name>/snapshots/<commit>`` or a folder below it, the layout of the hub's cache."""
    for place in (folder, *folder.parents):
        if place.parent.name == "snapshots" and place.parent.parent.name.startswith("models--"):
            return place.name
    return None


def _weights(source: Source, directory: Path) -> list[Path]:
    if source.gguf_file is not None:
        return [directory / source.gguf_file]
    names = weight_files(directory)
    return [directory / name for name in names] or sorted(directory.glob("pytorch_model*.bin"))


def _digest(source: Source, weights: list[Path], seed: int | None) -> str:
    digest = hashlib.sha256()
    if source.gguf_file is None or seed is not None:
        # as parsed: line endings and spaces make no other model. A GGUF file holds its configuration itself.
        for part in (source.config, source.companion):
            digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    if seed is not None:
        digest.update(f"seed {seed}\n".encode())
    for path in weights:
        _add_samples(digest, path)
    return f"sha256:{digest.hexdigest()[:12]}"


def _add_samples(digest: _Hash, path: Path) -> None:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            starts = [0, (size - _SAMPLE) // 2, size - _SAMPLE] if size > 3 * _SAMPLE else range(0, size, _SAMPLE)
            for start in starts:
                file.seek(start)
                digest.update(file.read(_SAMPLE))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None

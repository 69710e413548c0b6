"""Finds and reads a model's configuration: a directory, a config.json, a GGUF file, or a hub id."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inferdoc.errors import ModelError
from inferdoc.models.checkpoint import checkpoint_bytes, gguf_files, weight_files
from inferdoc.models.embedded import EMBEDDED, embedded_path
from inferdoc.models.quiet import silence
from inferdoc.models.spec import ModelSpec

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
COMPANION = "hf_quant_config.json"
"""Where some vendors keep the quantization; beside ``NAME.json`` it is ``NAME.hf_quant_config.json``."""


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    name: for messages and reports, without folders. location: what transformers is given (directory or hub id).
    directory: None for a hub id. gguf_file: name of the GGUF file inside the directory, if that is what is read.
    config: the parsed configuration. companion: the parsed ``hf_quant_config.json``, if there is one.
    """

    name: str
    location: str
    directory: Path | None
    gguf_file: str | None
    config: Mapping[str, Any]
    companion: Mapping[str, Any] | None


def read_spec(model: str | Path, *, gguf_file: str | None = None, trust_remote_code: bool = False) -> ModelSpec:
    """The `ModelSpec` of a directory, a config.json, a GGUF file, a hub id, or ``embedded``.

    Args:
        gguf_file: name of the GGUF file inside the directory `model`.
        trust_remote_code: allow a class that transformers lacks to be counted with the code beside its weights.

    Raises:
        ModelError: nothing there, not JSON, sizes missing, or the hub cannot be reached.
    """
    return spec_of(find_source(model, gguf_file=gguf_file), trust_remote_code=trust_remote_code)


def spec_of(source: Source, *, trust_remote_code: bool = False) -> ModelSpec:
    """The `ModelSpec` of a source that was found."""
    stored = None
    directory = source.directory
    if directory is not None and source.gguf_file is None and weight_files(directory):
        stored = checkpoint_bytes(directory).dtype
    runs_code = trust_remote_code and bool(source.config.get("auto_map"))
    spec = ModelSpec.from_config(
        source.config,
        source.name,
        companion=source.companion,
        stored_dtype=stored,
        code=source.location if runs_code else None,
    )
    if source.gguf_file is None:
        return spec
    return replace(spec, notes=(*spec.notes, "GGUF: its 4- to 8-bit blocks are expanded to plain weights on loading"))


def find_source(model: str | Path, *, gguf_file: str | None = None) -> Source:
    """Finds `model` and parses its configuration.

    Raises:
        ModelError: see `read_spec`.
    """
    text = str(model)
    if text == EMBEDDED:
        return _from_directory(embedded_path(), None, name=EMBEDDED)
    path = Path(text).expanduser()
    if path.is_dir():
        return _from_directory(path, gguf_file, name=path.resolve().name)
    if path.is_file() and path.suffix == ".gguf":
        return _from_gguf(path.parent, path.name)
    if path.is_file():
        companion = path.with_name(COMPANION)
        if path.name != "config.json":
            companion = path.with_name(f"{path.stem}.{COMPANION}")
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        return Source(name, str(path.parent), path.parent, None, _parse(path), _parse_if_there(companion))
    if gguf_file is None and path.suffix in (".gguf", ".json"):
        raise ModelError(f"{text}: no such file")
    if not _HUB_ID.fullmatch(text) or text.startswith("."):
        raise ModelError(f"{text}: no such directory or file")
    return _from_hub(text, gguf_file)


def is_offline() -> bool:
    """Whether the hub cannot be asked: it was switched off, or its name does not resolve and no proxy is set."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return False
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return True
    return False


def _from_directory(directory: Path, gguf_file: str | None, *, name: str) -> Source:
    if gguf_file is not None:
        return _from_gguf(directory, gguf_file)
    path = directory / "config.json"
    if not path.is_file():
        found = gguf_files(directory)
        mend = f"it holds {found[0]}: add --gguf-file {found[0]}" if found else "give the folder that holds the model"
        raise ModelError(f"{directory}: no config.json here; {mend}")
    return Source(name, str(directory), directory, None, _parse(path), _parse_if_there(directory / COMPANION))


def _from_gguf(directory: Path, gguf_file: str) -> Source:
    path = directory / gguf_file
    if not path.is_file():
        found = gguf_files(directory)
        held = f"it holds {', '.join(found)}" if found else "it holds no GGUF file"
        raise ModelError(f"{directory}: no file {gguf_file}; {held}")
    return Source(path.stem, str(directory), directory, gguf_file, _gguf_config(path), None)


def _gguf_config(path: Path) -> Mapping[str, Any]:
    return _read_gguf_config(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_gguf_config(path: Path, _modified: int) -> Mapping[str, Any]:
    """One pass over the metadata takes seconds (every token of the vocabulary is a field), so it is kept."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    try:
        with silence():
            config = load_gguf_checkpoint(str(path), return_tensors=False)["config"]
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as GGUF: {_first_line(error)}") from None
    if not isinstance(config, Mapping):
        raise ModelError(f"{path}: the GGUF file describes no model")
    return dict(config) | {"dtype": "float32"}


def _from_hub(hub_id: str, gguf_file: str | None) -> Source:
    from huggingface_hub import hf_hub_download

    def fetch(name: str) -> Path:
        return Path(hf_hub_download(hub_id, name, local_files_only=offline))

    offline = is_offline()
    try:
        with silence():
            if gguf_file is not None:
                config = _gguf_config(fetch(gguf_file))
                return Source(hub_id, hub_id, None, gguf_file, config, None)
            path = fetch("config.json")
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(hub_failure(hub_id, error, offline=offline)) from None
    return Source(hub_id, hub_id, None, None, _parse(path), _hub_companion(fetch))


def _hub_companion(fetch: Any) -> Mapping[str, Any] | None:
    try:
        with silence():
            return _parse(fetch(COMPANION))
    except Exception:
        return None  # most models have none, and asking is the only way to know


def hub_failure(hub_id: str, error: Exception, *, offline: bool) -> str:
    """One line on why a hub id could not be fetched, and what to do instead."""
    if offline:
        why = "the hub cannot be reached (no network, or HF_HUB_OFFLINE is set) and it is not in the local cache"
    else:
        why = f"the hub answered: {_first_line(error)}"
    return f"{hub_id}: no directory of this name, and {why}; download the model and give its directory"


def _parse_if_there(path: Path) -> Mapping[str, Any] | None:
    return _parse(path) if path.is_file() else None


def _parse(path: Path) -> Mapping[str, Any]:
    """JSON as model vendors write it: a bare ``Infinity`` or ``NaN`` is accepted."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ModelError(f"{path}: cannot be read: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    if not isinstance(config, Mapping):
        raise ModelError(f"{path}: a JSON object is needed, this is {type(config).__name__}")
    return config


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

"""Which sources measured: two results of different probes or engines are not of one instrument."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("inferdoc.probes", "inferdoc.engine")
_SUFFIXES = (".py", ".c")


def probe_version(folders: Mapping[str, Path] | None = None) -> str | None:
    """12 hexadecimal digits over the sources of the probes and the engine; ``None`` where no source is installed.

    The same wherever they lie and however their lines end.

    Args:
        folders: by package name; by default where this installation has them.
    """
    digest = hashlib.sha256()
    found = False
    for package, folder in sorted((_installed() if folders is None else folders).items()):
        sources = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.suffix in _SUFFIXES}
        for name, path in sorted(sources.items()):
            content = path.read_bytes().replace(b"\r\n", b"\n")
            digest.update(f"{package}/{name} {len(content)}\n".encode())
            digest.update(content)
            found = True
    return digest.hexdigest()[:12] if found else None


def _installed() -> dict[str, Path]:
    specs = ((package, find_spec(package)) for package in _PACKAGES)
    return {
        package: Path(place)
        for package, spec in specs
        if spec is not None
        for place in list(spec.submodule_search_locations or ())[:1]
    }

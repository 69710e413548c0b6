"""What is wrong with a policy file: everything, each with its line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferdoc.errors import PolicyError
from inferdoc.gate.sections import ARM, METRIC, SECTIONS
from inferdoc.gate.values import Reader, near
from inferdoc.rules.yaml_lines import Document

Path = tuple[str | int, ...]

_HOMES = {**{f"[{name}]": keys for name, keys in SECTIONS.items()}, "[[metric]]": METRIC, "[arm.candidate]": ARM}


class Problems:
    """Collects the problems of one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.found: list[tuple[int, str]] = []

    def add(self, path: Path, message: str) -> None:
        self.found.append((self.line(path), message))

    def line(self, path: Path) -> int:
        """Of the value at `path`, or of the nearest value around it."""
        return int(self.document.where(path).rpartition(":")[2])

    def read(self, path: Path, table: Any, readers: Mapping[str, Reader], title: str) -> dict[str, Any]:
        """The keys of a table that are known and hold what they may."""
        if not isinstance(table, dict):
            self.add(path, f"{title} must be a table of keys: {', '.join(readers)}")
            return {}
        values = {}
        for key, value in table.items():
            name = str(key)
            if name not in readers:
                home = next((other for other, keys in _HOMES.items() if name in keys), None)
                hint = f"it belongs to {home}" if home else near(name, readers)
                self.add((*path, name), f"{title} has no key {name!r}; {hint}")
                continue
            try:
                values[name] = readers[name](value)
            except ValueError as error:
                self.add((*path, name), f"{name}: {error}")
        return values

    def refuse(self) -> None:
        """
        Raises:
            PolicyError: there is a problem; with all of them, by line.
        """
        if self.found:
            (line, first), *rest = sorted(self.found, key=lambda problem: problem[0])
            name = self.document.name
            more = "".join(f"\n{name}:{line}: {message}" for line, message in rest)
            raise PolicyError(f"{first}{more}", where=f"{name}:{line}")

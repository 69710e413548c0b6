"""Columns of a table by name, whatever their case, spaces and underscores: ``Request tokens``, ``request_tokens``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from inferdoc.errors import TraceError
from inferdoc.traces import shown
from inferdoc.traces.columns import words
from inferdoc.traces.csvtable import Table
from inferdoc.traces.formats.format import Keys, Matches


def plain(name: str) -> str:
    """A column's name in lower case, without separators."""
    return "".join(words(name))


def header_has(*names: str) -> Matches:
    """All of `names` are columns."""
    wanted = {plain(name) for name in names}

    def matches(header: Keys) -> bool:
        return wanted <= {plain(name) for name in header}

    return matches


def pick(table: Table, wanted: Mapping[str, str], required: Iterable[str], where: str) -> dict[str, str]:
    """The table's own name of each role in `wanted` that it has a column for.

    Raises:
        TraceError: no column for one of `required`.
    """
    found: dict[str, str] = {}
    for name in table.columns:
        found.setdefault(plain(name), name)
    missing = [wanted[role] for role in required if plain(wanted[role]) not in found]
    if missing:
        raise TraceError(f"has no column {', '.join(missing)}; columns: {shown.columns(table.columns)}", where=where)
    return {role: found[plain(name)] for role, name in wanted.items() if plain(name) in found}

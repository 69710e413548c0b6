"""Which format a file is in, by its content: the keys of its first records, its header, or its first lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inferdoc.errors import TraceError
from inferdoc.traces import shown
from inferdoc.traces.formats import BY_NAME, FORMATS, REGISTRY
from inferdoc.traces.formats.format import Format, Keys, Refusal

Family = Literal["JSON", "CSV", "columnar"]
"""What a file is made of: ``CSV`` is any text that is not JSON, ``columnar`` is Parquet and Arrow, whose rows are both
records and a table."""
GENERAL = ("csv", "jsonl")
"""Formats that go by the names of columns: they fit whatever has lengths."""


@dataclass(frozen=True)
class Content:
    """What detection looks at: the first `records` of JSON, the `header` and first rows of a table, `lines` of text."""

    family: Family
    where: str
    records: Sequence[Keys] = ()
    header: Sequence[str] = ()
    lines: Sequence[str] = ()

    def fits(self, entry: Format | Refusal) -> bool:
        if entry.kind == "records":
            as_records = self.family in ("JSON", "columnar")
            as_rows = self.family == "CSV" and isinstance(entry, Format) and entry.also_tables
            return (as_records or as_rows) and any(entry.matches(record) for record in self.records)
        if entry.kind == "table":
            return bool(self.header) and entry.matches(dict.fromkeys(self.header))
        return bool(self.lines) and entry.matches(dict.fromkeys(self.lines))


class NotRequestsError(TraceError):
    """A file that is known to hold no single requests: aggregates, settings, tables of another trace."""


def detect(content: Content) -> Format:
    """The format of a file.

    Raises:
        TraceError: a format that is known but not read, or an unknown one (with keys seen and formats considered).
    """
    found = _first_match(content)
    if isinstance(found, Format):
        return found
    if found is not None:
        raise NotRequestsError(f"is {found.title}: {found.advice}", where=content.where)
    if content.family == "CSV" and any(_is_number(name) for name in content.header):
        raise TraceError(
            "has no header row (the first line holds numbers); put the column names there",
            where=content.where,
        )
    raise TraceError(_unknown(content), where=content.where)


def chosen(name: str, content: Content, notes: list[str]) -> Format:
    """The format that the user named; what speaks against it goes to `notes`.

    Raises:
        TraceError: no such format, one of another family, or one that the content does not fit and another fits.
    """
    wanted = BY_NAME.get(name)
    if wanted is None:
        raise TraceError(f"unknown trace format {name!r}; choose one of {', '.join(FORMATS)}", where=content.where)
    found = _first_match(content)
    like = f"; it looks like {found.title}" if found is not None else ""
    if not _can_read(wanted, content.family):
        family = {"JSON": "JSON", "CSV": "CSV or text", "columnar": "Parquet or Arrow"}[content.family]
        raise TraceError(f"trace format {name!r}: the file is {family}{like}", where=content.where)
    if found is wanted or wanted.name in GENERAL:
        return wanted
    if found is None:
        return wanted
    if not content.fits(wanted):
        advice = "leave --trace-format out" if isinstance(found, Format) else found.advice
        kind = TraceError if isinstance(found, Format) else NotRequestsError
        raise kind(
            f"trace format {name!r} does not fit: the file looks like {found.title}: {advice}", where=content.where
        )
    if wanted.detected:
        notes.append(f"read as {name}, as asked; the file looks like {found.title}")
    return wanted


def _can_read(wanted: Format, family: Family) -> bool:
    families: Mapping[str, tuple[Family, ...]] = {
        "records": ("JSON", "columnar", *(("CSV",) if wanted.also_tables else ())),
        "table": ("CSV", "columnar"),
        "lines": ("CSV",),
    }
    return family in families[wanted.kind]


def _first_match(content: Content) -> Format | Refusal | None:
    """Text is looked at as a table first: a prompt in a cell may look like a line of a log."""
    candidates = [entry for entry in REGISTRY if isinstance(entry, Refusal) or entry.detected]
    candidates.sort(key=lambda entry: entry.kind == "lines")
    return next((entry for entry in candidates if content.fits(entry)), None)


def _unknown(content: Content) -> str:
    if content.family == "CSV":
        seen = shown.columns(content.header)
    else:
        seen = shown.keys(dict.fromkeys(key for record in content.records for key in record))
    kinds = {"JSON": ("records",), "CSV": ("table", "lines"), "columnar": ("records", "table")}
    considered = [name for name, entry in BY_NAME.items() if entry.kind in kinds[content.family] and entry.detected]
    return (
        f"unknown trace format; keys seen: {seen}; formats considered: {', '.join(considered)};"
        " name the columns input_tokens and output_tokens, or choose one of these formats with --trace-format"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

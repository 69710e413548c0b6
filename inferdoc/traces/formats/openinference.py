"""OpenInference spans, as Phoenix exports them: JSON lines or Parquet with ``attributes``, or columns ``attributes.*``.

Conventions: https://github.com/Arize-ai/openinference (spec/semantic_conventions.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format, Keys
from inferdoc.traces.formats.genai_attributes import flat
from inferdoc.traces.formats.otel_spans import span_of
from inferdoc.traces.formats.spans import Span, draft_of
from inferdoc.traces.formats.values import decoded, first
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

_COLUMNS = "attributes."


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    return draft_of(_spans(records), ledger, "openinference")


def _spans(records: Iterable[Record]) -> Iterator[Span]:
    for line, record in records:
        attributes = flat(decoded(record.get("attributes")))
        for name, value in record.items():
            if name.startswith(_COLUMNS) and value is not None:
                found = decoded(value)
                attributes |= flat({name.removeprefix(_COLUMNS): value if found is None else found})
        kind = first(attributes, "openinference.span.kind") or first(record, "span_kind", "spanKind")
        if kind is not None:
            attributes["openinference.span.kind"] = kind
        yield span_of(line, {**record, "attributes": attributes}, str(line))


def _matches(record: Keys) -> bool:
    attributes = decoded(record.get("attributes"))
    names = [str(name) for name in record]
    if isinstance(attributes, Mapping):
        names += [f"{_COLUMNS}{name}" for name in flat(attributes)]
    return any(name.startswith((f"{_COLUMNS}llm.", f"{_COLUMNS}openinference.")) for name in names)


FORMAT = Format("openinference", "OpenInference spans", _matches, read, also_tables=True)

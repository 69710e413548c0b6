"""OpenTelemetry spans as OTLP/JSON: ``resourceSpans``, times in ns and 64-bit numbers as strings, values with types.

Format: https://opentelemetry.io/docs/specs/otlp (JSON mapping of the trace service's request; the file exporter
writes one request a line).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.columns import as_text
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format, has_any
from inferdoc.traces.formats.genai_attributes import flat
from inferdoc.traces.formats.spans import Span, draft_of, is_failure
from inferdoc.traces.formats.values import at, first
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

_VALUES = ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    return draft_of(_spans(records, ledger), ledger, "otlp", units={"arrival": "ns"})


def _spans(records: Iterable[Record], ledger: Ledger) -> Iterator[Span]:
    for line, record in records:
        for resource in _objects(first(record, "resourceSpans", "resource_spans"), line, ledger):
            scopes = first(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
            for scope in _objects(scopes, line, ledger):
                for span in _objects(scope.get("spans"), line, ledger):
                    yield _span(line, span)


def _objects(value: Any, line: int, ledger: Ledger) -> Iterator[Mapping[str, Any]]:
    """The objects of a list; what else stands in it is refused."""
    for item in value if isinstance(value, list) else []:
        if isinstance(item, Mapping):
            yield item
        else:
            ledger.refuse(line, f"a span is {shown.kind(item)}: expected an object", "spans of another form")


def _span(line: int, span: Mapping[str, Any]) -> Span:
    events = span.get("events")
    return Span(
        line=line,
        trace=str(first(span, "traceId", "trace_id") or ""),
        id=str(first(span, "spanId", "span_id") or ""),
        parent=as_text(first(span, "parentSpanId", "parent_span_id")) or None,
        start=first(span, "startTimeUnixNano", "start_time_unix_nano"),
        end=first(span, "endTimeUnixNano", "end_time_unix_nano"),
        attributes=attributes_of(span.get("attributes")),
        events=tuple(
            {"name": event.get("name"), **attributes_of(event.get("attributes"))}
            for event in (events if isinstance(events, list) else [])
            if isinstance(event, Mapping)
        ),
        failed=is_failure(at(span, "status", "code")),
    )


def attributes_of(pairs: Any) -> dict[str, Any]:
    """A list of keys and typed values as flat attributes."""
    pairs = [pair for pair in pairs if isinstance(pair, Mapping)] if isinstance(pairs, list) else []
    return flat({str(pair.get("key")): _value(pair.get("value")) for pair in pairs})


def _value(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if isinstance(value.get("arrayValue"), Mapping):
        items = value["arrayValue"].get("values")
        return [_value(item) for item in items] if isinstance(items, list) else []
    if isinstance(value.get("kvlistValue"), Mapping):
        pairs = value["kvlistValue"].get("values")
        pairs = pairs if isinstance(pairs, list) else []
        return {str(pair.get("key")): _value(pair.get("value")) for pair in pairs if isinstance(pair, Mapping)}
    return first(value, *_VALUES)


FORMAT = Format("otlp", "OpenTelemetry spans (OTLP/JSON)", has_any("resourceSpans", "resource_spans"), read)

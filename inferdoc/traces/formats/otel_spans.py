"""OpenTelemetry spans with flat attributes: ``{"trace_id", "spans": [...]}`` or one span a line.

Times are ISO-8601 (without offset: UTC) or epoch numbers; lists inside attributes are JSON strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inferdoc.traces.columns import as_text
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format, Keys, all_of, any_of, has, has_any, list_with
from inferdoc.traces.formats.genai_attributes import flat
from inferdoc.traces.formats.spans import Span, draft_of, is_failure
from inferdoc.traces.formats.values import at, decoded, first
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

PARENTS = ("parent_span_id", "parent_id", "parentSpanId")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    return draft_of(_spans(records, ledger), ledger, "otel-spans")


def _spans(records: Iterable[Record], ledger: Ledger) -> Iterator[Span]:
    for line, record in records:
        spans = decoded(record.get("spans"))
        for number, span in enumerate(spans if isinstance(spans, list) else [record]):
            if isinstance(span, Mapping):
                yield span_of(line, span, f"{line}.{number}")
            else:
                ledger.refuse(line, f"spans[{number}] is not an object", "spans of another form")


def span_of(line: int, span: Mapping[str, Any], default_id: str) -> Span:
    """A span whose fields have one of the usual names; without an id of its own it gets `default_id`."""
    inner = span.get("context")
    context = inner if isinstance(inner, Mapping) else span
    events = decoded(span.get("events"))
    status = span.get("status")
    return Span(
        line=line,
        trace=str(first(context, "trace_id", "traceId") or first(span, "trace_id", "context.trace_id") or ""),
        id=str(first(context, "span_id", "spanId", "context.span_id") or default_id),
        parent=as_text(first(span, *PARENTS)) or None,
        start=first(span, "start_time", "startTime", "start_time_unix_nano"),
        end=first(span, "end_time", "endTime", "end_time_unix_nano"),
        attributes=flat(decoded(span.get("attributes"))),
        events=tuple(
            {"name": event.get("name"), **flat(event.get("attributes"))}
            for event in (events if isinstance(events, list) else [])
            if isinstance(event, Mapping)
        ),
        failed=is_failure(
            first({"code": at(status, "code") or at(status, "status_code"), "plain": status}, "code", "plain")
        )
        or is_failure(span.get("status_code")),
    )


def _is_span(record: Keys) -> bool:
    attributes = decoded(record.get("attributes"))
    return isinstance(attributes, Mapping) and any(str(name).startswith("gen_ai") for name in attributes)


FORMAT = Format(
    "otel-spans",
    "OpenTelemetry spans",
    any_of(list_with("spans", "attributes"), all_of(has("attributes"), has_any("start_time", "startTime"), _is_span)),
    read,
)

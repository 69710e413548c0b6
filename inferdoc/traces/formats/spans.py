"""Spans of a tracing system and the model calls among them.

A call can be traced twice, by a framework and by the client library inside it: then one call's span encloses the
other's. The inner one is the request; what only the outer one tells (token counts, messages) is taken over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import EMBEDDINGS, Calls
from inferdoc.traces.formats.genai_attributes import ROLES, Attributes, kind_of, roles_of, texts_of
from inferdoc.traces.formats.values import elapsed_s, instant, positive, whole
from inferdoc.traces.ledger import Ledger

WRAPPERS = "spans of agents, tools and frameworks, which are no model calls"
ENCLOSING = "the same call again: a span that encloses the span of the call itself"
EXPORTED_TWICE = "the same span again: exported more than once"
Key = tuple[str, str]
"""Trace and span."""
_FAILED = ("2", "error", "status_code_error")


@dataclass(frozen=True)
class Span:
    """A span as its export gives it; `start` and `end` as written there, `attributes` flat."""

    line: int
    trace: str
    id: str
    parent: str | None
    start: Any
    end: Any
    attributes: Attributes
    events: tuple[Attributes, ...] = ()
    failed: bool = False

    @property
    def key(self) -> Key:
        return self.trace, self.id


def is_failure(status: Any) -> bool:
    """Whether a span's status code says that the operation failed (OpenTelemetry: 0 unset, 1 ok, 2 error)."""
    return str(status).lower() in _FAILED


def draft_of(spans: Iterable[Span], ledger: Ledger, format: str, *, units: Mapping[str, str] | None = None) -> Draft:
    """The model calls among `spans`, each once."""
    calls = Calls(ledger)
    found = _distinct(spans, calls)
    requests = {}
    for key, span in found.items():
        kind = kind_of(span.attributes)
        if kind == "call":
            requests[key] = span
        else:
            calls.leave_out(span.line, EMBEDDINGS if kind == "embeddings" else WRAPPERS)
    outer = {key: _enclosing(span, found, requests) for key, span in requests.items()}
    enclosed = Counter(outer.values())
    rows = {key: _row(span) for key, span in requests.items()}
    for key, span in requests.items():
        if key in enclosed:
            calls.leave_out(span.line, ENCLOSING)
        else:
            calls.add(span.line, _completed(key, rows, outer, enclosed))
    _cached_on_top(calls.rows)
    _note_sampling(calls, requests, found)
    if not any(row.get("session") for row in calls.rows):
        for row in calls.rows:
            row["session"] = row["trace"]
        calls.only_shared_sessions("trace id")
    for row in calls.rows:
        del row["trace"]
    names = {role: attributes[0] for role, attributes in ROLES.items()} | {"arrival": "start time", "e2e_s": "duration"}
    return calls.draft(format, names, units=units)


def _distinct(spans: Iterable[Span], calls: Calls) -> dict[Key, Span]:
    found: dict[Key, Span] = {}
    for span in spans:
        if span.key in found:
            calls.leave_out(span.line, EXPORTED_TWICE)
        else:
            found[span.key] = span
    return found


def _enclosing(span: Span, found: Mapping[Key, Span], requests: Mapping[Key, Span]) -> Key | None:
    """The nearest call among a span's ancestors that is still running when the span starts.

    A parent that has ended is the call before it in a chain, not a layer around it.
    """
    seen = {span.key}
    key = (span.trace, span.parent or "")
    while key in found and key not in seen:
        seen.add(key)
        start, end = instant(span.start), instant(found[key].end)
        if key in requests and start is not None and end is not None and start < end:
            return key
        key = (span.trace, found[key].parent or "")
    return None


def _completed(
    key: Key, rows: Mapping[Key, dict[str, Any]], outer: Mapping[Key, Key | None], enclosed: Mapping[Key | None, int]
) -> dict[str, Any]:
    """A call's row with what only the layers around it tell; a layer around several calls tells nothing of one."""
    row, around = rows[key], outer[key]
    while around is not None and enclosed[around] == 1:
        row = {**rows[around], **{role: value for role, value in row.items() if value is not None}}
        around = outer[around]
    return row


def _row(span: Span) -> dict[str, Any]:
    row = roles_of(span.attributes)
    row |= texts_of(span.attributes, list(span.events), line=span.line)
    for role in ("ttft_s", "queue_s"):
        row[role] = positive(row.get(role))
    if row.get("e2e_s") is None:
        row["e2e_s"] = elapsed_s(span.start, span.end)
    provider = span.attributes.get("gen_ai.provider.name", span.attributes.get("gen_ai.system"))
    return {
        **row,
        "arrival": span.start,
        "status": "error" if span.failed else "ok",
        "provider": f"{provider} {row.get('model')}".lower(),
        "trace": span.trace,
    }


def _cached_on_top(rows: list[dict[str, Any]]) -> None:
    """The convention counts cached tokens as a part of the input. Instrumentations of Anthropic's API that pass on its
    own counts do not: they are recognised by rows with more cached tokens than input."""
    anthropic = [row for row in rows if "anthropic" in row["provider"] or "claude" in row["provider"]]
    on_top = any((whole(row.get("cached_tokens")) or 0) > (whole(row.get("input_tokens")) or 0) for row in anthropic)
    for row in anthropic if on_top else ():
        row["cache_read"] = row.pop("cached_tokens", None)
    kept = {id(row) for row in anthropic} if on_top else set()
    for row in rows:
        del row["provider"]
        if id(row) not in kept:
            row.pop("cache_creation", None)


def _note_sampling(calls: Calls, requests: Mapping[Key, Span], found: Mapping[Key, Span]) -> None:
    orphans = sum(span.parent is not None and (span.trace, span.parent) not in found for span in requests.values())
    calls.notes.append(
        "spans are what the collector kept: where it samples, rates and concurrency are higher in truth"
        + (f" ({orphans:,} calls name a parent span that is not here)" if orphans else "")
    )

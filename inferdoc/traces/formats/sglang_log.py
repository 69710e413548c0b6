"""SGLang's server log: ``Receive:`` and ``Finish:`` lines of its text form, and its JSON request log.

Text lines carry Python literals, cut in the middle with `` ... `` beyond 2,048 characters; what the engine tells of a
request (``meta_info``) stands at the end. Source: sglang/srt/utils/request_logger.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferdoc.errors import TraceError
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.engine_gauges import Gauges
from inferdoc.traces.formats.format import Format, Keys, Line, line_with
from inferdoc.traces.formats.log_lines import plain
from inferdoc.traces.formats.sglang_metrics import NAMES, prompt_of, row_of, unusable
from inferdoc.traces.formats.values import at, instant
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

OTHER_LINES = "log lines that are no finished requests"
UNFINISHED = "requests that do not finish in this log"
UNCOUNTED = "finished requests without token counts: their lines may be cut off"
_DATE = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)[^\]]*\]\s*")
_ID = re.compile(r"\brid='([^']*)'")
_NUMBER = re.compile(r"'(\w+)': (-?\d{1,30}(\.\d{0,30})?(e[+-]?\d{1,3})?)(?=[,}])")
_FINISH = re.compile(r"'finish_reason': \{'type': '(\w+)'")
_META_ID = re.compile(r"'id': '([^']*)'")
_PREFILL = re.compile(r"#new-token: (\d+), #cached-token: (\d+)")
_GAUGES = {
    "running": r"#running-req: (\d+)",
    "queued": r"#queue-req: (\d+)",
    "token usage": r"token usage: (\d+(?:\.\d+)?)",
    "generation throughput (tokens/s)": r"gen throughput \(token/s\): (\d+(?:\.\d+)?)",
}
_ADVICE = "start SGLang with --export-metrics-to-file (the best source), or at least with --log-requests"


@dataclass(frozen=True)
class _Event:
    """A request received or finished, at a time of the log's own clock in ns."""

    line: int
    finished: bool
    id: str
    time: int | None
    meta: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)


def read(lines: Iterable[Line], ledger: Ledger) -> Draft:
    """Finished requests of a text log, whose lines may also carry JSON events.

    Raises:
        TraceError: none; says what the log holds instead.
    """
    calls, gauges = Calls(ledger), Gauges(_GAUGES)
    events, new, cached = [], 0, 0
    for number, line in lines:
        text, stamp = plain(line)
        date = _DATE.match(text)
        event = _event(number, text[date.end() :] if date else text, stamp or (instant(date[1]) if date else None))
        if event is not None:
            events.append(event)
            continue
        calls.leave_out(number, OTHER_LINES)
        gauges.observe(text)
        if tokens := _PREFILL.search(text):
            new, cached = new + int(tokens[1]), cached + int(tokens[2])
    if gauges.lines:
        calls.notes.append(gauges.describe())
    if new + cached:
        calls.notes.append(
            f"the engine took {cached / (new + cached):.1%} of {new + cached:,} prompt tokens from its cache"
        )
    if not any(event.finished for event in events):
        held = "; ".join([f"it holds {len(events):,} received requests", *calls.notes, _ADVICE])
        raise TraceError(f"an SGLang log without finished requests: {held}", where=ledger.where)
    return _draft(events, calls, "sglang-log")


def read_requests(records: Iterable[Record], ledger: Ledger) -> Draft:
    """The JSON request log (``--log-requests-format json``)."""
    calls = Calls(ledger)
    events = []
    for line, record in records:
        event = _json_event(line, record)
        if event is None:
            calls.leave_out(line, OTHER_LINES)
        else:
            events.append(event)
    return _draft(events, calls, "sglang-requests")


def _event(line: int, text: str, time: int | None) -> _Event | None:
    if text.startswith("{"):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return _json_event(line, record) if isinstance(record, dict) else None
    if not text.startswith(("Receive: obj=", "Receive OpenAI: obj=", "Finish: obj=")):
        return None
    finished = text.startswith("Finish")
    head, _, out = text.partition(", out={") if finished else (text, "", "")
    name = _ID.search(head)
    meta = _meta(out) if finished else {}
    return _Event(line, finished, name[1] if name else str(meta.get("id", f"line {line}")), time, meta)


def _meta(out: str) -> dict[str, Any]:
    """The numbers that stand last in an answer: a text before them may quote anything."""
    out = out[max(out.rfind("'meta_info': {"), 0) :]
    found = _NUMBER.finditer(out)
    meta: dict[str, Any] = {one[1]: float(one[2]) if one[3] or one[4] else int(one[2]) for one in found}
    if reason := _FINISH.search(out):
        meta["finish_reason"] = reason[1]
    if name := _META_ID.search(out):
        meta["id"] = name[1]
    return meta


def _json_event(line: int, record: Mapping[str, Any]) -> _Event | None:
    name = str(record.get("event"))
    if not name.startswith("request."):
        return None
    meta, asked = at(record, "out", "meta_info"), record.get("obj")
    return _Event(
        line,
        name == "request.finished",
        str(record.get("rid") or at(meta, "id") or f"line {line}"),
        instant(record.get("timestamp")),
        meta if isinstance(meta, Mapping) else {},
        asked if isinstance(asked, Mapping) else {},
    )


def _draft(events: list[_Event], calls: Calls, format: str) -> Draft:
    received: dict[str, _Event] = {}
    done = {event.id for event in events if event.finished}
    rows: list[tuple[_Event, dict[str, Any]]] = []
    for event in events:
        if not event.finished:
            received.setdefault(event.id, event)
            calls.leave_out(event.line, OTHER_LINES if event.id in done else UNFINISHED)
        elif (reason := unusable({"id": event.id, **event.meta})) is not None:
            calls.leave_out(event.line, reason)
        elif event.meta.get("prompt_tokens") is None:
            calls.leave_out(event.line, UNCOUNTED)
        else:
            rows.append((event, row_of(event.meta) | prompt_of(event.asked or _asked(received, event))))
    absolute = all(row["arrival"] is not None for _, row in rows)
    for event, row in rows:
        if not absolute:
            row["arrival"] = _arrival(event, received.get(event.id), row["e2e_s"])
        calls.add(event.line, row, identity=event.id)
    if not absolute:
        calls.notes.append(
            "arrivals are the times of the log's lines (of received requests, else of finished ones less e2e_latency),"
            " without zone; in text logs their resolution is one second"
        )
    return calls.draft(format, NAMES, units={"arrival": "ns"})


def _asked(received: Mapping[str, _Event], event: _Event) -> Mapping[str, Any]:
    return received[event.id].asked if event.id in received else {}


def _arrival(event: _Event, received: _Event | None, latency: Any) -> int | None:
    if received is not None and received.time is not None:
        return received.time
    if event.time is None or not isinstance(latency, int | float):
        return event.time
    return event.time - round(latency * 1e9)


def _is_request_log(record: Keys) -> bool:
    return str(record.get("event", "")).startswith("request.")


FORMATS: tuple[Format, ...] = (
    Format(
        "sglang-log",
        "SGLang server log",
        line_with(r"(Receive|Receive OpenAI|Finish): obj=|(Prefill|Decode) batch[. ,]|\"event\": \"request\."),
        read,
        kind="lines",
    ),
    Format("sglang-requests", "SGLang request log (JSON)", _is_request_log, read_requests),
)

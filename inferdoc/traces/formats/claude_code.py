"""Claude Code's session logs (``~/.claude/projects/*/*.jsonl``): lines of many types, a call on several of them.

A call is written once for each content block, with the same ``message.id`` and the usage repeated or grown; resumed
sessions copy earlier lines into another file. The last line of a ``message.id`` counts. ``input_tokens`` excludes what
was read from or written to the cache. The log holds neither the system prompt nor the tools, so the texts are no
prompts: they are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.format import Format, Keys
from inferdoc.traces.formats.values import at, elapsed_s, instant
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

OTHER_LINES = "lines that are no calls (messages of the user, results of tools, state of the client)"
REPEATED_LINES = "the same call again: a line for each content block, or a copy in a resumed session"
SYNTHETIC = "messages that the client made up itself (model <synthetic>)"
NO_USAGE = "answers without token usage"
_TYPES = (
    "user", "assistant", "system", "attachment", "file-history-snapshot", "mode", "permission-mode", "ai-title",
    "last-prompt", "summary", "queue-operation", "progress",
)  # fmt: skip
_NAMES = {
    "arrival": "timestamp",
    "input_tokens": "usage.input_tokens",
    "output_tokens": "usage.output_tokens",
    "cache_read": "usage.cache_read_input_tokens",
    "cache_creation": "usage.cache_creation_input_tokens",
    "e2e_s": "time from the last input to the last line of the answer",
}


@dataclass
class _Call:
    """A call by its first line; `record` is the last one."""

    line: int
    arrival: str | None
    session: str
    record: Mapping[str, Any]
    lines: list[int] = field(default_factory=list)


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    found: dict[str, _Call] = {}
    asked: dict[str, str] = {}
    roots: dict[str, str] = {}
    for line, record in records:
        session = _session(record, roots)
        if record.get("type") != "assistant":
            if record.get("type") == "user" and isinstance(record.get("timestamp"), str):
                asked[session] = record["timestamp"]
            calls.leave_out(line, OTHER_LINES)
            continue
        message = record.get("message")
        identity = str(at(message, "id") or f"line {line}")
        if at(message, "model") == "<synthetic>":
            calls.leave_out(line, SYNTHETIC)
        elif not isinstance(at(message, "usage"), Mapping):
            calls.leave_out(line, NO_USAGE)
        elif identity in found:
            call = found[identity]
            call.lines.append(call.line)
            call.line, call.record = line, record
        else:
            found[identity] = _Call(line, asked.get(session), session, record)
    for call in found.values():
        for line in call.lines:
            calls.leave_out(line, REPEATED_LINES)
        calls.add(call.line, _row(call))
    notes = (
        f"{len(found):,} calls on {len(found) + sum(len(call.lines) for call in found.values()):,} lines with usage",
        "arrival is the time of the last input before the answer; times end to end are by the client's clock",
        "the log lacks system prompts and tools, so its texts are no whole prompts: only token counts are used",
    )
    return calls.draft("claude-code", _NAMES, notes=notes)


def _session(record: Mapping[str, Any], roots: dict[str, str]) -> str:
    """The session, or the sub-agent's own one: by its id, or by the first line of its chain of parents."""
    session = str(record.get("sessionId"))
    if not record.get("isSidechain"):
        return session
    own = str(record.get("uuid"))
    root = roots.get(str(record.get("parentUuid")), own)
    roots[own] = root
    return f"{session}/{record.get('agentId') or root}"


def _row(call: _Call) -> dict[str, Any]:
    message = call.record["message"]
    usage = message["usage"]
    end = call.record.get("timestamp")
    spent = elapsed_s(call.arrival, end)
    return {
        "arrival": call.arrival if instant(call.arrival) is not None else end,
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cache_read": usage.get("cache_read_input_tokens"),
        "cache_creation": usage.get("cache_creation_input_tokens"),
        "model": message.get("model"),
        "session": call.session,
        "e2e_s": spent if spent is not None and 0 < spent < 86_400 else None,
    }


def _matches(record: Keys) -> bool:
    return record.get("type") in _TYPES and ("sessionId" in record or "leafUuid" in record)


FORMAT = Format("claude-code", "Claude Code session", _matches, read)

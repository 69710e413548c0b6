"""Codex CLI's rollouts (``~/.codex/sessions/**/rollout-*.jsonl``): events, with a token count after each call.

``last_token_usage`` is the call's, ``total_token_usage`` the session's so far. The event is written again unchanged,
so only one with a new total is a call; forked sessions and sub-agents repeat the events of the session that they come
from. Input tokens include cached ones, output tokens include reasoning. Tool definitions are not in the log, so its
texts are no whole prompts: they are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.columns import as_text
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.format import Format, Keys
from inferdoc.traces.formats.values import at, elapsed_s, instant, whole
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record

OTHER_EVENTS = "events that count no tokens"
EMITTED_AGAIN = "token counts written again: the session's total has not grown"
REPLAYED = "calls of another session, repeated in a session forked from it"
_INPUTS = ("user_message", "function_call_output", "custom_tool_call_output", "local_shell_call_output")
_OUTPUTS = (
    "reasoning", "agent_reasoning", "agent_message", "function_call", "custom_tool_call", "local_shell_call",
    "web_search_call",
)  # fmt: skip
_COUNTS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")
_NAMES = {
    "arrival": "timestamp",
    "input_tokens": "last_token_usage.input_tokens",
    "output_tokens": "last_token_usage.output_tokens",
    "cached_tokens": "last_token_usage.cached_input_tokens",
    "e2e_s": "time from the last input to the token count",
}
Counts = tuple[int, ...]


class _Session:
    """Where a rollout stands: its totals so far, and the times of the call that is running."""

    def __init__(self, name: str, forked: bool) -> None:
        self.name = name
        self.forked = forked
        self.model: Any = None
        self.totals: list[Counts] = []
        self.asked: Any = None
        self.began: Any = None

    def observe(self, kind: Any, role: Any, time: Any) -> None:
        """A call begins with the first output after the last token count; it arrived with the input before that."""
        if kind in _INPUTS or (kind == "message" and role != "assistant"):
            self.asked = time
        elif (kind in _OUTPUTS or kind == "message") and self.began is None:
            self.began = self.asked


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    session = _Session("before any session_meta", forked=False)
    seen: dict[tuple[Counts, Counts], set[str]] = {}
    times: set[tuple[Any, Counts]] = set()
    for line, record in records:
        kind, time = record.get("type"), as_text(record.get("timestamp"))
        payload = record.get("payload")
        if kind == "session_meta":
            session = _next_session(session, payload)
        elif kind == "turn_context":
            session.model = at(payload, "model") or session.model
        else:
            session.observe(at(payload, "type"), at(payload, "role"), time)
        usage = _usage(payload) if at(payload, "type") == "token_count" else None
        if usage is None:
            calls.leave_out(line, OTHER_EVENTS)
            continue
        total, last = usage
        if total in session.totals:
            calls.leave_out(line, EMITTED_AGAIN)
            continue
        elsewhere = seen.setdefault((total, last), set()) - {session.name}
        replayed = (time, total) in times or (session.forked and bool(elsewhere))
        row = _row(session, total, last, time)
        session.totals.append(total)
        session.began = None
        seen[total, last].add(session.name)
        times.add((time, total))
        if replayed:
            calls.leave_out(line, REPLAYED)
        else:
            calls.add(line, row)
    notes: tuple[str, ...] = (
        "arrival is the time of the last input before the answer; times end to end are by the client's clock",
        "the log lacks tool definitions, so its texts are no whole prompts: only token counts are used",
    )
    if not len(calls):
        notes += ("no event counts tokens: some versions of Codex write none",)
    return calls.draft("codex", _NAMES, notes=notes)


def _next_session(session: _Session, meta: Any) -> _Session:
    """A new file's session. One that follows at once, before any call, is the copy that a fork begins with."""
    name = str(at(meta, "id"))
    parent = at(meta, "forked_from_id") or at(meta, "source", "subagent")
    if session.forked and not session.totals:
        return session
    return _Session(name, forked=parent is not None)


def _usage(payload: Any) -> tuple[Counts, Counts] | None:
    """The session's total and the call's counts, or ``None`` where the event has none."""
    total, last = at(payload, "info", "total_token_usage"), at(payload, "info", "last_token_usage")
    if not isinstance(total, Mapping):
        return None
    return _counts(total), _counts(last) if isinstance(last, Mapping) else ()


def _counts(usage: Mapping[str, Any]) -> Counts:
    return tuple(whole(usage.get(name)) or 0 for name in _COUNTS)


def _row(session: _Session, total: Counts, last: Counts, time: Any) -> dict[str, Any]:
    before = session.totals[-1] if session.totals else (0,) * len(_COUNTS)
    counts = last or tuple(now - earlier for now, earlier in zip(total, before, strict=True))
    arrival = session.began if session.began is not None else session.asked
    spent = elapsed_s(arrival, time)
    return {
        "arrival": arrival if instant(arrival) is not None else time,
        "input_tokens": counts[0],
        "cached_tokens": counts[1],
        "output_tokens": counts[2],
        "model": session.model,
        "session": session.name,
        "e2e_s": spent if spent is not None and 0 < spent < 86_400 else None,
    }


def _matches(record: Keys) -> bool:
    return record.get("type") in ("session_meta", "turn_context", "event_msg", "response_item") and "payload" in record


FORMAT = Format("codex", "Codex session", _matches, read)

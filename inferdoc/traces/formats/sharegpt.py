"""ShareGPT: ``conversations`` of ``from``/``value`` (or ``role``/``content``); every answer is a request.

The prompt of an answer is all that was said before it, so the context grows with the turns of a conversation.
LMSYS-Chat-1M and WildChat have ``conversation``, ``conversation_id`` (or ``conversation_hash``) and ``model``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format
from inferdoc.traces.formats.requests import Requests
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import render_body, render_prompt
from inferdoc.traces.records import Record

KEYS = ("conversations", "conversation", "items")
_ROLES = {
    "human": "user", "user": "user", "system": "system", "tool": "tool", "function": "tool", "observation": "tool",
    "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "assistant": "assistant",
    "model": "assistant",
}  # fmt: skip


_IDS = ("id", "conversation_id", "conversation_hash")
_SLICE = re.compile(r"(.+)_(\d+)")


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    requests = Requests("sharegpt", ledger)
    seen: dict[str, int] = {}
    lengths: dict[str, int] = {}
    first_is_answer: list[int] = []
    no_answer: list[int] = []
    conversations = timed = 0
    for line, record in records:
        conversations += 1
        try:
            messages = _messages(record)
            answers = [at for at, message in enumerate(messages) if message["role"] == "assistant" and at > 0]
            found = [
                (
                    render_prompt(messages[:at], row=line, tools=record.get("tools")),
                    render_body(messages[at], row=line, position=at).text,
                )
                for at in answers
            ]
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        if messages and messages[0]["role"] == "assistant":
            first_is_answer.append(line)
        if not messages or messages[-1]["role"] != "assistant":
            no_answer.append(line)
        timed += record.get("timestamp") is not None
        named = next((record[name] for name in _IDS if record.get(name) is not None), None)
        session = str(named) if named is not None else f"conversation {conversations}"
        lengths.setdefault(session, len(messages))
        seen[session] = seen.get(session, 0) + 1
        if seen[session] > 1:
            session = f"{session} #{seen[session]}"
        for turn, (prompt, output) in enumerate(found, 1):
            values = {"session": session, "turn": turn, "model": record.get("model"), "output_text": output}
            requests.add(line, values, prompt)
    ledger.leave_out(first_is_answer, "an answer without a prompt, at the start of a conversation")
    ledger.leave_out(no_answer, "the end of a conversation without an answer")
    notes = [
        f"{conversations:,} conversations with {len(requests):,} answers: each answer is a request with the history"
    ]
    if timed:
        notes.append("timestamp is one moment of a whole conversation, not the arrival of each request: it is not used")
    later = _later_slices(lengths)
    if later:
        notes.append(
            f"{later:,} conversations continue a longer one (ids such as x_0 and x_17): their prompts lack its"
            " beginning, so that lengths and hit rates are lower bounds"
        )
    return requests.draft(notes=notes)


def _later_slices(lengths: Mapping[str, int]) -> int:
    """Conversations cut from a longer one: `base_n` begins where `base_m`, with ``n - m`` turns, ends.

    Ids that only number conversations (x_0, x_1, x_2) do not leave room for the turns between them.
    """
    numbers: dict[str, dict[int, int]] = {}
    for session, length in lengths.items():
        found = _SLICE.fullmatch(session)
        if found is not None and len(found[2]) < 10:
            numbers.setdefault(found[1], {})[int(found[2])] = length
    return sum(
        number + length == following
        for slices in numbers.values()
        for (number, length), following in zip(sorted(slices.items()), sorted(slices)[1:], strict=False)
    )


def _messages(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation in one spelling: ``role`` and ``content``."""
    turns = next((record[key] for key in KEYS if key in record), None)
    if not isinstance(turns, list):
        raise RowError(
            f"conversations is {shown.kind(turns)}: expected a list of turns", "conversations is not a list of turns"
        )
    messages = []
    for position, turn in enumerate(turns):
        said_by = turn.get("from", turn.get("role")) if isinstance(turn, Mapping) else None
        role = _ROLES.get(said_by.lower()) if isinstance(said_by, str) else None
        if role is None:
            raise RowError(
                f"conversations[{position}] is from {shown.kind(said_by)}: expected one of {', '.join(_ROLES)}",
                "a turn of nobody known",
            )
        content = next((turn[key] for key in ("value", "content", "text") if key in turn), None)
        messages.append({"role": role, "content": content, "tool_calls": turn.get("tool_calls")})
    return messages


FORMAT = Format("sharegpt", "ShareGPT", lambda record: any(isinstance(record.get(key), list) for key in KEYS), read)

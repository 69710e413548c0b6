"""Prompts of several turns: MT-bench's ``question.jsonl`` and AIPerf's ``multi_turn`` data sets.

``turns`` are texts, or objects with ``text`` or ``texts``, ``timestamp`` and ``delay`` in ms, and ``output_length``.
The model's replies are not in the file, though each later prompt contains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.dialogues import Said, dialogue_notes, user_turns
from inferdoc.traces.formats.format import Format
from inferdoc.traces.formats.prompts import content_of
from inferdoc.traces.formats.requests import Requests
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered
from inferdoc.traces.records import Record


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    requests = Requests("turns", ledger)
    everything: list[Said] = []
    without_turns: list[int] = []
    conversations = 0
    for line, record in records:
        try:
            turns = _turns(record)
            said = user_turns([{"messages": [{"role": "user", "content": content}]} for content, _ in turns], row=line)
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        if not turns:
            without_turns.append(line)
            continue
        conversations += 1
        session = next((record[name] for name in ("session_id", "question_id", "id") if name in record), None)
        session = session if session is not None else f"conversation {conversations}"
        for turn, (spoken, (_, values)) in enumerate(zip(said, turns, strict=True), 1):
            assert isinstance(spoken.prompt, Rendered)
            requests.add(line, values | {"session": session, "turn": turn}, spoken.prompt)
        everything += said
    ledger.leave_out(without_turns, "a conversation without turns")
    notes = [*dialogue_notes(conversations, everything), *_arrivals(requests)]
    return requests.draft(names={"arrival": "timestamp", "output_tokens": "output_length"}, units={"arrival": "ms"},
                          notes=notes)  # fmt: skip


def _turns(record: Mapping[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    """Content and values of each turn."""
    turns = record.get("turns")
    if not isinstance(turns, list):
        raise RowError(f"turns is {shown.kind(turns)}: expected a list", "turns is not a list")
    found: list[tuple[Any, dict[str, Any]]] = []
    for position, turn in enumerate(turns):
        if isinstance(turn, str):
            found.append((turn, {}))
            continue
        content = content_of(turn) if isinstance(turn, Mapping) else None
        if content is None:
            raise RowError(f"turns[{position}] has no text", "a turn without text")
        names = {"arrival": "timestamp", "output_tokens": "output_length", "model": "model"}
        found.append((content, {role: turn.get(name) for role, name in names.items()}))
    return found


def _arrivals(requests: Requests) -> list[str]:
    """Later turns often have a delay after the reply before instead of a time: then no request keeps one."""
    timed = sum(values.get("arrival") is not None for values in requests.values)
    if not timed:
        return ["no arrival times: a later turn starts when the one before it is answered"]
    later = [values for values in requests.values if values["turn"] > 1]
    if all(values.get("arrival") is not None for values in later):
        return []
    for values in requests.values:
        values["arrival"] = None
    return [f"{timed:,} of {len(requests):,} turns have a timestamp, later ones follow their replies: no arrival times"]


FORMAT = Format("turns", "prompts of several turns", lambda record: isinstance(record.get("turns"), list), read)

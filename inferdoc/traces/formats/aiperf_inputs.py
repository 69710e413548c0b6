"""AIPerf and GenAI-Perf ``inputs.json``: ``data[]`` of sessions, whose payload k is the body of turn k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.dialogues import Said, dialogue_notes, user_turns
from inferdoc.traces.formats.format import list_with
from inferdoc.traces.formats.requests import Requests
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered

matches = list_with("data", "session_id", "payloads")


class Conversations:
    """What is said in each turn of each session."""

    def __init__(self) -> None:
        self.turns: dict[str, list[tuple[int, Said]]] = {}

    def __len__(self) -> int:
        return len(self.turns)

    def add(self, line: int, record: Mapping[str, Any], ledger: Ledger) -> None:
        """The sessions of one file; a session that cannot be read is refused."""
        data = record.get("data")
        for entry in data if isinstance(data, list) else [None]:
            try:
                if not isinstance(entry, Mapping) or not isinstance(entry.get("payloads"), list):
                    raise RowError("data has a session without payloads", "a session without payloads")
                said = user_turns(entry["payloads"], row=len(self) + 1)
            except RowError as error:
                ledger.refuse(line, str(error), error.reason)
                continue
            session = str(entry.get("session_id"))
            if session in self.turns:
                session = f"{session} #{len(self) + 1}"
            self.turns[session] = [(line, turn) for turn in said]

    def get(self, session: str, turn: Any) -> Said | None:
        turns = self.turns.get(session, [])
        return turns[turn][1] if isinstance(turn, int) and 0 <= turn < len(turns) else None


def draft(conversations: Conversations, ledger: Ledger) -> Draft:
    """The bodies alone: prompts without answers, times and lengths."""
    requests = Requests("aiperf-inputs", ledger)
    for session, turns in conversations.turns.items():
        for turn, (line, said) in enumerate(turns, 1):
            values = {"session": session, "turn": turn, "model": said.model}
            if isinstance(said.prompt, Rendered):
                requests.add(line, values, said.prompt)
            else:
                requests.add(line, values | {"prompt_ids": said.prompt})
    said_turns = [said for turns in conversations.turns.values() for _, said in turns]
    notes = dialogue_notes(len(conversations), said_turns)
    notes.append("the bodies give a limit of output tokens at most: output lengths are absent")
    return requests.draft(notes=notes)

"""SWE-agent's trajectories (``.traj``): one object a run, with the messages in ``history``.

Every message of the assistant that is no demonstration is a call; its prompt is what the same agent's history holds
before it, or the ``query`` of its step where the file has it. Token counts are totals of the run only, times there are
none. Format: https://swe-agent.com/latest/usage/trajectories
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.calls import Calls
from inferdoc.traces.formats.format import Format, has
from inferdoc.traces.formats.logged_bodies import output_text, prompt_text
from inferdoc.traces.formats.logged_messages import Message, messages_of
from inferdoc.traces.formats.values import at, whole
from inferdoc.traces.ledger import Ledger
from inferdoc.traces.records import Record


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    calls = Calls(ledger)
    sent = received = runs = 0
    for line, record in records:
        runs += 1
        history = record.get("history")
        entries = [entry for entry in history if isinstance(entry, Mapping)] if isinstance(history, list) else []
        answers = [
            place
            for place, entry in enumerate(entries)
            if entry.get("role") == "assistant" and not entry.get("is_demo")
        ]
        if not answers:
            calls.leave_out(line, "trajectories without a message of the model")
            continue
        queries = _queries(record.get("trajectory"), len(answers))
        for number, place in enumerate(answers):
            prompt = prompt_text(queries[number] or _before(entries, place), line=line)
            if prompt is None:
                ledger.refuse(line, f"history[{place}] has no readable messages before it", "a history of another form")
                continue
            output = output_text(dict(entries[place]), line=line)
            row = {"prompt_text": prompt, "output_text": output, "session": f"run {runs}", "turn": number + 1}
            calls.add(line, row)
        sent += whole(at(record, "info", "model_stats", "tokens_sent")) or 0
        received += whole(at(record, "info", "model_stats", "tokens_received")) or 0
    notes = [
        f"{runs:,} runs with {len(calls):,} calls: each prompt is the history before its answer, without the tools"
    ]
    if sent:
        notes.append(f"the runs' own totals are {sent:,} tokens sent and {received:,} received, not split by call")
    return calls.draft("swe-agent", {}, notes=tuple(notes))


def _queries(steps: Any, count: int) -> list[list[Message] | None]:
    """The messages that each step sent, where every call has a step that recorded them."""
    nothing: list[list[Message] | None] = [None] * count
    if not isinstance(steps, list) or len(steps) != count:
        return nothing
    found = [messages_of(at(step, "query") or at(step, "messages")) for step in steps]
    return found if all(found) else nothing


def _before(entries: list[Mapping[str, Any]], place: int) -> list[Mapping[str, Any]]:
    agent = entries[place].get("agent")
    return [entry for entry in entries[:place] if entry.get("agent") == agent]


FORMAT = Format("swe-agent", "SWE-agent trajectory", has("trajectory", "history"), read)

"""ShareGPT: ``conversations`` of ``from``/``value`` (or ``role``/``content``); every answer is a request.

The prompt of an answer is all that was said before it, so the context grows with the turns of a conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from inferdoc.traces.assembly import Draft
from inferdoc.traces.columns import text_column
from inferdoc.traces.ledger import Ledger, RowError, shorten
from inferdoc.traces.messages import Rendered, render_body, render_prompt
from inferdoc.traces.readers.chat import media_notes
from inferdoc.traces.records import Record

KEYS = ("conversations", "conversation", "items")
_ROLES = {
    "human": "user", "user": "user", "system": "system", "tool": "tool", "function": "tool", "observation": "tool",
    "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "assistant": "assistant",
    "model": "assistant",
}  # fmt: skip


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    lines: list[int] = []
    prompts: list[Rendered] = []
    outputs: list[str] = []
    sessions: list[str] = []
    turns: list[int] = []
    seen: dict[str, int] = {}
    first_is_answer: list[int] = []
    no_answer: list[int] = []
    conversations = 0
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
        session = str(record.get("id", f"conversation {conversations}"))
        seen[session] = seen.get(session, 0) + 1
        if seen[session] > 1:
            session = f"{session} #{seen[session]}"
        for turn, (prompt, output) in enumerate(found, 1):
            lines.append(line)
            prompts.append(prompt)
            outputs.append(output)
            sessions.append(session)
            turns.append(turn)
    ledger.leave_out(first_is_answer, "an answer without a prompt, at the start of a conversation")
    ledger.leave_out(no_answer, "the end of a conversation without an answer")
    summary = f"{conversations:,} conversations with {len(lines):,} answers: each answer is a request with the history"
    return Draft(
        format="sharegpt",
        lines=pl.Series(lines, dtype=pl.Int64),
        cells={"session": text_column(sessions), "turn": text_column(turns)},
        ready={
            "prompt_text": text_column(prompt.text for prompt in prompts),
            "output_text": text_column(outputs),
        },
        notes=[summary, *media_notes(prompts)],
    )


def _messages(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation in one spelling: ``role`` and ``content``."""
    turns = next((record[key] for key in KEYS if key in record), None)
    if not isinstance(turns, list):
        raise RowError(
            f"conversations is {shorten(turns)}: expected a list of turns", "conversations is not a list of turns"
        )
    messages = []
    for position, turn in enumerate(turns):
        said_by = turn.get("from", turn.get("role")) if isinstance(turn, Mapping) else None
        role = _ROLES.get(said_by.lower()) if isinstance(said_by, str) else None
        if role is None:
            raise RowError(
                f"conversations[{position}] is from {shorten(said_by)}: expected one of {', '.join(_ROLES)}",
                "a turn of nobody known",
            )
        content = next((turn[key] for key in ("value", "content", "text") if key in turn), None)
        messages.append({"role": role, "content": content, "tool_calls": turn.get("tool_calls")})
    return messages

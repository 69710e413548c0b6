"""Conversations of which only the user's side is known: what a later turn's prompt holds is a part of the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.formats.bodies import messages_of, prompt_of
from inferdoc.traces.formats.requests import mapping
from inferdoc.traces.ledger import RowError
from inferdoc.traces.messages import Rendered, render_prompt


@dataclass(frozen=True)
class Said:
    """The prompt of a turn as far as it is known; `whole` is false where replies before it are missing."""

    prompt: Rendered | list[int]
    whole: bool
    model: str | None = None


def user_turns(bodies: Sequence[Any], row: int) -> list[Said]:
    """The turns of a session from the bodies of its requests.

    A body that repeats the messages of the one before and adds to them is the whole prompt; one that does not holds
    only what is new, and its prompt is what the user has said up to it. `row` names parts without identity.

    Raises:
        RowError: a body without a prompt.
    """
    said: list[Said] = []
    history: list[Any] = []
    for body in bodies:
        body = mapping(body)
        model = body.get("model") if isinstance(body.get("model"), str) else None
        messages = messages_of(body)
        if messages is None:
            prompt = prompt_of(body, 0)
            if prompt is None:
                raise RowError(f"a payload without a prompt (keys {shown.keys(body)})", "no prompt in a payload")
            said.append(Said(prompt, whole=not said, model=model))
            continue
        repeats = len(messages) > len(history) and messages[: len(history)] == history
        replies = any(mapping(message).get("role") == "assistant" for message in messages)
        whole = not history or (repeats and replies)
        history = messages if repeats else history + messages
        said.append(Said(render_prompt(history, row=row, tools=body.get("tools")), whole, model))
    return said


def dialogue_notes(sessions: int, turns: Sequence[Said]) -> list[str]:
    """How many turns there are, and of how many the prompt is only partly known."""
    notes = [f"{sessions:,} conversations with {len(turns):,} turns: each turn is a request"]
    partial = sum(not turn.whole for turn in turns)
    if partial:
        notes.append(
            f"{partial:,} requests are later turns: their prompts also hold replies that are not recorded, so that"
            " their lengths, counted from what the user said, and hit rates are lower bounds"
        )
    return notes

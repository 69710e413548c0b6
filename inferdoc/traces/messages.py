"""Chat messages as one string, so that requests share prefixes as they do under a model's chat template.

Each message is ``role:``, a line break, its text and a blank line; a prompt ends with ``assistant:`` and a line break,
ready for the answer. So the prompt of a turn, followed by its answer, is the beginning of the next turn's prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.ledger import RowError

ANSWER_CUE = "assistant:\n"
_TEXT_PARTS = ("text", "input_text", "output_text")
_DESCRIPTIONS = ("type", "detail", "format", "media_type", "mime_type", "cache_control")
"""Fields of a part that say what it is, not which one it is."""


@dataclass(frozen=True)
class Rendered:
    """A message's text; `media` counts its parts that are no text, `unnamed` those of them without any identity."""

    text: str
    media: int = 0
    unnamed: int = 0

    def __add__(self, other: Rendered) -> Rendered:
        return Rendered(self.text + other.text, self.media + other.media, self.unnamed + other.unnamed)


def render(messages: Sequence[Mapping[str, Any]]) -> str:
    """The prompt that `messages` make, ending ready for the assistant's answer.

    Raises:
        RowError: a message without a role, or without content and without tool calls.
    """
    return render_prompt(messages, row=0).text


def render_prompt(messages: Sequence[Mapping[str, Any]], *, row: int, tools: Any = None) -> Rendered:
    """Like `render`, with the tools in the order given. A part without identity is named after `row`: it differs from
    those of all other rows."""
    prompt = Rendered(f"tools:\n{json.dumps(tools, ensure_ascii=False)}\n\n" if tools else "")
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RowError(f"messages[{position}] has no role: found {shown.kind(message)}", "a message without a role")
        body = render_body(message, row=row, position=position)
        prompt = prompt + Rendered(f"{message['role']}:\n") + body + Rendered("\n\n")
    return prompt + Rendered(ANSWER_CUE)


def render_body(message: Mapping[str, Any], *, row: int, position: int) -> Rendered:
    """A message's text parts joined, then its tool calls.

    Raises:
        RowError: no content and no tool calls.
    """
    content, calls = message.get("content"), _calls(message)
    if content is None and not calls:
        raise RowError(f"messages[{position}].content is null and there are no tool calls", "a message without content")
    body = Rendered("") if content is None else _content(content, f"{row}.{position}", position)
    for call in calls:
        body = body + Rendered(f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>")
    return body


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = [call.get("function") for call in message.get("tool_calls") or [] if isinstance(call, Mapping)]
    calls.append(message.get("function_call"))
    return [
        {"name": call.get("name"), "arguments": call.get("arguments")} for call in calls if isinstance(call, Mapping)
    ]


def _content(content: Any, place: str, position: int) -> Rendered:
    if isinstance(content, str):
        return Rendered(content)
    if not isinstance(content, list):
        raise RowError(
            f"messages[{position}].content is {shown.kind(content)}: expected text or a list of parts",
            "a message whose content is neither text nor parts",
        )
    body = Rendered("")
    for index, part in enumerate(content):
        body = body + _part(part, f"{place}.{index}", position)
    return body


def _part(part: Any, place: str, position: int) -> Rendered:
    if isinstance(part, str):
        return Rendered(part)
    if not isinstance(part, Mapping):
        raise RowError(
            f"messages[{position}] has a part {shown.kind(part)}: expected an object", "a message with a broken part"
        )
    kind = str(part.get("type", "part"))
    if isinstance(part.get("text"), str) and kind in (*_TEXT_PARTS, "part"):
        return Rendered(part["text"])
    if kind == "tool_use":
        call = {"name": part.get("name"), "arguments": part.get("input")}
        return Rendered(f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>")
    if kind == "tool_result":
        return _content(part.get("content") or "", place, position)
    # The identity stands first in the placeholder: two images must differ from their first token on.
    identity = "\n".join(_identity(part))
    if identity:
        digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()
        return Rendered(f"<{digest[:16]} {kind}>", media=1)
    return Rendered(f"<{place} {kind}>", media=1, unnamed=1)


def _identity(value: Any) -> Iterator[str]:
    """Texts inside a part that tell which one it is: its address, its data or its id."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in _DESCRIPTIONS:
                yield from _identity(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _identity(inner)
    elif isinstance(value, str) and value:
        yield value

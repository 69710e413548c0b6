"""Prompts that rows of Mooncake's variants give as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.ledger import RowError
from inferdoc.traces.messages import Rendered, render_prompt


class Prompts:
    """The text of each row, with what was said before in sessions whose rows hold only new messages."""

    def __init__(self) -> None:
        self._messages: dict[str, list[Any]] = {}
        self._texts: dict[str, str] = {}

    def of(self, line: int, record: Mapping[str, Any], session: str | None) -> Rendered | None:
        """The prompt of a row; ``None`` where it gives a length only. `session`: that of a row with new text only.

        Raises:
            RowError: text or messages in another form.
        """
        body = record.get("payload")
        body = body if isinstance(body, Mapping) else record
        messages, text = body.get("messages"), record.get("text_input")
        text = body.get("prompt") if text is None and body is not record else text
        if messages is not None:
            if not isinstance(messages, list) or not messages:
                raise RowError(
                    f"messages is {shown.kind(messages)}: expected a list of messages",
                    "messages is not a list of messages",
                )
            if session is not None:
                messages = self._messages.setdefault(session, []) + messages
            rendered = render_prompt(messages, row=line, tools=body.get("tools"))
            if session is not None:
                self._messages[session] = messages
            return rendered
        if text is None:
            return None
        if not isinstance(text, str):
            raise RowError(f"text_input is {shown.kind(text)}: expected text", "text_input is not text")
        if session is not None:
            text = self._texts[session] = self._texts.get(session, "") + text
        return Rendered(text)

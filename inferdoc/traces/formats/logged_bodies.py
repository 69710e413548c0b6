"""Bodies of requests and responses as gateways and tracing systems log them: prompt, answer, token counts.

A body is an object or JSON in a string, and may be cut off or in a form of its own: what cannot be read is ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferdoc.traces.formats.logged_messages import Message, message_of, messages_of
from inferdoc.traces.formats.values import at, decoded, first
from inferdoc.traces.ledger import RowError
from inferdoc.traces.messages import render_body, render_prompt


def prompt_text(request: Any, *, line: int, tools: Any = None) -> str | None:
    """The whole prompt of a request's body (or of its messages) as one text; ``None`` where it cannot be read."""
    body = decoded(request)
    messages = messages_of(body)
    if not messages:
        return None
    if not tools and isinstance(body, Mapping):
        tools = first(body, "tools", "functions", "toolConfig")
    try:
        return render_prompt(messages, row=line, tools=decoded(tools)).text
    except RowError:
        return None


def output_text(response: Any, *, line: int) -> str | None:
    """The answer in a response's body; ``None`` where it cannot be read."""
    message = _answer(decoded(response))
    if message is None:
        return None
    try:
        return render_body(message, row=line, position=0).text
    except RowError:
        return None


def _answer(body: Any) -> Message | None:
    """The first answer of a response as a message."""
    if isinstance(body, str):
        return {"content": body} if body else None
    if isinstance(body, list):
        return _joined(body)
    if not isinstance(body, Mapping):
        return None
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        choice = choices[0]
        return {"content": choice["text"]} if "text" in choice else _answer(choice.get("message"))
    generations = body.get("generations")
    if isinstance(generations, list) and generations:
        generation = generations[0][0] if isinstance(generations[0], list) and generations[0] else generations[0]
        return _answer(at(generation, "message") or at(generation, "text"))
    if isinstance(body.get("generated_text"), str):
        return {"content": body["generated_text"]}
    for inner in (at(body, "output", "message"), body.get("output"), body.get("messages")):
        if inner:
            return _answer(inner)
    found = (
        message_of({"role": "assistant", **body}) if {"content", "parts", "kwargs", "tool_calls"} & set(body) else None
    )
    return found[0] if found else None


def _joined(items: list[Any]) -> Message | None:
    """What the assistant says after the last message of others, as one answer."""
    if items and isinstance(items[0], Mapping) and "generated_text" in items[0]:
        return _answer(items[0])
    messages = messages_of(items)
    if not messages:
        return None
    start = next((n for n in range(len(messages), 0, -1) if messages[n - 1]["role"] != "assistant"), 0)
    answers = messages[start:]
    contents = [message["content"] for message in answers if message["content"]]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    calls = [call for message in answers for call in message["tool_calls"]]
    return {"content": parts, "tool_calls": calls} if answers else None


def usage_of(body: Any) -> dict[str, Any]:
    """Token counts of a response's body by role; of a list of chunks the last counts that there are.

    OpenAI's counts include the cached tokens (``cached_tokens``), Anthropic's and Bedrock's do not (``cache_read``,
    ``cache_creation``).
    """
    body = decoded(body)
    if isinstance(body, list):
        return next((found for chunk in reversed(body) if (found := usage_of(chunk))), {})
    if not isinstance(body, Mapping):
        return {}
    usage = body.get("usage") or at(body, "message", "usage") or at(body, "response", "usage")
    if not isinstance(usage, Mapping):
        return _generation_details(body)
    found = {
        "input_tokens": first(usage, "prompt_tokens", "input_tokens", "inputTokens"),
        "output_tokens": first(usage, "completion_tokens", "output_tokens", "outputTokens"),
        "cached_tokens": cached_inside(usage),
    }
    if "prompt_tokens" not in usage:
        found["cache_read"] = first(usage, "cache_read_input_tokens", "cacheReadInputTokens")
        found["cache_creation"] = first(usage, "cache_creation_input_tokens", "cacheWriteInputTokens")
    return {role: value for role, value in found.items() if value is not None}


def cached_inside(usage: Any) -> Any:
    """Cached tokens that are a part of the input, as OpenAI's APIs detail them."""
    details = (at(usage, name, "cached_tokens") for name in ("prompt_tokens_details", "input_tokens_details"))
    return next((count for count in details if count is not None), None)


def _generation_details(body: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of Text Generation Inference, which it gives under ``details``."""
    details = body.get("details")
    if not isinstance(details, Mapping) or details.get("generated_tokens") is None:
        return {}
    prefill = details.get("prefill")
    counts: dict[str, Any] = {"output_tokens": details["generated_tokens"]}
    return counts | ({"input_tokens": len(prefill)} if isinstance(prefill, list) and prefill else {})

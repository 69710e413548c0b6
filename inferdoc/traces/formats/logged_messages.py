"""Messages of requests in the spellings that gateways and tracing systems log, as Chat Completions writes them.

Read: OpenAI Chat Completions and Responses, Anthropic Messages, Amazon Bedrock Converse, Text Generation Inference,
OpenTelemetry's message parts, OpenInference's flattened messages, LangChain's message objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferdoc.traces.formats.values import at, decoded, first

Message = dict[str, Any]
_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
_LANGCHAIN = {"Human": "user", "AI": "assistant", "System": "system", "Tool": "tool", "Function": "tool"}


def messages_of(value: Any) -> list[Message] | None:
    """The messages of a request's body, of a list or of a text; ``None`` for anything that is not read as such."""
    value = decoded(value)
    if isinstance(value, str):
        return [{"role": "user", "content": value, "tool_calls": []}] if value else None
    if isinstance(value, Mapping):
        return _of_object(value)
    if not isinstance(value, list) or not value:
        return None
    if len(value) == 1 and isinstance(value[0], list | str):
        return messages_of(value[0])
    messages: list[Message] = []
    for item in value:
        found = message_of(item)
        if found is None:
            return None
        messages.extend(found)
    return messages


def _of_object(body: Mapping[str, Any]) -> list[Message] | None:
    for name in ("messages", "input", "prompt", "inputs"):
        if body.get(name):
            messages = messages_of(body[name])
            break
    else:
        messages = message_of(body) if "role" in body else None
    opening = first(body, "system", "instructions")
    if messages is None or not opening:
        return messages
    content = [_part(part) for part in opening] if isinstance(opening, list) else as_text(opening)
    return [{"role": "system", "content": content, "tool_calls": []}, *messages]


def message_of(item: Any) -> list[Message] | None:
    """One entry of a list of messages: usually one message, none for a trace of reasoning; ``None`` if unknown."""
    if not isinstance(item, Mapping):
        return None
    if isinstance(item.get("message"), Mapping) and "role" not in item:
        return message_of(item["message"])
    if isinstance(item.get("kwargs"), Mapping):
        names = item.get("id")
        class_name = str(names[-1]) if isinstance(names, list) and names else ""
        speaker = next((role for name, role in _LANGCHAIN.items() if class_name.startswith(name)), None)
        return message_of({**item["kwargs"], "role": speaker}) if speaker else None
    kind = item.get("type")
    if kind == "function_call":
        return [{"role": "assistant", "content": "", "tool_calls": [{"function": item}]}]
    if kind == "function_call_output":
        return [{"role": "tool", "content": as_text(item.get("output")), "tool_calls": []}]
    if kind == "reasoning" and "role" not in item:
        return []
    role: Any = item.get("role", kind)
    if not isinstance(role, str) or not {"content", "parts", "contents", "tool_calls"} & set(item):
        return None
    return [{"role": _ROLES.get(role, role), **_said(item)}]


def _said(item: Mapping[str, Any]) -> Message:
    """Content and tool calls of a message."""
    calls = item.get("tool_calls") or at(item, "additional_kwargs", "tool_calls")
    calls = [_call(call) for call in calls] if isinstance(calls, list) else []
    content = first(item, "content", "parts", "contents")
    if isinstance(content, Mapping):
        content = as_text(content)
    elif isinstance(content, list):
        content = [_part(part) for part in content]
    return {"content": "" if content is None and not calls else content, "tool_calls": calls}


def _call(call: Any) -> Any:
    inner = call.get("tool_call", call) if isinstance(call, Mapping) else call
    if isinstance(inner, Mapping) and "function" not in inner:
        return {"function": {"name": inner.get("name"), "arguments": first(inner, "arguments", "args")}}
    return inner


def _part(part: Any) -> Any:
    """A part of a message as OpenAI or Anthropic write it."""
    part = part.get("message_content", part) if isinstance(part, Mapping) else part
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type")
    if kind in ("text", "thinking", "reasoning"):
        return {"type": "text", "text": as_text(first(part, "text", "content", "thinking"))}
    if kind == "tool_call":
        return {"type": "tool_use", "name": part.get("name"), "input": part.get("arguments")}
    if kind == "tool_call_response":
        return {"type": "tool_result", "content": as_text(first(part, "response", "result"))}
    if isinstance(part.get("toolUse"), Mapping):
        return {"type": "tool_use", "name": part["toolUse"].get("name"), "input": part["toolUse"].get("input")}
    if isinstance(part.get("toolResult"), Mapping):
        inner = part["toolResult"].get("content")
        return {"type": "tool_result", "content": [_part(one) for one in inner] if isinstance(inner, list) else ""}
    if set(part) == {"json"}:
        return {"type": "text", "text": as_text(part["json"])}
    return part


def as_text(value: Any) -> str:
    """A value as it stands in a prompt: texts as they are, objects as JSON, nothing for ``None``."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)

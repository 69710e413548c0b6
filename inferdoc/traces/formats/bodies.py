"""Bodies of requests and answers of OpenAI-like APIs, which benchmarks and batch files carry.

Chat Completions (``messages``), Responses (``input``), Completions (``prompt``), Triton (``text_input``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferdoc.traces import shown
from inferdoc.traces.formats.requests import mapping
from inferdoc.traces.ledger import RowError
from inferdoc.traces.messages import Rendered, render_body, render_prompt

PROMPTS = ("prompt", "text_input", "text")


def decoded(value: Any, name: str) -> Mapping[str, Any] | None:
    """A body that may be written as a JSON string; ``None`` where there is none.

    Raises:
        RowError: text that is no JSON object.
    """
    if value is None or isinstance(value, Mapping):
        return value
    try:
        found = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    raise RowError(f"{name} is not a JSON object in a string", f"{name} is not a JSON object")


def messages_of(body: Mapping[str, Any]) -> list[Any] | None:
    """The messages of a chat, those of the Responses API in the spelling of Chat Completions.

    Raises:
        RowError: messages that are no list.
    """
    if "messages" in body:
        messages = body["messages"]
        if not isinstance(messages, list) or not messages:
            raise RowError("messages is not a list of messages", "messages is not a list of messages")
        return [{"role": "system", "content": body["system"]}, *messages] if body.get("system") else messages
    if "input" not in body:
        return None
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise RowError("input is neither text nor a list of items", "input is neither text nor a list of items")
    system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    return system + [_message(item) for item in items]


def _message(item: Any) -> Any:
    kind = item.get("type") if isinstance(item, Mapping) else None
    if kind == "function_call":
        return {"role": "assistant", "content": None, "tool_calls": [{"function": item}]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return item


def prompt_of(body: Mapping[str, Any], row: int) -> Rendered | list[int] | None:
    """The prompt as text, or as token ids; ``None`` where the body has none. `row` names parts without identity.

    Raises:
        RowError: a prompt of another kind.
    """
    messages = messages_of(body)
    if messages is not None:
        return render_prompt(messages, row=row, tools=body.get("tools"))
    for name in PROMPTS:
        given = body.get(name)
        if given is None:
            continue
        if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
            given = given[0]
        if isinstance(given, str):
            return Rendered(given)
        if isinstance(given, list) and given and all(type(token) is int and token >= 0 for token in given):
            return given
        what = f"{len(given)} prompts" if isinstance(given, list) else shown.kind(given)
        raise RowError(f"{name} is {what}: expected one text or a list of token ids", f"{name} is not one prompt")
    return None


def asked(body: Mapping[str, Any], row: int) -> tuple[dict[str, Any], Rendered | None]:
    """What the body of a request tells: values by role, and the prompt where it is text.

    Raises:
        RowError: a prompt that cannot be read.
    """
    prompt = prompt_of(body, row)
    values = {"model": body.get("model"), "prompt_ids": prompt if isinstance(prompt, list) else None}
    return values, prompt if isinstance(prompt, Rendered) else None


def answer_of(body: Mapping[str, Any]) -> str | None:
    """The text of an answer; ``None`` where it is not recorded, or where there are several."""
    message: Any = None
    choices = body.get("choices")
    if isinstance(choices, list) and len(choices) == 1:
        choice = mapping(choices[0])
        message = choice.get("message")
        if message is None and isinstance(choice.get("text"), str):
            return str(choice["text"])
    elif isinstance(body.get("output"), list):
        contents = [mapping(item).get("content") for item in body["output"] if mapping(item).get("type") == "message"]
        message = {"content": [part for content in contents if isinstance(content, list) for part in content]}
    elif isinstance(body.get("content"), list):
        message = body
    try:
        return render_body(message, row=0, position=0).text if isinstance(message, Mapping) else None
    except RowError:
        return None


def usage_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts by role, of producers whose input INCLUDES cached tokens (OpenAI, vLLM, SGLang)."""
    usage = mapping(body.get("usage"))
    details = mapping(usage.get("prompt_tokens_details")) or mapping(usage.get("input_tokens_details"))
    return {
        "input_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
        "output_tokens": usage.get("completion_tokens", usage.get("output_tokens")),
        "cached_tokens": details.get("cached_tokens"),
    }

"""What the attributes of model-call spans mean, in the names of several conventions, the newest first.

Sources: OpenTelemetry's semantic conventions for generative AI (``gen_ai.*``; input tokens include cached ones),
OpenInference (``llm.*``, ``openinference.span.kind``), OpenLLMetry's earlier names, vLLM's own spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from inferdoc.traces.formats.logged_bodies import output_text, prompt_text
from inferdoc.traces.formats.logged_messages import messages_of
from inferdoc.traces.formats.values import decoded, first

Attributes = Mapping[str, Any]
Kind = Literal["call", "embeddings", "other"]

ROLES: dict[str, tuple[str, ...]] = {
    "input_tokens": (
        "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens", "llm.token_count.prompt",
    ),
    "output_tokens": (
        "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens",
        "llm.token_count.completion",
    ),
    "cached_tokens": (
        "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.input_cached_tokens", "cache_read_input_tokens", "input_cached_tokens",
        "llm.token_count.prompt_details.cache_read",
    ),
    "cache_creation": (
        "gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens",
        "cache_creation_input_tokens", "llm.token_count.prompt_details.cache_write",
    ),
    "model": ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
    "session": (
        "gen_ai.conversation.id", "session.id", "exgentic.session.id", "gen_ai.session.id", "langfuse.session.id",
        "traceloop.association.properties.session_id",
    ),
    "ttft_s": ("gen_ai.latency.time_to_first_token", "gen_ai.server.time_to_first_token"),
    "queue_s": ("gen_ai.latency.time_in_queue",),
    "e2e_s": ("gen_ai.latency.e2e",),
}  # fmt: skip
"""Attribute names by role; latencies in seconds."""
_CALLS = ("chat", "text_completion", "completion", "generate_content", "responses", "llm", "message")
_INPUTS = ("gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages", "llm.prompts")
_OUTPUTS = ("gen_ai.output.messages", "gen_ai.output.text", "gen_ai.completion", "llm.output_messages")
_TOOLS = ("gen_ai.tool.definitions", "gen_ai.request.tools", "llm.tools", "llm.request.functions")
_EVENT_ROLES = {"gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.tool.message": "tool",
                "gen_ai.assistant.message": "assistant"}  # fmt: skip


def flat(attributes: Any) -> dict[str, Any]:
    """Nested attributes under dotted names; lists of plain values stay lists."""
    return dict(_leaves("", attributes)) if isinstance(attributes, Mapping) else {}


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{prefix}{name}.", inner)
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for position, inner in enumerate(value):
            yield from _leaves(f"{prefix}{position}.", inner)
    else:
        yield prefix[:-1], value


def kind_of(attributes: Attributes) -> Kind:
    """Whether a span is a model's call. Agents, tools and frameworks wrap calls in spans of their own."""
    kind = first(attributes, "openinference.span.kind", "span_kind")
    operation = first(attributes, "gen_ai.operation.name", "llm.request.type")
    named = str(kind if kind is not None else operation).lower()
    if named.startswith("embedding"):
        return "embeddings"
    if kind is not None or operation is not None:
        return "call" if named in _CALLS else "other"
    counted = any(name in attributes for name in (*ROLES["input_tokens"], *ROLES["output_tokens"]))
    return "call" if counted or _structured(attributes, _INPUTS) is not None else "other"


def roles_of(attributes: Attributes) -> dict[str, Any]:
    """The values that the attributes give, by role."""
    found = {role: first(attributes, *names) for role, names in ROLES.items()}
    return {role: value for role, value in found.items() if value is not None}


def texts_of(attributes: Attributes, events: list[Attributes], *, line: int) -> dict[str, str | None]:
    """Prompt and answer as texts, from attributes or from the span's events; ``None`` where they cannot be read."""
    merged = {**attributes, **_of_events(events)}
    tools = _structured(merged, _TOOLS)
    asked = messages_of(_structured(merged, _INPUTS))
    opening = _structured(merged, ("gen_ai.system_instructions",))
    if asked and opening:
        parts = opening if isinstance(opening, list) else [{"type": "text", "text": str(opening)}]
        asked = [*(messages_of([{"role": "system", "content": parts}]) or []), *asked]
    return {
        "prompt_text": prompt_text(asked, line=line, tools=tools) if asked else None,
        "output_text": output_text(_structured(merged, _OUTPUTS), line=line),
    }


def _of_events(events: list[Attributes]) -> dict[str, Any]:
    """Messages that an older convention, or a newer one, writes as events of the span."""
    messages: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for event in events:
        name = event.get("name")
        if name in _EVENT_ROLES:
            calls = decoded(event.get("tool_calls"))
            messages.append(
                {
                    "role": event.get("role", _EVENT_ROLES[str(name)]),
                    "content": event.get("content"),
                    "tool_calls": calls if isinstance(calls, list) else [],
                }
            )
        elif name == "gen_ai.choice":
            message = _structured(event, ("message",)) or event.get("content")
            found.setdefault("gen_ai.output.messages", [message] if isinstance(message, Mapping) else message)
        else:
            found |= {key: value for key, value in event.items() if key.startswith("gen_ai.")}
    return found | ({"gen_ai.input.messages": messages} if messages else {})


def _structured(attributes: Attributes, names: tuple[str, ...]) -> Any:
    """The first of `names` that is there: as a value, as JSON in a string, or spread over ``name.0.role`` and so on."""
    for name in names:
        if attributes.get(name) is not None:
            return decoded(attributes[name])
        spread = {key[len(name) + 1 :]: value for key, value in attributes.items() if key.startswith(f"{name}.")}
        if spread:
            return _nested(spread)
    return None


def _nested(spread: Mapping[str, Any]) -> Any:
    """Dotted names back to objects, and to lists where the names are numbers."""
    groups: dict[str, dict[str, Any]] = {}
    for path, value in spread.items():
        head, _, rest = path.partition(".")
        groups.setdefault(head, {})[rest] = value
    built = {head: inner[""] if set(inner) == {""} else _nested(inner) for head, inner in groups.items()}
    if all(head.isdigit() for head in built):
        return [built[head] for head in sorted(built, key=int)]
    return built

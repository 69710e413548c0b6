"""Chat JSONL: ``messages``, as in fine-tuning files and request logs.

The last message is the output where it is the assistant's; otherwise the output length comes from ``output_length``
or ``usage``. Other fields (session, time, model, latencies) are found by name: see `inferdoc.traces.aliases`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from inferdoc.traces import aliases, shown
from inferdoc.traces.columns import text_column
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.format import Format
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered, render_body, render_prompt
from inferdoc.traces.records import Record

_BULK = ("messages", "tools", "usage", "system")
_USAGE = (
    "prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens",
    "cache_creation_input_tokens",
)  # fmt: skip

_OF_THE_ANSWER, _ANSWERS = "created", ("usage", "choices", "response")
"""The time that the body of an answer carries, and what else such bodies have."""


def read(records: Iterable[Record], ledger: Ledger) -> Draft:
    lines: list[int] = []
    prompts: list[Rendered] = []
    outputs: list[str | None] = []
    others: list[dict[str, Any]] = []
    unanswerable: list[int] = []
    answered = False
    for line, record in records:
        try:
            asked, answer = _split(record)
            if not asked:
                unanswerable.append(line)
                continue
            prompt = render_prompt(asked, row=line, tools=record.get("tools"))
            output = None if answer is None else render_body(answer, row=line, position=len(asked)).text
        except RowError as error:
            ledger.refuse(line, str(error), error.reason)
            continue
        lines.append(line)
        prompts.append(prompt)
        outputs.append(output)
        others.append(_flat(record))
        answered = answered or any(isinstance(record.get(name), Mapping | list) for name in _ANSWERS)
    ledger.leave_out(unanswerable, "an answer without a prompt")
    names, units = aliases.match({name: None for other in others for name in other})
    notes = media_notes(prompts)
    if names.get("arrival") == _OF_THE_ANSWER and answered:
        # Any other time is rather that of the request.
        named = {name: None for other in others for name in other if name != _OF_THE_ANSWER}
        again, units_again = aliases.match(named)
        if "arrival" in again:
            names, units = again, units_again
        else:
            notes.append(
                "created is the time at which the answer was made, in whole seconds, and the only time recorded: rates"
                " and burstiness are those of completions, not of arrivals"
            )
    names = {role: name for role, name in names.items() if role not in ("prompt_text", "output_text")}
    return Draft(
        format="chat",
        lines=pl.Series(lines, dtype=pl.Int64),
        cells={role: text_column(other.get(name) for other in others) for role, name in names.items()},
        names=names,
        units=units,
        ready={
            "prompt_text": text_column(prompt.text for prompt in prompts),
            "output_text": text_column(outputs),
        },
        notes=notes,
    )


def media_notes(prompts: Sequence[Rendered]) -> list[str]:
    """What is not text in the prompts, and for how many requests it has no identity."""
    notes = []
    with_media = sum(prompt.media > 0 for prompt in prompts)
    if with_media:
        notes.append(f"{with_media:,} requests carry images, audio or files: their own tokens are not counted")
    unnamed = sum(prompt.unnamed > 0 for prompt in prompts)
    if unnamed:
        notes.append(
            f"{unnamed:,} requests carry images, audio or files without address, data or id:"
            " each is taken as different from all others, so that no prefix is shared from there on"
        )
    return notes


def _split(record: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], Mapping[str, Any] | None]:
    """The messages of the prompt, and the answer where the record has it."""
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RowError(
            f"messages is {shown.kind(messages)}: expected a list of messages", "messages is not a list of messages"
        )
    last = messages[-1]
    answer = last if isinstance(last, Mapping) and last.get("role") == "assistant" else None
    asked = messages[:-1] if answer is not None else messages
    if asked and record.get("system"):
        asked = [{"role": "system", "content": record["system"]}, *asked]
    return asked, answer


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without its texts, with the counts inside ``usage`` beside the others."""
    flat = {name: value for name, value in record.items() if name not in _BULK}
    usage = record.get("usage")
    if not isinstance(usage, Mapping):
        return flat
    flat |= {name: usage[name] for name in _USAGE if name in usage and name not in flat}
    for details in ("prompt_tokens_details", "input_tokens_details"):
        inner = usage.get(details)
        if isinstance(inner, Mapping) and "cached_tokens" in inner:
            flat.setdefault("cached_tokens", inner["cached_tokens"])
    return flat


FORMAT = Format("chat", "chat JSONL", lambda record: isinstance(record.get("messages"), list), read)

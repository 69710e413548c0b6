"""Made-up wordings for training: the same kinds of text as the worded ones, but each in sentences never seen before.

A model that saw a few hundred templates alone would learn those by heart and be at a loss with any others. So most
training samples have a wording of their own, drawn word by word from the dictionary by the ``free_...`` rules of
``wording/train.yaml``. What stays to be learned is what holds in every text: word order, and to copy what was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferdoc.data.templates import Filler, upper_first

_KEPT = {name: f"{{{name}}}" for name in ("entity", "thing", "part", "trouble", "value", "sentence")}
"""Slots that an improvised template keeps as slots."""

_ARGUMENT_VALUES = ("{code}", "{code}", "{2-99}", "{day}", "{part}", "{name}", "{8-23}:{10-59}", "{adjective}")


def improvise(filler: Filler) -> Mapping[str, Any]:
    """Return a new wording, good for one document or conversation, that stands in for the lists of ``train.yaml``."""

    def several(key: str, count: int) -> list[str]:
        return [upper_first(filler.write_raw(key, **_KEPT)) for _ in range(count)]

    def lead(key: str, slot: str) -> list[str]:
        return [f"{text} {slot}" for text in several(key, 2)]

    heading, asking = (filler.write_raw("free_part") for _ in range(2))
    return {
        "domains": [_domain(filler)],
        "titles": several("free_title", 1),
        "intros": several("free_intro", 2),
        "outros": several("free_sentence", 2),
        "essays": several("free_about", 12),
        "rag_rules": several("free_sentence", 12),
        "rag_user": [f"{upper_first(heading)}:\n{{passages}}\n\n{upper_first(asking)}: {{question}}"],
        "rag_all": several("free_question", 2),
        "rag_quote": lead("free_answer", '"{sentence}"'),
        "rag_more": lead("free_lead", '"{sentence}"'),
        "rag_close": lead("free_lead", "{value}."),
        "chat_rules": several("free_sentence", 8),
        "chat_first": several("free_first", 2),
        "chat_next": several("free_next", 5),
        "chat_long": several("free_sentence", 1),
        "chat_short": several("free_short", 6),
        "chat_reply": several("free_about", 10),
        "chat_step": several("free_about", 8),
        "chat_steps": several("free_lead", 1),
        "task": several("free_task", 2),
        "tools_head": several("free_sentence", 1),
        "tools_rules": several("free_sentence", 6),
        "thoughts": several("free_about", 3),
        "reports": several("free_lead", 1),
        "agent_short": [f"Action: {filler.write_raw('verb')}" for _ in range(3)],
        "ledger_head": several("free_sentence", 1),
        "ledger_again": several("free_lead", 1),
        **_calls(filler),
    }


def _domain(filler: Filler) -> Mapping[str, Any]:
    facts = [
        {
            "ask": upper_first(filler.write_raw("free_question", **_KEPT)),
            "say": [f"{upper_first(filler.write_raw('free_fact', **_KEPT))}."],
            "value": filler.write_raw("free_value"),
        }
        for _ in range(5)
    ]
    return {
        "thing": filler.write_raw("free_part"),
        "parts": [filler.write_raw("free_part") for _ in range(6)],
        "troubles": [filler.write_raw("free_trouble") for _ in range(3)],
        "facts": facts,
        "remarks": [upper_first(filler.write_raw("free_sentence", **_KEPT)) for _ in range(3)],
    }


def _calls(filler: Filler) -> Mapping[str, Any]:
    """Tools, the values of their arguments, and observations that name those values."""
    names = filler.sample(sorted({filler.write_raw("noun") for _ in range(12)}), 7)
    arguments = {name: filler.pick(_ARGUMENT_VALUES) for name in names}
    tools = [
        {
            "name": filler.write_raw("free_tool"),
            "about": filler.write_raw("free_order"),
            "arguments": filler.sample(names, filler.between(1, 3)),
        }
        for _ in range(8)
    ]
    observations = []
    for _ in range(4):
        first, second, third = filler.sample(names, 3)
        told = filler.expand("{noun}: FIRST {verbed}, {adjective} SECOND, {noun} THIRD.")
        for word, shown in (("FIRST", f"{first} {{{first}}}"), ("SECOND", f"{second} {{{second}}}"), ("THIRD", third)):
            told = told.replace(word, f"{{{shown}}}" if word == "THIRD" else shown)
        observations.append(upper_first(told))
    return {"tools": tools, "arguments": arguments, "observations": observations}

"""Made-up wordings for training: the same kinds of text as the worded ones, but each in sentences never seen before.

A model that saw a few hundred templates alone would learn those by heart and be at a loss with any others. So most
training samples have a wording of their own, drawn word by word from the dictionary by the ``free_...`` rules of
``wording/train.yaml``. What stays to be learned is what holds in every text: word order, and to copy what was said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferdoc.data.templates import Filler, upper_first

_KEPT = {name: f"{{{name}}}" for name in ("entity", "thing", "part", "trouble", "value", "sentence")}
"""Slots that an improvised template keeps as slots."""

_RECIPES = {
    "titles": ("free_title", 1, ""),
    "intros": ("free_intro", 2, ""),
    "outros": ("free_sentence", 2, ""),
    "essays": ("free_about", 12, ""),
    "rag_rules": ("free_sentence", 12, ""),
    "rag_all": ("free_question", 2, ""),
    "rag_quote": ("free_answer", 2, ' "{sentence}"'),
    "rag_more": ("free_lead", 2, ' "{sentence}"'),
    "rag_close": ("free_lead", 2, " {value}."),
    "chat_rules": ("free_sentence", 8, ""),
    "chat_first": ("free_first", 2, ""),
    "chat_next": ("free_next", 5, ""),
    "chat_long": ("free_sentence", 1, ""),
    "chat_short": ("free_short", 6, ""),
    "chat_reply": ("free_about", 10, ""),
    "chat_step": ("free_about", 8, ""),
    "chat_steps": ("free_lead", 1, ""),
    "task": ("free_task", 2, ""),
    "tools_head": ("free_sentence", 1, ""),
    "tools_rules": ("free_sentence", 6, ""),
    "thoughts": ("free_about", 3, ""),
    "reports": ("free_lead", 1, ""),
    "ledger_head": ("free_sentence", 1, ""),
    "ledger_again": ("free_lead", 1, ""),
}
"""List: the rule that makes its templates, how many, and what is put behind each."""

_OTHERS = ("domains", "rag_user", "agent_short", "tools", "arguments", "observations")

_ARGUMENT_VALUES = ("{code}", "{code}", "{2-99}", "{day}", "{part}", "{name}", "{8-23}:{10-59}", "{adjective}")


class Improvisation(Mapping[str, Any]):
    """A new wording, good for one document or conversation, that stands in for lists of ``train.yaml``.

    Each list is made up when it is first asked for.
    """

    def __init__(self, filler: Filler) -> None:
        self._filler = filler
        self._made: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def __contains__(self, key: object) -> bool:
        return key in _RECIPES or key in _OTHERS

    def __iter__(self) -> Iterator[str]:
        return iter((*_RECIPES, *_OTHERS))

    def __len__(self) -> int:
        return len(_RECIPES) + len(_OTHERS)

    def _make(self, key: str) -> Any:
        if key in _RECIPES:
            rule, count, ending = _RECIPES[key]
            return [upper_first(self._filler.write_raw(rule, None, **_KEPT)) + ending for _ in range(count)]
        if key == "domains":
            return [_domain(self._filler)]
        if key == "rag_user":
            heading, asking = (upper_first(self._filler.write_raw("free_part")) for _ in range(2))
            return [f"{heading}:\n{{passages}}\n\n{asking}: {{question}}"]
        if key == "agent_short":
            return [f"Action: {self._filler.write_raw('verb')}" for _ in range(3)]
        self._made.update(_calls(self._filler))
        return self._made[key]


def _domain(filler: Filler) -> Mapping[str, Any]:
    facts = [
        {
            "ask": upper_first(filler.write_raw("free_question", None, **_KEPT)),
            "say": [f"{upper_first(filler.write_raw('free_fact', None, **_KEPT))}."],
            "value": filler.write_raw("free_value"),
        }
        for _ in range(5)
    ]
    return {
        "thing": filler.write_raw("free_part"),
        "parts": [filler.write_raw("free_part") for _ in range(6)],
        "troubles": [filler.write_raw("free_trouble") for _ in range(3)],
        "facts": facts,
        "remarks": [upper_first(filler.write_raw("free_sentence", None, **_KEPT)) for _ in range(3)],
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

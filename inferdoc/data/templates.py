"""Sentence templates and how they are filled in from one seed.

All wording lies in ``wording/*.yaml`` and was written for this project. There are two splits. They share short phrases
(``shared.yaml``, at most four words each), single words (``dictionary.yaml``) and code, and nothing else: domains,
names, templates, system prompts, questions and tools of ``Split.HELDOUT`` never occur in ``Split.TRAIN``.
"""

from __future__ import annotations

import enum
import functools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

_SLOT = re.compile(r"\{([a-z_]+|\d+-\d+)\}")


class Split(enum.StrEnum):
    """TRAIN is what the models see; HELDOUT is what they are measured on."""

    TRAIN = "train"
    HELDOUT = "heldout"


@dataclass(frozen=True)
class Case:
    """What one chat or agent session is about: slots that keep their value through the whole session."""

    domain: Mapping[str, Any]
    bound: Mapping[str, str]

    @property
    def lists(self) -> Mapping[str, Sequence[str]]:
        """The lists of the domain, which stand before those of the split."""
        return {"thing": [self.domain["thing"]], "part": self.domain["parts"], "trouble": self.domain["troubles"]}


@functools.cache
def read_wording(name: str) -> Mapping[str, Any]:
    """Return the wording file `name` (``train``, ``heldout``, ``shared`` or ``dictionary``) as lists and mappings."""
    text = resources.files("inferdoc.data").joinpath("wording", f"{name}.yaml").read_text(encoding="utf-8")
    wording: Mapping[str, Any] = yaml.load(text, Loader=yaml.BaseLoader)  # "off" and "yes" are words
    return wording


@functools.cache
def read_dictionary() -> Mapping[str, tuple[str, ...]]:
    """Return single words by part of speech, with the regular forms made from the bare ones; ``word`` holds them all.

    The tokenizer and the models so know more words than the templates have.
    """
    listed: Mapping[str, list[str]] = read_wording("dictionary")
    forms = {
        **listed,
        "nouns": [_with_s(noun) for noun in listed["noun"]],
        "verbs": [_with_s(verb) for verb in listed["verb"]],
        "verbed": [_with_ending(verb, "ed") for verb in listed["verb"]],
        "verbing": [_with_ending(verb, "ing") for verb in listed["verb"]],
    }
    everything = sorted({word for words in forms.values() for word in words})
    return {name: tuple(words) for name, words in forms.items()} | {"word": tuple(everything)}


def _with_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    return f"{word[:-1]}ies" if _ends_in_consonant_y(word) else f"{word}s"


def _with_ending(verb: str, ending: str) -> str:
    """Verbs that double their last consonant come out misspelt; they are few and it does no harm."""
    if verb.endswith("e"):
        return verb[:-1] + ending
    return f"{verb[:-1]}i{ending}" if ending == "ed" and _ends_in_consonant_y(verb) else verb + ending


def _ends_in_consonant_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in "aeiou"


class Filler:
    """Draws from the wording of one split, from one seed.

    Only ``random.Random.random`` is drawn from: it is the one method whose sequence Python promises to keep.
    """

    def __init__(self, split: Split, seed: int | str) -> None:
        self._random = random.Random(f"{split.value}:{seed}")
        self._own = {**read_dictionary(), **read_wording("shared"), **read_wording(split.value)}
        self._instead: Mapping[str, Any] = {}

    def uniform(self) -> float:
        """A float in [0, 1)."""
        return self._random.random()

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self.uniform() * (high - low + 1))

    def pick(self, options: Sequence[Any]) -> Any:
        """One of `options`."""
        return options[self.between(0, len(options) - 1)]

    def sample(self, options: Sequence[Any], count: int) -> list[Any]:
        """`count` different items of `options` (all of them where there are fewer), in random order."""
        left = list(options)
        return [left.pop(self.between(0, len(left) - 1)) for _ in range(min(count, len(left)))]

    def write(self, key: str, case: Case | None = None, **bound: str) -> str:
        """A random template of the list `key`, filled in."""
        return self.fill(self.pick(self.entry(key)), case, **bound)

    def write_raw(self, key: str, case: Case | None = None, **bound: str) -> str:
        """As `write`, but without the capital letter."""
        return self.expand(self.pick(self.entry(key)), case, **bound)

    def reword(self, wording: Mapping[str, Any] | None = None) -> None:
        """Let the lists of `wording` stand in for the split's own from now on; None goes back to those."""
        self._instead = wording or {}

    def has(self, key: str) -> bool:
        """Whether there is a list or text `key`."""
        return key in self._own

    def entry(self, key: str) -> Any:
        """The list or text `key`."""
        return self._instead[key] if key in self._instead else self._own[key]

    def fill(self, template: str, case: Case | None = None, **bound: str) -> str:
        """Fill the slots of `template` and begin with a capital letter: see `expand`."""
        return upper_first(self.expand(template, case, **bound))

    def expand(self, template: str, case: Case | None = None, **bound: str) -> str:
        """Fill the slots of `template`.

        ``{3-40}`` is a number, ``{name}`` and ``{code}`` are made up; any other slot comes from `bound`, from `case`,
        or from the list of that name, whose entries may have slots of their own.
        """

        def replace(match: re.Match[str]) -> str:
            slot = match[1]
            if slot in bound:
                return bound[slot]
            if case and slot in case.bound:
                return case.bound[slot]
            if slot == "name":
                return self._name()
            if slot == "code":
                return self._code()
            if slot[0].isdigit():
                low, high = slot.split("-")
                return str(self.between(int(low), int(high)))
            options = case.lists[slot] if case and slot in case.lists else self.entry(slot)
            return _SLOT.sub(replace, self.pick(options))

        return _SLOT.sub(replace, template)

    def _name(self) -> str:
        names = self.entry("names")
        return "".join(self.pick(names[part]) for part in ("starts", "middles", "ends"))

    def _code(self) -> str:
        letters = self.entry("code_letters")
        return f"{self.pick(letters)}{self.pick(letters)}-{self.between(1000, 9999)}"


def upper_first(text: str) -> str:
    """`text` with its first letter in upper case, the rest as it is."""
    return text[:1].upper() + text[1:]

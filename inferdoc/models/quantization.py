"""Which weights a checkpoint keeps in fewer bits, and how many bits each of them takes, scales included."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import cached_property

# Bits a weight of the recipes that sizing can ask about. int8 and fp8: one 16-bit scale for an output row of about
# 4,096 weights. int4: groups of 128 with a 16-bit scale and a 4-bit zero point, as GPTQ and AWQ store them.
ROW = 4096
RECIPE_BITS = {"int8": 8 + 16 / ROW, "fp8": 8 + 16 / ROW, "int4": 4 + 20 / 128}

_EVERY = "Linear"
"""A target that is a class: every linear module that no name claims."""


@dataclass(frozen=True)
class Names:
    """Modules by name: dotted names or pieces of them, names with wildcards, ``re:`` and an expression."""

    given: tuple[str, ...] = ()

    def hold(self, module: str, stored: str) -> bool:
        """Whether `module` is one of them. `stored`: a name of the same weights in the file (one expert of many)."""
        parts = _plain(module).split(".")
        runs = {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}
        if not self._exact.isdisjoint(runs):
            return True
        return any(_matches(pattern, name) for pattern in self._patterns for name in {module, stored})

    @cached_property
    def _exact(self) -> frozenset[str]:
        """Names without wildcards; files list thousands of them, one for each layer and expert."""
        return frozenset(_plain(name) for name in self.given if not _is_pattern(name))

    @cached_property
    def _patterns(self) -> tuple[str, ...]:
        return tuple(name for name in self.given if _is_pattern(name))


@dataclass(frozen=True)
class Part:
    """Weights that a scheme stores alike.

    bits: of a weight, scales included; ``None`` for weights that stay as they are. rows, columns: of the outputs and
    inputs that one scale covers, and that a server does not cut between ranks; 1 where cuts are free.
    targets: the modules; ``Linear`` for all that no other part names.
    """

    bits: float | None
    rows: int = 1
    columns: int = 1
    targets: tuple[str, ...] = (_EVERY,)

    @cached_property
    def names(self) -> Names:
        """The targets without classes. A file names experts one by one; a class holds those of a layer together."""
        listed = (re.sub(r"(\.experts)\.\d.*", r"\1", name) for name in self.targets if name != _EVERY)
        return Names(tuple(dict.fromkeys(listed)))


@dataclass(frozen=True)
class Scheme:
    """One checkpoint's quantization.

    name: as the file says it, for example ``fp8`` or ``gptq (4 bits)``; ``None`` where only the cache is narrow.
    parts: what is stored how; empty where this version cannot size it, and `why` says what it did not know.
    excluded: patterns of modules that stay 16-bit. experts_only: the method covers routed experts alone.
    kv_dtype: cache type that the file asks for, ``fp8`` or ``None``.
    """

    name: str | None
    parts: tuple[Part, ...] = ()
    excluded: tuple[str, ...] = ()
    experts_only: bool = False
    kv_dtype: str | None = None
    why: str | None = None

    def part_of(self, module: str, *, expert: bool, leaf: str = "weight") -> Part | None:
        """How the linear module `module` is stored (dotted name, routed experts as one module); ``None``: plainly.

        leaf: name of the weights in it, which tells the matrices of stacked experts apart.
        """
        if self.experts_only and not expert:
            return None
        stored = f"{module}.0.{'gate_proj' if leaf == 'gate_up_proj' else leaf}" if expert else module
        if self._excluded.hold(module, stored):
            return None
        claimed = next((part for part in self.parts if part.names.given and part.names.hold(module, stored)), None)
        part = claimed or next((part for part in self.parts if _EVERY in part.targets), None)
        return part if part is not None and part.bits is not None else None

    @property
    def is_uniform(self) -> bool:
        """Whether every module that is not excluded is stored alike, so that no names are needed to count them."""
        return len(self.parts) == 1 and _EVERY in self.parts[0].targets

    @cached_property
    def _excluded(self) -> Names:
        return Names(self.excluded)


def _is_pattern(name: str) -> bool:
    return "*" in name or name.startswith("re:")


def _matches(pattern: str, module: str) -> bool:
    """A pattern is ``re:`` and an expression over the whole name, or has wildcards for a module or what is in it."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    wanted, name = _plain(pattern), _plain(module)
    return fnmatch.fnmatch(name, wanted) or fnmatch.fnmatch(name, f"{wanted}.*")


def _plain(name: str) -> str:
    """`name` without the wrappers that differ between a checkpoint and the class that reads it."""
    return re.sub(r"^(?:model|language_model|transformer)\.", "", re.sub(r"^(?:model|language_model)\.", "", name))

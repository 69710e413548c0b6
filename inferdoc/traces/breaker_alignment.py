"""Where two prompts that agree later differ: anchors, the earlier prompt that shares most, and common runs in order.

Prompts are arrays of units: code points of a text, or token ids. Anchors are windows whose hash is the least among its
neighbours (winnowing: Schleimer, Wilkerson and Aiken 2003), so two prompts that share a stretch of
``window + spread - 1`` units share an anchor in it, wherever it stands. Time is linear in the units.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Units = npt.NDArray[np.uint64]
_MIX, _BASE, _WORD = np.uint64(0x9E3779B97F4A7C15), 0xD6E8FEB86659FD93, 2**64
_CANDIDATES = 4
_TRIED, _LOOKED_AHEAD = 8, 64
_FIRST_COMPARED = 256


@dataclass(frozen=True)
class Grain:
    """How finely prompts are compared, in units; `window` and `spread` are powers of two."""

    window: int
    spread: int
    run: int
    """Shortest common stretch that counts as agreeing again."""


CHARACTERS = Grain(window=32, spread=16, run=64)
TOKENS = Grain(window=8, spread=8, run=16)


@dataclass(frozen=True)
class Run:
    """A stretch that two prompts share: from `a` in the later one, from `b` in the earlier one."""

    a: int
    b: int
    length: int


class Prompt:
    """One prompt's units and its anchors."""

    def __init__(self, units: Units, grain: Grain) -> None:
        self.units = units
        self.places, self.hashes = anchors(units, grain)
        self.content = frozenset(self.hashes)

    @cached_property
    def places_of(self) -> Mapping[int, Sequence[int]]:
        """Places of each anchor, in order."""
        found: dict[int, list[int]] = {}
        for place, value in zip(self.places, self.hashes, strict=True):
            found.setdefault(value, []).append(place)
        return found


class Earlier:
    """The prompts seen so far, to find the one that shares most with a new one."""

    def __init__(self) -> None:
        self._prompts: dict[int, Prompt] = {}
        self._latest: dict[int, int] = {}

    def partner(self, prompt: Prompt) -> int | None:
        """The earlier prompt with most anchors in common (the latest of several), ``None`` where none has any."""
        votes = Counter(self._latest[value] for value in prompt.content if value in self._latest)
        leading = sorted(votes, key=lambda index: (votes[index], index))[-_CANDIDATES:]
        shared = [(len(prompt.content & self._prompts[index].content), index) for index in leading]
        return max(shared)[1] if shared else None

    def add(self, index: int, prompt: Prompt) -> None:
        self._prompts[index] = prompt
        self._latest.update(dict.fromkeys(prompt.content, index))


def anchors(units: Units, grain: Grain) -> tuple[list[int], list[int]]:
    """Places and hashes of the windows that are the least of some `spread` neighbouring windows."""
    hashes = _window_hashes(units, grain.window)
    if not len(hashes):
        return [], []
    if len(hashes) < grain.spread:
        chosen = np.array([hashes.argmin()])
    else:
        least = _sliding(np.minimum, hashes, grain.spread)
        around = np.zeros(grain.spread - 1, np.uint64)
        chosen = np.flatnonzero(hashes == _sliding(np.maximum, np.concatenate((around, least, around)), grain.spread))
    return chosen.tolist(), hashes[chosen].tolist()


def common_prefix(a: Units, b: Units) -> int:
    """Units in which `a` and `b` agree from their starts."""
    longest, start, step = min(len(a), len(b)), 0, _FIRST_COMPARED
    while start < longest:
        end = min(start + step, longest)
        differs = a[start:end] != b[start:end]
        if differs.any():
            return start + int(differs.argmax())
        start, step = end, 2 * step
    return longest


def align(later: Prompt, earlier: Prompt, grain: Grain) -> list[Run]:
    """Common runs in the order of both prompts. The first is the common prefix (perhaps empty); the others have at
    least `grain.run` units. Where several anchors agree, the one that skips least is taken."""
    a, b = later.units, earlier.units
    runs = [Run(0, 0, common_prefix(a, b))]
    at_a = at_b = runs[0].length
    next_anchor = bisect_left(later.places, at_a)
    while next_anchor < len(later.places) and len(b) - at_b >= grain.run:
        place = _nearest(later, earlier.places_of, next_anchor, at_a, at_b)
        if place is None:
            break
        next_anchor, in_a, in_b = place
        before = common_prefix(a[at_a:in_a][::-1], b[at_b:in_b][::-1])
        run = Run(in_a - before, in_b - before, before + common_prefix(a[in_a:], b[in_b:]))
        if run.length >= grain.run:
            runs.append(run)
            at_a, at_b = run.a + run.length, run.b + run.length
            next_anchor = bisect_left(later.places, at_a)
        else:
            next_anchor += 1
    return runs


def _nearest(
    later: Prompt, places_of: Mapping[int, Sequence[int]], first: int, at_a: int, at_b: int
) -> tuple[int, int, int] | None:
    """Index and both places of the common anchor that skips least, of the first few from `first` on."""
    best, least, tried, found_at = None, 0, 0, first
    for index in range(first, len(later.places)):
        place = later.places[index]
        if best and (tried >= _TRIED or index - found_at >= _LOOKED_AHEAD or place - at_a >= least):
            break
        there = places_of.get(later.hashes[index])
        found = bisect_left(there, at_b) if there else 0
        if not there or found == len(there):
            continue
        tried += 1
        skipped = place - at_a + there[found] - at_b
        if best is None or skipped < least:
            best, least, found_at = (index, place, there[found]), skipped, index if best is None else found_at
    return best


def _window_hashes(units: Units, window: int) -> Units:
    hashes, width, base = units * _MIX, 1, _BASE
    hashes ^= hashes >> np.uint64(31)
    while width < window and len(hashes) > width:
        hashes = hashes[:-width] * np.uint64(base) + hashes[width:]
        width, base = 2 * width, base * base % _WORD
    if width < window:
        return hashes[:0]
    hashes ^= hashes >> np.uint64(29)
    return hashes * _MIX


def _sliding(least: np.ufunc, values: Units, size: int) -> Units:
    width = 1
    while width < size:
        values = least(values[:-width], values[width:])
        width *= 2
    return values

"""Pieces of a prompt that stand elsewhere in another one: short sequences of words (tokens) of what is not aligned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from inferdoc.traces.breaker_gaps import Gap

Pieces = Sequence[tuple[Hashable, int]]
"""Words or tokens, each with the place behind its end."""
_IN_SEQUENCE = 4
_FEWEST = 8
"""Sequences in common from which on they are no chance."""
_MOST = 0.5


@dataclass(frozen=True)
class Moved:
    """A stretch of both prompts that holds mostly the same pieces in another order."""

    gap: Gap
    last: int
    """Index of the last gap in it."""


def moved(gaps: Sequence[Gap], at: int, tail: Gap, pieces_of: Callable[[bool, int, int], Pieces]) -> Moved | None:
    """The stretch from the gap `at` on in which pieces change places, ``None`` where most of them are in one prompt.

    Args:
        tail: what comes behind the last stretch that the prompts share in order.
        pieces_of: the pieces of the later prompt (of the earlier one where false) between two places.
    """
    stretches = [*gaps[at:], tail]
    sides = [[_sequences(pieces_of(later, *_span(stretch, later))) for stretch in stretches] for later in (True, False)]
    known = [{sequence for found in side for sequence, _ in found} for side in sides]
    here = [sequence in known[not side] for side in (0, 1) for sequence, _ in sides[side][0]]
    if sum(here) <= _MOST * len(here):
        return None
    hits = [
        [[end for sequence, end in found if sequence in known[not side]] for found in sides[side]] for side in (0, 1)
    ]
    last = max(index for side in hits for index, found in enumerate(side) if found)
    if last < len(gaps) - at:
        ends = [stretches[last].a_end, stretches[last].b_end]
    else:
        ends = [max(hits[0][-1], default=tail.a), max(hits[1][-1], default=tail.b)]
    counts = [
        Counter(sequence for found in side[: last + 1] for sequence, end in found if end <= limit)
        for side, limit in zip(sides, ends, strict=True)
    ]
    common = (counts[0] & counts[1]).total()
    if common < _FEWEST or common <= _MOST * max(counts[0].total(), counts[1].total()):
        return None
    return Moved(Gap(gaps[at].a, ends[0], gaps[at].b, ends[1]), min(at + last, len(gaps) - 1))


def _span(gap: Gap, later: bool) -> tuple[int, int]:
    return (gap.a, gap.a_end) if later else (gap.b, gap.b_end)


def _sequences(pieces: Pieces) -> list[tuple[tuple[Hashable, ...], int]]:
    names = [name for name, _ in pieces]
    return [
        (tuple(names[at : at + _IN_SEQUENCE]), pieces[at + _IN_SEQUENCE - 1][1])
        for at in range(len(names) - _IN_SEQUENCE + 1)
    ]

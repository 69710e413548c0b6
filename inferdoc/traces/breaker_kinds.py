"""What it is in which two prompts differ, between stretches that they share."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from inferdoc.traces.breaker_alignment import CHARACTERS, TOKENS, Grain, Run, Units
from inferdoc.traces.breaker_gaps import LOOKED_AROUND, Difference, Gap, Sides, Span, label_before
from inferdoc.traces.breaker_moves import Pieces, moved
from inferdoc.traces.breaker_values import Kind

_TOKENS_BEFORE = 4
_MOST_DIFFERENCES = 16
"""Differences of a prompt that are looked into; those behind them are taken as changing text."""
_GAPS_OF_ONE_ORDER = 64
_ENDS_OF_ONE_ORDER = 4
_ONE_WORD_IN, _ONE_TOKEN_IN, _UNEVEN = 50, 20, 4
_REMARK = 4
"""What was cut off is at least so many times longer than what stands in its place."""
_WORD = re.compile(r"\w+")
_TOOL_FIELDS = re.compile(r'"(?:input_schema|parameters|function)"\s*:')
_ROLES = ("system", "developer", "tools", "user", "assistant", "tool", "function", "human", "gpt")
_ANSWERS = ("assistant", "gpt", "tool", "function")
_OF_THE_SYSTEM = ("system", "developer", "tools", None)
_MESSAGE = re.compile(rf"\n\n(?:{'|'.join(_ROLES)}):\n")
_SAID: frozenset[Kind] = frozenset(("changing text", "number", "media"))
Explained = tuple[list[Difference], int]
"""Differences, and the index of the last gap that they explain."""


def differences_of_texts(a: str, b: str, runs: Sequence[Run]) -> list[Difference]:
    """The differences between a text and an earlier one, in order and apart from each other."""
    tail = _tail(runs[-1], len(a), len(b))

    def explain(gaps: Sequence[Gap], at: int, floor: Span) -> Explained:
        gap = gaps[at]
        place = moved(gaps, at, tail, pieces_of) if _long(gap, CHARACTERS) else None
        if place is not None:
            return [order(place.gap)], place.last
        parts = Sides(a, b, gap, floor, min(LOOKED_AROUND, runs[at + 1].length)).parts()
        if parts:
            return parts, at
        last = _reordered(gaps, at, words_of, _ONE_WORD_IN)
        if last is not None:
            return [order(Gap(gap.a, gaps[last].a_end, gap.b, gaps[last].b_end))], last
        if _cut_off(gap, runs[at + 1], len(a), len(b), CHARACTERS):
            return [Difference("left truncation", gap)], at
        return [changing(gap)], at

    def order(whole: Gap) -> Difference:
        kept = _shared(a[whole.a : whole.a_end], b[whole.b : whole.b_end])
        return Difference(_kind_of_order(a, whole), whole, kept=kept)

    def pieces_of(later: bool, start: int, end: int) -> Pieces:
        return [(word.group(), word.end()) for word in _WORD.finditer(a if later else b, start, end)]

    def changing(gap: Gap) -> Difference:
        return Difference("changing text", gap, label_before(a, gap.a))

    def words_of(gap: Gap) -> tuple[list[str], list[str]]:
        return _whole_words(a, gap.a, gap.a_end), _whole_words(b, gap.b, gap.b_end)

    return _walk(runs, explain, changing)


def differences_of_ids(a: Units, b: Units, runs: Sequence[Run]) -> list[Difference]:
    """Like `differences_of_texts` for token ids, of which only order and truncation can be told."""
    tail = _tail(runs[-1], len(a), len(b))

    def explain(gaps: Sequence[Gap], at: int, _: Span) -> Explained:
        gap = gaps[at]
        place = moved(gaps, at, tail, pieces_of) if _long(gap, TOKENS) else None
        if place is not None:
            return [Difference("order", place.gap, kept=_shared(*tokens_of(place.gap)))], place.last
        last = _reordered(gaps, at, tokens_of, _ONE_TOKEN_IN)
        if last is not None:
            whole = Gap(gap.a, gaps[last].a_end, gap.b, gaps[last].b_end)
            return [Difference("order", whole, kept=_shared(*tokens_of(whole)))], last
        if _cut_off(gap, runs[at + 1], len(a), len(b), TOKENS):
            return [Difference("left truncation", gap)], at
        return [changing(gap)], at

    def changing(gap: Gap) -> Difference:
        return Difference("changing tokens", gap, a[max(0, gap.a - _TOKENS_BEFORE) : gap.a].tobytes())

    def pieces_of(later: bool, start: int, end: int) -> Pieces:
        return list(zip((a if later else b)[start:end].tolist(), range(start + 1, end + 1), strict=True))

    def tokens_of(gap: Gap) -> tuple[list[int], list[int]]:
        return a[gap.a : gap.a_end].tolist(), b[gap.b : gap.b_end].tolist()

    return _walk(runs, explain, changing)


def movable(text: str, found: Sequence[Difference], end: int) -> tuple[list[Difference], int]:
    """The differences that can be mended, and where the text ends to repeat then (at most `end`).

    What was said in a conversation stays before its answer: text, a number or an image in a user's message can be
    moved behind the rest of that message, not behind those that follow; in an answer, or over the border of a message,
    not at all. What the system's message holds can be moved anywhere.
    """
    for index, difference in enumerate(found):
        gap, role = difference.gap, _message_of(text, difference.gap.a)
        if difference.kind not in _SAID:
            continue
        border = _MESSAGE.search(text, max(0, gap.a - 2), end)
        if role in _ANSWERS or (border is not None and border.start() < gap.a_end):
            return list(found[:index]), gap.a
        if role not in _OF_THE_SYSTEM and border is not None:
            return list(found[: index + 1]), border.start()
    return list(found), end


def _message_of(text: str, at: int) -> str | None:
    """The role of the message in which `at` is, as `messages.render_prompt` writes it; ``None`` in a plain text."""
    start, role = max((text.rfind(f"\n\n{role}:\n", 0, at), role) for role in _ROLES)
    if start >= 0:
        return role
    return next((role for role in _ROLES if text.startswith(f"{role}:\n")), None)


def _walk(
    runs: Sequence[Run],
    explain: Callable[[Sequence[Gap], int, Span], Explained],
    unexplained: Callable[[Gap], Difference],
) -> list[Difference]:
    """Explain gap after gap. What comes after the last run is no gap, since nothing agrees behind it."""
    gaps = [
        Gap(before.a + before.length, after.a, before.b + before.length, after.b)
        for before, after in itertools.pairwise(runs)
    ]
    found, at = list[Difference](), 0
    while at < len(gaps) and len(found) < _MOST_DIFFERENCES:
        parts, last = explain(gaps, at, (found[-1].gap.a_end, found[-1].gap.b_end) if found else (0, 0))
        found += parts
        at = last + 1
    return found + [unexplained(gap) for gap in gaps[at:]]


def _reordered(
    gaps: Sequence[Gap], first: int, pieces_of: Callable[[Gap], tuple[list[Any], list[Any]]], apart: int
) -> int | None:
    """The gap up to which, from `first` on, both sides hold the same pieces in another order; ``None`` for none.

    Of `apart` pieces in the gaps one may differ: a separator at the end of a list, a token that spans two pieces.
    """
    start, here, there, tried = gaps[first], 0, 0, 0
    for index in range(first, min(first + _GAPS_OF_ONE_ORDER, len(gaps))):
        gap = gaps[index]
        here, there = here + gap.a_end - gap.a, there + gap.b_end - gap.b
        if abs(here - there) > _UNEVEN + here // apart:
            continue
        if (tried := tried + 1) > _ENDS_OF_ONE_ORDER:
            return None
        later, earlier = pieces_of(Gap(start.a, gap.a_end, start.b, gap.b_end))
        balance = Counter(later)
        balance.subtract(earlier)
        moved = round(len(later) * here / max(1, gap.a_end - start.a))
        if later != earlier and moved > 1 and sum(map(abs, balance.values())) * apart <= moved:
            return index
    return None


def _tail(run: Run, later: int, earlier: int) -> Gap:
    return Gap(run.a + run.length, later, run.b + run.length, earlier)


def _long(gap: Gap, grain: Grain) -> bool:
    return max(gap.a_end - gap.a, gap.b_end - gap.b) >= grain.run


def _whole_words(text: str, start: int, end: int) -> list[str]:
    """The words of ``text[start:end]``, those that it cuts as a whole."""
    while start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return _WORD.findall(text, start, end)


def _shared(later: Sequence[Hashable], earlier: Sequence[Hashable]) -> float:
    """Share of `later` that is in `earlier` too, wherever it stands."""
    return sum((Counter(later) & Counter(earlier)).values()) / max(1, len(later))


def _kind_of_order(a: str, gap: Gap) -> Kind:
    listed = a.rfind("tools:\n", 0, gap.a)
    tools = (listed >= 0 and a.find("\n\n", listed, gap.a) < 0) or _TOOL_FIELDS.search(a, gap.a, gap.a_end)
    return "tool order" if tools else "document order"


def _cut_off(gap: Gap, run: Run, later: int, earlier: int, grain: Grain) -> bool:
    """Whether the later prompt goes on from the end of the earlier one, with a stretch of it left out (or a short
    remark in its place). `later` and `earlier` are the prompts' lengths."""
    left_out, instead = gap.b_end - gap.b, gap.a_end - gap.a
    continues = run.b + run.length >= earlier - grain.run // 4 and run.a + run.length < later
    return left_out >= grain.run and instead * _REMARK <= left_out and continues

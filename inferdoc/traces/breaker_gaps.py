"""A gap between two texts that agree around it, looked at from near: values, white space, role markers, lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferdoc.traces.breaker_values import MARKER, Kind, Value, values

Span = tuple[int, int]
_LABEL = 24
LOOKED_AROUND = 80
_LARGEST_LOOKED_INTO = 4_000
_MOST_LINES = 40


@dataclass(frozen=True)
class Gap:
    """Where two prompts differ: from `a` to before `a_end` in the later one, `b` and `b_end` in the earlier one."""

    a: int
    a_end: int
    b: int
    b_end: int


@dataclass(frozen=True)
class Difference:
    """A gap whose kind is known; `label` is what stands before it, equal for equal places of a template."""

    kind: Kind
    gap: Gap
    label: str | bytes = ""
    kept: float = 0.0
    """Share of the later prompt's side that the earlier one has too, in another order."""


@dataclass(frozen=True)
class Sides:
    """A gap between two texts, that may be widened back to `floor` and on by `room` characters."""

    a: str
    b: str
    gap: Gap
    floor: Span
    room: int

    def parts(self) -> list[Difference]:
        """The gap as white space, values, role markers, or lines that hold them; empty where it is none of these."""
        gap = self.gap
        if _bare(self.a[gap.a : gap.a_end]) == _bare(self.b[gap.b : gap.b_end]):
            return [Difference("white space", gap)]
        if max(gap.a_end - gap.a, gap.b_end - gap.b) > _LARGEST_LOOKED_INTO:
            return []
        return self._values() or self._markers() or self._lines()

    def _values(self) -> list[Difference]:
        touched = [
            [value for value in values(text, *window) if value.end >= start and value.start <= end]
            for text, window, start, end in self._windows()
        ]
        spans = [[(value.start, value.end) for value in side] for side in touched]
        return list(_pairs(self.a, touched[0], self.b, touched[1], self._widened(spans)))

    def _markers(self) -> list[Difference]:
        spans = [
            [match.span() for match in MARKER.finditer(text, *window) if match.end() >= start and match.start() <= end]
            for text, window, start, end in self._windows()
        ]
        wide = self._widened(spans)
        left_a, left_b = (MARKER.sub("", text) for text in (self.a[wide.a : wide.a_end], self.b[wide.b : wide.b_end]))
        return [Difference("chat template", wide)] if any(spans) and _bare(left_a) == _bare(left_b) else []

    def _lines(self) -> list[Difference]:
        """Each line for itself where both sides have as many, if values explain at least one of them."""
        windows = [window for _, window, _, _ in self._windows()]
        (a, a_end), (b, b_end) = windows
        lines_a, lines_b = self.a[a:a_end].split("\n"), self.b[b:b_end].split("\n")
        if not 1 < len(lines_a) == len(lines_b) <= _MOST_LINES:
            return []
        found, explained = list[Difference](), False
        for line_a, line_b in zip(lines_a, lines_b, strict=True):
            if line_a != line_b:
                whole = Gap(a, a + len(line_a), b, b + len(line_b))
                written = [values(self.a, whole.a, whole.a_end), values(self.b, whole.b, whole.b_end)]
                pairs = list(_pairs(self.a, written[0], self.b, written[1], whole))
                explained = explained or bool(pairs)
                found += pairs or [Difference("changing text", whole, label_before(self.a, whole.a))]
            a, b = a + len(line_a) + 1, b + len(line_b) + 1
        return found if explained else []

    def _windows(self) -> Iterator[tuple[str, Span, int, int]]:
        """Each text with the part of it to look at, from the start of the line to its end, and its side of the gap."""
        gap = self.gap
        back = min(self._to_line_start(self.a, gap.a, self.floor[0]), self._to_line_start(self.b, gap.b, self.floor[1]))
        rest = self.a.find("\n", gap.a_end, gap.a_end + self.room)
        on = self.room if rest < 0 else rest - gap.a_end
        yield self.a, (gap.a - back, gap.a_end + on), gap.a, gap.a_end
        yield self.b, (gap.b - back, gap.b_end + on), gap.b, gap.b_end

    @staticmethod
    def _to_line_start(text: str, at: int, floor: int) -> int:
        return at - max(floor, at - LOOKED_AROUND, text.rfind("\n", 0, at) + 1)

    def _widened(self, spans: Sequence[Sequence[Span]]) -> Gap:
        """The gap with the whole of `spans` in it, by as much on both sides, since the text around is the same."""
        gap = self.gap
        back, on = 0, 0
        for side, start, end in ((spans[0], gap.a, gap.a_end), (spans[1], gap.b, gap.b_end)):
            if side:
                back, on = max(back, start - side[0][0]), max(on, side[-1][1] - end)
        return Gap(gap.a - back, gap.a_end + on, gap.b - back, gap.b_end + on)


def _pairs(a: str, in_a: Sequence[Value], b: str, in_b: Sequence[Value], gap: Gap) -> Iterator[Difference]:
    """The values that differ, one for one, and what differs between them; nothing where they do not correspond."""
    kinds = [_joint(one.kind, other.kind) for one, other in zip(in_a, in_b, strict=False)]
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) != max(len(in_a), len(in_b)):
        return
    parts, at_a, at_b = list[Difference](), gap.a, gap.b
    ends = [
        *zip(in_a, in_b, known, strict=True),
        (Value("number", gap.a_end, gap.a_end), Value("number", gap.b_end, gap.b_end), None),
    ]
    texts_differ = False
    for one, other, kind in ends:
        if a[at_a : one.start] != b[at_b : other.start]:
            texts_differ = True
            parts.append(Difference("changing text", Gap(at_a, one.start, at_b, other.start), label_before(a, at_a)))
        if kind is not None and a[one.start : one.end] != b[other.start : other.end]:
            parts.append(Difference(kind, Gap(one.start, one.end, other.start, other.end), label_before(a, one.start)))
        at_a, at_b = one.end, other.end
    if not texts_differ or any(part.kind not in ("number", "changing text") for part in parts):
        yield from parts


def _joint(one: Kind, other: Kind) -> Kind | None:
    """The kind that covers both, ``None`` where there is none."""
    both = {one, other}
    if len(both) == 1:
        return one
    if both <= {"time stamp", "date"}:
        return "time stamp"
    if both <= {"uuid", "hash or id", "number", "time stamp", "date"}:
        return "hash or id" if both & {"uuid", "hash or id"} else "number"
    return "user name" if both == {"user name", "e-mail"} else None


def _bare(text: str) -> str:
    return "".join(text.split())


def label_before(text: str, start: int) -> str:
    """What stands before a word on its line (on the line before, at the start of a line), digits as zeros."""
    while start > 0 and text[start - 1].isalnum():
        start -= 1
    line = text.rfind("\n", 0, max(0, start - 1)) + 1
    return re.sub(r"\d", "0", text[max(line, start - _LABEL) : start])

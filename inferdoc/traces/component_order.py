"""Traces of named components (RAG): what their order costs, which no larger cache gives back.

A component is reused by a prefix cache if all components before it are those of one earlier prompt, too. Rates are
shares of the components' tokens, with whole components reused and nothing evicted. Tokens of a chat template that
belong to no component are not counted.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from itertools import groupby

from pydantic import ConfigDict

from inferdoc.evidence import Contract
from inferdoc.traces.breaker_words import percent
from inferdoc.traces.trace import Trace

Piece = tuple[str, int, int]
"""Kind, id and tokens of a component."""
Order = Callable[[list[Piece]], list[Piece]]
_FREE = re.compile(r"passage|document|doc|chunk|context|search|retriev|tool|snippet|knowledge|example", re.IGNORECASE)
"""Kinds whose pieces stand side by side, so that their order can be chosen."""
_MOSTLY_NEW = 0.5
_WORTH_NAMING = 0.02
_REQUESTS = 50_000


class LostTokens(Contract):
    """Tokens of a kind that an earlier prompt had, but not behind the same beginning."""

    model_config = ConfigDict(frozen=True)

    kind: str
    tokens: int
    share: float
    """Of all tokens so lost."""


class ChangingPiece(Contract):
    """A place in the prompts whose pieces are mostly new, before others that repeat."""

    model_config = ConfigDict(frozen=True)

    kind: str
    number: int
    """Which of its kind, from 1."""
    new_share: float
    """Share of its tokens that no earlier prompt had anywhere."""


class ComponentOrder(Contract):
    """Reuse by order. Rates are shares of the components' tokens; ``None`` with a `reason`, never 0, if unknown."""

    model_config = ConfigDict(frozen=True)

    requests: int = 0
    requests_read: int = 0
    component_tokens: int | None = None
    hit_rate: float | None = None
    """Ideal prefix cache, order as recorded."""
    sorted_hit_rate: float | None = None
    """With the pieces of kinds like passages in one order inside each prompt, that in which they first appear."""
    changing_last_hit_rate: float | None = None
    """With `changing_pieces` moved to the end, the rest as recorded."""
    mended_hit_rate: float | None = None
    """With `changing_pieces` moved to the end and passages in one order, the most common of the trace first."""
    any_position_hit_rate: float | None = None
    """With each piece reused wherever it stands: no order reaches more."""
    order_is_the_problem: bool | None = None
    """Whether another order gives at least 2 points of hit rate that a larger cache cannot give."""
    changing_pieces: tuple[ChangingPiece, ...] = ()
    sorted_kinds: tuple[str, ...] = ()
    lost: tuple[LostTokens, ...] = ()
    """By kind, most first."""
    sentence: str | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()


def component_order(trace: Trace) -> ComponentOrder:
    """What the order of components costs, over at most the first 50,000 requests."""
    if not trace.has("components"):
        return ComponentOrder(reason="the trace does not name the components of its prompts")
    known = trace.rows["components"].drop_nulls()
    read = known.head(_REQUESTS).to_list()
    prompts = [
        [(part["kind"], part["id"], part["tokens"]) for part in prompt]
        for prompt in read
        if all(None not in part.values() for part in prompt)
    ]
    total = sum(tokens for prompt in prompts for _, _, tokens in prompt)
    if not total:
        return ComponentOrder(requests=len(known), reason="the components' lengths in tokens are not known")
    common = Counter((kind, id) for prompt in prompts for kind, id, _ in prompt)
    # A counter keeps its keys in order of appearance. Ids themselves are arbitrary: other names must change nothing.
    seen = {piece: place for place, piece in enumerate(common)}
    changing = _changing(prompts)
    places = {(piece.kind, piece.number) for piece in changing}
    rates = [
        sum(_hits(map(order, prompts))) / total
        for order in (
            list[Piece],
            _sorted_by(lambda piece: seen[piece[:2]]),
            _moved_last(places),
            _both(_moved_last(places), _sorted_by(lambda piece: (-common[piece[:2]], seen[piece[:2]]))),
        )
    ]
    anywhere, lost = _lost(prompts)
    found = ComponentOrder(
        requests=len(known),
        requests_read=len(prompts),
        component_tokens=total,
        hit_rate=rates[0],
        sorted_hit_rate=rates[1],
        changing_last_hit_rate=rates[2],
        mended_hit_rate=rates[3],
        any_position_hit_rate=anywhere / total,
        order_is_the_problem=max(rates[1:]) - rates[0] >= _WORTH_NAMING,
        changing_pieces=tuple(changing),
        sorted_kinds=tuple(sorted({kind for prompt in prompts for kind, _, _ in prompt if _FREE.search(kind)})),
        lost=tuple(lost),
        notes=tuple(_notes(len(known), len(read), len(prompts))),
    )
    return found.model_copy(update={"sentence": _sentence(found)})


def _hits(prompts: Iterable[list[Piece]]) -> Iterable[int]:
    """Tokens of each prompt's leading pieces that one earlier prompt began with, too."""
    known: dict[tuple[int, Hashable], int] = {}
    for prompt in prompts:
        parent, hit, missed = -1, 0, False
        for kind, id, tokens in prompt:
            key = (parent, (kind, id))
            missed = missed or key not in known
            hit += 0 if missed else tokens
            parent = known.setdefault(key, len(known))
        yield hit


def _lost(prompts: list[list[Piece]]) -> tuple[int, list[LostTokens]]:
    """Tokens that an earlier prompt had anywhere, and by kind those of them that the prefix does not reach."""
    seen, anywhere, lost = set[tuple[str, int]](), 0, Counter[str]()
    for prompt, hit in zip(prompts, _hits(prompts), strict=True):
        reached = 0
        for kind, id, tokens in prompt:
            if (kind, id) in seen:
                anywhere += tokens
                lost[kind] += tokens if reached >= hit else 0
            reached += tokens
        seen.update((kind, id) for kind, id, _ in prompt)
    whole = max(1, lost.total())
    return anywhere, [LostTokens(kind=kind, tokens=n, share=n / whole) for kind, n in lost.most_common() if n]


def _changing(prompts: list[list[Piece]]) -> list[ChangingPiece]:
    """Places of mostly new pieces that stand before pieces of another kind that mostly repeat."""
    seen = set[tuple[str, int]]()
    total, new = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    blocked = Counter[tuple[str, int]]()
    for prompt in prompts:
        fresh: list[tuple[str, int]] = []
        for kind, number, (_, id, tokens) in _numbered(prompt):
            place = (kind, number)
            total[place] += tokens
            if (kind, id) not in seen:
                new[place] += tokens
                fresh.append(place)
            else:
                for earlier in fresh[:1]:
                    blocked[earlier] += tokens
        seen.update((kind, id) for kind, id, _ in prompt)
    every = total.total()
    return [
        ChangingPiece(kind=kind, number=number, new_share=new[kind, number] / tokens)
        for (kind, number), tokens in total.items()
        if tokens
        and not _FREE.search(kind)
        and new[kind, number] > _MOSTLY_NEW * tokens
        and blocked[kind, number] >= _WORTH_NAMING * every
    ]


def _numbered(prompt: list[Piece]) -> Iterable[tuple[str, int, Piece]]:
    numbers: dict[str, int] = defaultdict(int)
    for piece in prompt:
        numbers[piece[0]] += 1
        yield piece[0], numbers[piece[0]], piece


def _sorted_by(key: Callable[[Piece], tuple[int, int] | int]) -> Order:
    def order(prompt: list[Piece]) -> list[Piece]:
        groups = [(kind, list(pieces)) for kind, pieces in groupby(prompt, key=lambda piece: piece[0])]
        return [
            piece for kind, pieces in groups for piece in (sorted(pieces, key=key) if _FREE.search(kind) else pieces)
        ]

    return order


def _moved_last(places: set[tuple[str, int]]) -> Order:
    def order(prompt: list[Piece]) -> list[Piece]:
        marked = [((kind, number) in places, piece) for kind, number, piece in _numbered(prompt)]
        return [piece for moved, piece in marked if not moved] + [piece for moved, piece in marked if moved]

    return order


def _both(first: Order, second: Order) -> Order:
    return lambda prompt: second(first(prompt))


def _sentence(found: ComponentOrder) -> str:
    now, anywhere = percent(found.hit_rate or 0.0), percent(found.any_position_hit_rate or 0.0)
    seen = f"{anywhere} of the components' tokens were in an earlier prompt at some position"
    if not found.order_is_the_problem:
        return f"as ordered now a prefix cache can serve {now}, another order gives little more; {seen}"
    kinds = " and ".join(found.sorted_kinds)
    steps = []
    if kinds:
        steps.append(f"{percent(found.sorted_hit_rate or 0.0)} with {kinds} sorted")
    if found.changing_pieces:
        names = ", ".join(f"{piece.kind} {piece.number}" for piece in found.changing_pieces)
        steps.append(f"{percent(found.changing_last_hit_rate or 0.0)} with what is new in most requests ({names}) last")
    if kinds:
        also = "that and " if found.changing_pieces else ""
        steps.append(f"{percent(found.mended_hit_rate or 0.0)} with {also}{kinds} sorted, the most common first")
    return (
        f"order, not cache size, is the problem: as ordered now no cache, however large, serves more than {now};"
        f" it would be {'; '.join(steps)}; {seen}"
    )


def _notes(known: int, read: int, used: int) -> list[str]:
    notes = []
    if read < known:
        notes.append(f"the first {read:,} of {known:,} requests were read")
    if used < read:
        notes.append(f"{read - used:,} requests with components of unknown length are left out")
    return notes

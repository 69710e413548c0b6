"""Prefix breakers: what differs early in prompts that agree later, what it costs, and the hit rate without it.

Each prompt is aligned with the earlier prompt that shares most with it. Mended differences are taken as moved behind
everything that repeats (put into one order, written in one way), so the prompt then shares the common stretches up to
the first difference that is left. That is a lower bound of what mending gives: another earlier prompt may share more.
Blocks are whole, at least one token is computed, nothing is evicted, as in `prefixes`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from pydantic import ConfigDict

from inferdoc.evidence import Contract
from inferdoc.traces import breaker_sample, breaker_words
from inferdoc.traces.breaker_rates import Rates, Site, plans_of
from inferdoc.traces.breaker_sample import CHARACTERS_PER_TOKEN, Sample
from inferdoc.traces.breaker_values import Kind
from inferdoc.traces.tokens import Encode
from inferdoc.traces.trace import Trace

_WORTH_NAMING = 0.005
"""Smallest change of the hit rate for which a difference is called a breaker."""
_MOST_GROUPS = 12
_CHANCE: frozenset[Kind] = frozenset(("changing text", "changing tokens", "left truncation"))
_MORE_THAN_CHANCE = 3
"""Requests of which one of these kinds needs so many, since fewer may agree by chance."""
_VALUES_FOR_A_COUNTER = 3
_RISING = 0.9


class Place(Contract):
    """Where the differences begin in their prompts, over the prompts concerned."""

    model_config = ConfigDict(frozen=True)

    median: int
    least: int
    most: int


class Breaker(Contract):
    """One kind of difference at one place of the prompts. Rates are shares of all prompt tokens read."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    place_tokens: Place | None
    """Index of the token; ``None`` where only characters are known."""
    place_characters: Place | None
    requests: int
    """Requests whose prompt differs there from the earlier prompt that shares most with it."""
    hit_rate_before: float
    hit_rate_alone: float
    """With this breaker mended and no other."""
    hit_rate_cumulative: float
    """With this one and those before it in the list mended."""
    cost_share: float
    """Share of the ideal hits (all breakers mended) that are lost if this one alone stays."""
    mend: str
    sentence: str
    example: str
    """The difference with its value masked; what stands around it only where that was asked for."""


class BreakerAnalysis(Contract):
    """What keeps prompts from sharing their prefixes. Rates are ``None`` with a `reason`, never 0, if unknown."""

    model_config = ConfigDict(frozen=True)

    unit: str | None = None
    """``tokens``, or ``characters`` where the texts have no token ids."""
    block_units: int | None = None
    requests: int = 0
    """Requests with a text or token ids."""
    requests_read: int = 0
    hit_rate: float | None = None
    ideal_hit_rate: float | None = None
    """With all breakers of the list mended."""
    breakers: tuple[Breaker, ...] = ()
    """In order of what mending each adds to those before it."""
    reason: str | None = None
    notes: tuple[str, ...] = ()


def analyse_breakers(
    trace: Trace, *, block_size: int = 16, encode: Encode | None = None, show_text: bool = False
) -> BreakerAnalysis:
    """The breakers of a trace with texts or token ids, found in at most 2,000 prompts (`notes` say which).

    `encode` is the model's tokenizer over a list of texts: with it lengths are tokens of the texts' pieces, without it
    they are characters, or characters scaled to the prompts' token ids. `show_text` puts the text around a difference
    into its example.

    Raises:
        ValueError: a block below one token.
    """
    if block_size < 1:
        raise ValueError(f"block_size {block_size}")
    sample = breaker_sample.take(trace, encode)
    if isinstance(sample, str):
        return BreakerAnalysis(reason=sample)
    block = block_size if sample.in_tokens else block_size * CHARACTERS_PER_TOKEN
    total = sum(sample.totals)
    if not total:
        return BreakerAnalysis(requests=sample.requests, reason="the prompts are empty")
    rates = Rates(plans_of(sample, block), block, total)
    found = _breakers(rates, sample, show_text)
    before = rates.rate(())
    return BreakerAnalysis(
        unit="tokens" if sample.in_tokens else "characters",
        block_units=block,
        requests=sample.requests,
        requests_read=len(rates.plans),
        hit_rate=before,
        ideal_hit_rate=found[-1].hit_rate_cumulative if found else before,
        breakers=tuple(found),
        notes=tuple(_notes(trace, sample, block)),
    )


def _breakers(rates: Rates, sample: Sample, show_text: bool) -> list[Breaker]:
    """The groups that matter, in the order in which mending them adds most."""
    potential = {
        group: sum(site.kept + site.following for _, site in members)
        for group, members in rates.members.items()
        if members[0][1].kind not in _CHANCE or len({index for index, _ in members}) >= _MORE_THAN_CHANCE
    }
    kept = sorted(potential, key=lambda group: -potential[group])[:_MOST_GROUPS]
    before = rates.rate(())
    while True:
        ideal = rates.rate(kept)
        loss = {group: ideal - rates.rate([other for other in kept if other != group]) for group in kept}
        worth = [group for group in kept if loss[group] >= _WORTH_NAMING]
        if len(worth) == len(kept):
            break
        kept = worth
    place = {group: float(np.median([site.shown[0] for _, site in rates.members[group]])) for group in kept}
    ordered, found = list[Hashable](), list[Breaker]()
    while len(ordered) < len(kept):
        left = [group for group in kept if group not in ordered]
        ordered.append(max(left, key=lambda group: (rates.rate([*ordered, group]), loss[group], -place[group])))
        found.append(_breaker(rates, sample, ordered, before, ideal, loss[ordered[-1]], show_text))
    return found


def _breaker(
    rates: Rates,
    sample: Sample,
    ordered: Sequence[Hashable],
    before: float,
    ideal: float,
    loss: float,
    show_text: bool,
) -> Breaker:
    members = rates.members[ordered[-1]]
    kind = _kind([site for _, site in members])
    index, first = members[0]
    mended = breaker_words.Mended(before, rates.rate(ordered[-1:]), rates.rate(ordered), ideal, loss / ideal)
    tokens, characters = (
        _place([site.tokens for _, site in members]),
        _place([site.characters for _, site in members]),
    )
    requests = len({index for index, _ in members})
    shown = tokens or characters
    where = (
        breaker_words.where(
            "token" if tokens else "character", shown.median, shown.least, shown.most, exact=sample.exact
        )
        if shown
        else ""
    )
    return Breaker(
        kind=kind,
        place_tokens=tokens,
        place_characters=characters,
        requests=requests,
        hit_rate_before=before,
        hit_rate_alone=mended.alone,
        hit_rate_cumulative=mended.cumulative,
        cost_share=mended.cost_share,
        mend=breaker_words.MENDS[kind],
        sentence=breaker_words.sentence(kind, where, mended, requests, len(rates.plans)),
        example=breaker_words.example(kind, sample.texts[index] if sample.texts and show_text else None, first.shown),
    )


def _kind(sites: Sequence[Site]) -> Kind:
    """Numbers that never fall, and mostly rise, in order of arrival are a counter."""
    texts = [site.value for site in sites if site.value is not None]
    if sites[0].kind != "number" or len(texts) < _VALUES_FOR_A_COUNTER:
        return sites[0].kind
    numbers = [float(text.replace(",", "")) if text.count(".") < 2 else float("nan") for text in texts]
    steps = np.diff(numbers)
    return "counter" if (steps >= 0).all() and (steps > 0).mean() >= _RISING else "number"


def _place(places: Sequence[int | None]) -> Place | None:
    known = [place for place in places if place is not None]
    return Place(median=round(float(np.median(known))), least=min(known), most=max(known)) if known else None


def _notes(trace: Trace, sample: Sample, block: int) -> list[str]:
    notes, read = [], len(sample.totals)
    if read < sample.requests:
        notes.append(
            f"{read:,} of {sample.requests:,} prompts were read, in {sample.windows} contiguous windows (fixed seed):"
            " reuse of what lies between the windows is not counted"
        )
    if sample.requests < len(trace):
        notes.append(f"{len(trace) - sample.requests:,} requests have no text or token ids and are left out")
    if sample.cut:
        notes.append(f"{sample.cut:,} prompts are long: only their first part was read")
    if not sample.in_tokens:
        notes.append(
            f"no tokenizer has encoded the texts: rates are of characters, in blocks of {block}"
            f" ({CHARACTERS_PER_TOKEN} characters a token), an approximation"
        )
    elif not sample.exact:
        notes.append(
            "rates with breakers mended, and places behind the first difference, are scaled from characters to tokens"
        )
    if len(set(sample.models)) > 1:
        notes.append("prompts of different models share nothing")
    return notes

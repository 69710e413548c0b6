"""The hit rate of prompts with some of their differences mended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace

import numpy as np

from inferdoc.traces.breaker_alignment import CHARACTERS, TOKENS, Earlier, Prompt, align, common_prefix
from inferdoc.traces.breaker_gaps import Difference
from inferdoc.traces.breaker_kinds import differences_of_ids, differences_of_texts, movable
from inferdoc.traces.breaker_sample import Sample
from inferdoc.traces.breaker_values import Kind

_PLACES_OF_A_KIND = 3


@dataclass(frozen=True)
class Site:
    """A difference of one prompt: its group, where it begins, and what is shared once it is mended."""

    group: Hashable
    kind: Kind
    characters: int | None
    tokens: int | None
    kept: float
    """What it holds that only changes its order."""
    following: float
    """What the prompts share behind it, up to the next difference."""
    shown: tuple[int, int]
    """Its span in the prompt."""
    value: str | None


@dataclass(frozen=True)
class Plan:
    """What a prompt shares now, and by which differences it shares no more."""

    total: int
    hits: int
    leading: float
    sites: tuple[Site, ...]


class Rates:
    """Hit rates with some groups of differences mended."""

    def __init__(self, plans: list[Plan], block: int, total: int) -> None:
        self.plans = _merged(plans)
        self.members: dict[Hashable, list[tuple[int, Site]]] = defaultdict(list)
        for index, plan in enumerate(self.plans):
            for site in plan.sites:
                self.members[site.group].append((index, site))
        self._broken = [plan for plan in self.plans if plan.sites]
        self._whole = sum(plan.hits for plan in self.plans if not plan.sites)
        self._block, self._total = block, total

    def rate(self, mended: Collection[Hashable]) -> float:
        """Share of the prompts' tokens that the cache serves if `mended` differed no more."""
        return (self._whole + sum(self._served(plan, mended) for plan in self._broken)) / self._total

    def _served(self, plan: Plan, mended: Collection[Hashable]) -> int:
        shared = plan.leading
        for site in plan.sites:
            if site.group not in mended:
                break
            shared += site.kept + site.following
        blocks = min(int(shared // self._block), (plan.total - 1) // self._block)
        return max(plan.hits, blocks * self._block)


def _merged(plans: list[Plan]) -> list[Plan]:
    """The places of a kind that concern fewest units put together, so that a few groups are left of each kind."""
    weight: dict[Hashable, float] = defaultdict(float)
    kind_of: dict[Hashable, Kind] = {}
    for plan in plans:
        for site in plan.sites:
            weight[site.group] += site.kept + site.following
            kind_of[site.group] = site.kind
    leading, seen = set[Hashable](), dict[Kind, int]()
    for group in sorted(weight, key=lambda group: -weight[group]):
        kind = kind_of[group]
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= _PLACES_OF_A_KIND:
            leading.add(group)
    return [
        replace(
            plan,
            sites=tuple(
                site if site.group in leading else replace(site, group=(site.kind, None)) for site in plan.sites
            ),
        )
        for plan in plans
    ]


def plans_of(sample: Sample, block: int) -> list[Plan]:
    """What each prompt shares with the earlier prompt of its model that has most in common with it."""
    grain = TOKENS if sample.texts is None else CHARACTERS
    earlier: dict[str | None, Earlier] = defaultdict(Earlier)
    prompts = list[Prompt]()
    plans = list[Plan]()
    for index, (units, total, hits) in enumerate(zip(sample.units, sample.totals, sample.hits(block), strict=True)):
        prompt = Prompt(units, grain)
        partner = earlier[sample.models[index]].partner(prompt)
        plan = Plan(total, hits, 0.0, ())
        if partner is not None:
            runs = align(prompt, prompts[partner], grain)
            end = runs[-1].a + runs[-1].length
            if sample.texts is None:
                found = differences_of_ids(units, prompts[partner].units, runs)
            else:
                found = differences_of_texts(sample.texts[index], sample.texts[partner], runs)
                found, end = movable(sample.texts[index], found, end)
            if found:
                # Pieces in another order may reach behind the last stretch that both have in one order.
                plan = _plan(sample, index, partner, found, max(end, found[-1].gap.a_end), plan)
        plans.append(plan)
        prompts.append(prompt)
        earlier[sample.models[index]].add(index, prompt)
    return plans


def _plan(sample: Sample, index: int, partner: int, found: list[Difference], end: int, plan: Plan) -> Plan:
    cuts = [0, *(at for difference in found for at in (difference.gap.a, difference.gap.a_end)), end]
    lengths = sample.lengths(index, cuts)
    begins = np.cumsum(lengths)
    sites = []
    for order, difference in enumerate(found):
        token = round(float(begins[2 * order])) if sample.in_tokens else None
        if order == 0 and sample.ids is not None and sample.texts is not None and not sample.exact:
            token = common_prefix(sample.ids[index], sample.ids[partner])
        span = (difference.gap.a, difference.gap.a_end)
        sites.append(
            Site(
                group=(difference.kind, difference.label),
                kind=difference.kind,
                characters=None if sample.texts is None else span[0],
                tokens=token,
                kept=lengths[2 * order + 1] * difference.kept,
                following=lengths[2 * order + 2],
                shown=span,
                value=sample.texts[index][slice(*span)] if sample.texts and difference.kind == "number" else None,
            )
        )
    return replace(plan, leading=lengths[0], sites=tuple(sites))

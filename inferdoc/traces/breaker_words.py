"""How a breaker is told: what it is, where it stands, what it costs, what to do."""

from __future__ import annotations

from dataclasses import dataclass

from inferdoc.traces.breaker_values import Kind, masked

_AROUND = 24
_LITTLE = 0.1

_SUBJECTS: dict[Kind, str] = {
    "time stamp": "a time stamp",
    "date": "a date",
    "uuid": "a uuid",
    "hash or id": "a hash or id",
    "counter": "a counter",
    "number": "a changing number",
    "user name": "a user's name or id",
    "e-mail": "an e-mail address",
    "media": "an image or another attachment before text that repeats",
    "tool order": "a list of tools in changing order",
    "document order": "documents or lines in changing order",
    "order": "tools or documents in changing order",
    "white space": "white space that is not always the same",
    "chat template": "role markers of different chat templates",
    "left truncation": "a history cut at its start",
    "changing text": "text that changes before text that repeats",
    "changing tokens": "tokens that change before tokens that repeat",
}
_SEVERAL: frozenset[Kind] = frozenset(("document order", "order", "chat template", "changing tokens"))
_TO_THE_END = "moving it to the end"
MENDS: dict[Kind, str] = {
    **dict.fromkeys(_SUBJECTS, _TO_THE_END),
    "media": "moving it behind the text",
    "tool order": "sending the tools in one fixed order",
    "document order": "putting them into one fixed order",
    "order": "sending them in one fixed order",
    "white space": "writing it in one way",
    "chat template": "using one chat template",
    "left truncation": "keeping the history, or cutting it seldom and by much,",
    "changing text": "moving it behind the text that repeats",
    "changing tokens": "moving them behind those that repeat",
}


@dataclass(frozen=True)
class Mended:
    """Hit rates before, with one breaker mended, with it and those before it, and with all; and what it costs."""

    before: float
    alone: float
    cumulative: float
    ideal: float
    cost_share: float


def where(unit: str, median: int, least: int, most: int, *, exact: bool) -> str:
    """The place in words, such as ``token 14`` or ``tokens 14 to 90 (median 20)``."""
    if least == most:
        return f"{unit} {median:,}"
    about = "" if exact or unit != "token" else "about "
    return f"{about}{unit}s {least:,} to {most:,} (median {median:,})"


def sentence(kind: Kind, place: str, mended: Mended, requests: int, of: int) -> str:
    """What the breaker costs and what mending it gives; where others still break the prefix, together with them."""
    at, verb = f" at {place}" if place else "", "cost" if kind in _SEVERAL else "costs"
    start = (
        f"{_SUBJECTS[kind]}{at} {verb} {percent(mended.cost_share)} of the ideal hits"
        f" ({requests:,} of {of:,} requests): {MENDS[kind]}"
    )
    if mended.alone - mended.before >= _LITTLE * mended.cost_share * mended.ideal:
        return f"{start} takes the hit rate from {percent(mended.before)} to {percent(mended.alone)}"
    return (
        f"{start} gives little while the other breakers stay; with all of them mended the hit rate goes from"
        f" {percent(mended.before)} to {percent(mended.ideal)}"
    )


def percent(share: float) -> str:
    """A share in whole percent; with a decimal below 10%."""
    if 0 < share < 0.001:
        return "less than 0.1%"
    return f"{share:.1%}" if 0 < share < 0.095 else f"{share:.0%}"


def example(kind: Kind, text: str | None, span: tuple[int, int]) -> str:
    """The kind in place of its value; with `text`, between what stands around it, whose own values are masked."""
    if text is None:
        return f"<{kind}>"
    start, end = span
    return f"{masked(text[max(0, start - _AROUND) : start])}<{kind}>{masked(text[end : end + _AROUND])}"

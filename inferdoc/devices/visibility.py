"""Which card of the driver is device *n* of the framework. The two count differently; UUIDs decide."""

from __future__ import annotations

from collections.abc import Sequence

from inferdoc.devices.driver import Card


def visible_cards(cards: Sequence[Card], variable: str | None) -> list[Card]:
    """Cards in the framework's order, by the rules of CUDA for ``CUDA_VISIBLE_DEVICES``.

    Indexes, UUIDs or unambiguous beginnings of them (``GPU-3f2a``), MIG names (``MIG-<uuid>`` and the older
    ``MIG-GPU-<uuid>/<instance>/<compute instance>``). The first entry that names nothing ends the list, as in CUDA.
    Indexes are read in the driver's order; where CUDA sorts by speed, the framework's own UUID must be asked instead.
    """
    whole = [card for card in cards if card.parent is None]
    if variable is None:
        # With MIG on, CUDA shows the first slice of a card in the card's place.
        return [next((part for part in cards if part.parent == card.uuid), card) for card in whole]
    chosen: list[Card] = []
    for entry in (part.strip() for part in variable.split(",")):
        card = _find(cards, whole, entry)
        if card is None or card in chosen:
            break
        chosen.append(card)
    return chosen


def match_uuid(cards: Sequence[Card], uuid: str) -> Card | None:
    """The card with this UUID, written with or without ``GPU-`` or ``MIG-`` in front."""
    wanted = _bare(uuid)
    return next((card for card in cards if wanted and _bare(card.uuid) == wanted), None)


def _find(cards: Sequence[Card], whole: Sequence[Card], entry: str) -> Card | None:
    if entry.isdecimal():
        return whole[int(entry)] if int(entry) < len(whole) else None
    if entry.startswith("MIG-GPU-") and "/" in entry:
        parent, *ids = entry.removeprefix("MIG-").split("/")
        return _only([card for card in cards if card.parent == parent and _ids(card) == ids])
    if entry.startswith(("GPU-", "MIG-")):
        exact = [card for card in cards if card.uuid == entry]
        return exact[0] if exact else _only([card for card in cards if card.uuid.startswith(entry)])
    return None


def _ids(card: Card) -> list[str]:
    return [str(number) for number in card.slice_ids or ()]


def _only(found: list[Card]) -> Card | None:
    return found[0] if len(found) == 1 else None


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()

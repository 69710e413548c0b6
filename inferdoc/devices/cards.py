"""Cards by name, for sizing without one: what vendors state, with sources (``inferdoc/data/gpus.yaml``)."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from inferdoc.devices.device import Device
from inferdoc.errors import InputError
from inferdoc.evidence import Basis, Contract

_MIB = 2**20


class CardSpec(Contract):
    """One card. Rates are dense peaks; ``None``: the card has no such units, or no source states the number.

    source: the vendor's sheet; where its rates were not read again there, it says so. No size rests on a rate.
    """

    id: str
    name: str
    memory_bytes: int
    """All that the driver counts; where no source states that, the vendor's gigabytes × 10^9."""
    memory_source: str
    memory_stated_gb: float | None = None
    bandwidth_bytes_per_s: float | None = None
    bf16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    int8_op_per_s: float | None = None
    source: str
    basis: Basis = Basis.SPEC


def find_card_spec(name: str) -> CardSpec:
    """The card called `name` in the data file; case, hyphens and spaces do not matter.

    Raises:
        InputError: there is no such card, with the nearest names.
    """
    wanted = name.strip().lower().replace("-", "_").replace(" ", "_")
    for id, entry in _entries().items():
        if wanted == id or wanted in entry.get("aliases", ()):
            return _read(id, entry)
    raise InputError(f"--gpu {name}: no such card; {_near(wanted)}")


def present_card_spec(device: Device) -> CardSpec:
    """The card that is here, with its memory as the driver counts it.

    Raises:
        InputError: there is no card, or nothing tells its memory; the message lists the names that can be given.
    """
    if device.kind != "cuda":
        raise InputError(f"there is no card here: name one with --gpu: {', '.join(card_names())}")
    if device.total_bytes is None:
        raise InputError(f"{device.name}: its memory cannot be told: name a card with --gpu: {', '.join(card_names())}")
    told = f"{device.source}, {device.memory_label}"
    return CardSpec(
        id="present",
        name=device.name,
        memory_bytes=device.total_bytes,
        memory_source=told,
        source=told,
        basis=Basis.MEASURED,
    )


def card_names() -> list[str]:
    """Names that `find_card_spec` knows, without aliases."""
    return list(_entries())


@cache
def _entries() -> dict[str, dict[str, Any]]:
    import yaml

    text = resources.files("inferdoc.data").joinpath("gpus.yaml").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return entries


def _read(id: str, entry: dict[str, Any]) -> CardSpec:
    stated = float(entry["memory_gb"])
    counted = entry.get("memory_mib")
    unread = " (the rates are to be found there and were not read again)" if entry.get("rates_unread") else ""

    def rate(key: str, unit: float) -> float | None:
        value = entry.get(key)
        return None if value is None else value * unit

    return CardSpec(
        id=id,
        name=entry["name"],
        memory_bytes=counted * _MIB if counted else int(stated * 1e9),
        memory_source=entry["memory_source"] if counted else entry["source"] + unread,
        memory_stated_gb=stated,
        bandwidth_bytes_per_s=rate("bandwidth_gb_s", 1e9),
        bf16_flop_per_s=rate("bf16_tflops", 1e12),
        fp8_flop_per_s=rate("fp8_tflops", 1e12),
        int8_op_per_s=rate("int8_tops", 1e12),
        source=entry["source"] + unread,
    )


def _near(wanted: str) -> str:
    names = [*_entries(), *(alias for entry in _entries().values() for alias in entry.get("aliases", ()))]
    near = get_close_matches(wanted, names, n=4, cutoff=0.5)
    near += [name for name in names if wanted and (wanted in name or name in wanted) and name not in near]
    return f"did you mean {', '.join(near[:5])}?" if near else f"known are {', '.join(card_names())}"

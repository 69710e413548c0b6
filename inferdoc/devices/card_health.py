"""What readings of a card say about the work that ran meanwhile; for the watch over a measurement and for pairs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferdoc.devices.device import Device, find_card
from inferdoc.devices.driver import Card, CardState, NvmlDriver, open_driver
from inferdoc.devices.framework import Framework, TorchFramework

CLOCK_DROP = 0.10
"""Clocks further apart than this share are not the same speed."""


@dataclass(frozen=True)
class WatchedCard:
    """A card and the driver that reads it."""

    driver: NvmlDriver
    card: Card

    def state(self) -> CardState:
        return self.driver.state(self.card)


def watched_card(
    device: Device,
    *,
    driver: NvmlDriver | None = None,
    framework: Framework | None = None,
    variables: Mapping[str, str] | None = None,
) -> WatchedCard | None:
    """The card of `device`; ``None`` on a CPU, and where the driver cannot be asked or has no such card."""
    if device.kind == "cpu":
        return None
    driver = driver or open_driver()
    if driver is None:
        return None
    found = (framework or TorchFramework()).device(device.index)
    card = find_card(driver, found, os.environ if variables is None else variables)
    return None if card is None else WatchedCard(driver, card)


def throttling(states: Sequence[CardState]) -> list[str] | None:
    """Reasons seen in any reading; ``None`` where the driver told none."""
    seen = [state.throttling for state in states if state.throttling is not None]
    return sorted({reason for reading in seen for reason in reading}) if seen else None


def process_ids(states: Sequence[CardState]) -> set[int] | None:
    """Everything that computed on the card in any reading; ``None`` where the driver did not tell."""
    seen = [state.processes for state in states if state.processes is not None]
    return {pid for reading in seen for pid, _ in reading} if seen else None


def other_processes(pids: set[int], own_pid: int) -> set[int] | None:
    """`pids` without ours; ``None`` where ours is not among them: they are another system's (a container)."""
    return None if pids and own_pid not in pids else pids - {own_pid}


def clock_gap(clocks: Sequence[float]) -> float:
    """Share by which the slowest of some clocks is below the fastest."""
    return 1 - min(clocks) / max(clocks)

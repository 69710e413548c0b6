"""Whether something outside the runs disturbed a pair of them: the only ground on which a pair may be left out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from inferdoc.devices.card_health import (
    CLOCK_DROP,
    clock_gap,
    other_processes,
    process_ids,
    throttling,
    watched_card,
)
from inferdoc.devices.device import Device
from inferdoc.devices.driver import POWER_CAP, CardState, NvmlDriver
from inferdoc.devices.framework import Framework

_NAMES = ("baseline", "candidate")


@dataclass(frozen=True)
class Reading:
    """What the card did at one moment, and which process on it is ours."""

    state: CardState
    own_pid: int


class RunWatch:
    """Reads the card of `device` before and after each run; `cause` then judges the two runs of a pair."""

    def __init__(
        self,
        device: Device,
        *,
        driver: NvmlDriver | None = None,
        framework: Framework | None = None,
        variables: Mapping[str, str] | None = None,
        own_pid: int | None = None,
    ) -> None:
        self._card = watched_card(device, driver=driver, framework=framework, variables=variables)
        self._own_pid = own_pid or os.getpid()

    def read(self) -> Reading | None:
        """The state now, in milliseconds; ``None`` on a CPU and where the driver cannot be asked."""
        return None if self._card is None else Reading(self._card.state(), self._own_pid)


def cause(
    readings_a: Sequence[Reading | None], readings_b: Sequence[Reading | None], *, names: tuple[str, str] = _NAMES
) -> str | None:
    """Why a pair does not count; ``None`` where nothing physical was seen, as always on a CPU.

    Throttling for heat or hardware, another process computing on the card, or clocks of the two runs more than 10%
    apart. A power cap alone is none: the run's own load brings it about, on many cards always, and leaving those runs
    out would favour the arm that loads the card less. What the driver does not tell is not held against a pair.

    Args:
        readings_a, readings_b: of each run, the first one before it began and the others after it or within.
        names: what the two runs are called.
    """
    runs = {
        name: [reading for reading in readings if reading is not None]
        for name, readings in zip(names, (readings_a, readings_b), strict=True)
    }
    causes = [found for name, readings in runs.items() if (found := _throttled(name, readings))]
    causes += filter(None, (_shared(runs), _clocks_apart(runs)))
    return "; ".join(causes) or None


def _throttled(name: str, readings: Sequence[Reading]) -> str | None:
    reasons = [reason for reason in throttling([r.state for r in readings]) or [] if reason != POWER_CAP]
    return f"the {name} throttled: {', '.join(reasons)}" if reasons else None


def _shared(runs: Mapping[str, Sequence[Reading]]) -> str | None:
    readings = [reading for run in runs.values() for reading in run]
    pids = process_ids([reading.state for reading in readings])
    others = other_processes(pids, readings[0].own_pid) if pids else None
    if not others:
        return None
    return f"{len(others)} other process{'es' if len(others) > 1 else ''} computed on the card"


def _clocks_apart(runs: Mapping[str, Sequence[Reading]]) -> str | None:
    clocks = {name: _clock(readings[1:]) for name, readings in runs.items()}
    found = [clock for clock in clocks.values() if clock is not None]
    if len(found) < len(clocks) or clock_gap(found) <= CLOCK_DROP:
        return None
    told = ", ".join(f"{name} {clock:.0f} MHz" for name, clock in clocks.items())
    return f"clocks of the two runs are more than {CLOCK_DROP:.0%} apart: {told}"


def _clock(readings: Sequence[Reading]) -> float | None:
    """SM clock of a run in MHz. A card that went to rest already tells nothing of it."""
    clocks = [reading.state.sm_clock_mhz for reading in readings if not reading.state.idle]
    told = [clock for clock in clocks if clock]
    return median(told) if told else None

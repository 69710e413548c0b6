"""The machine's own health while a measurement runs: clocks, throttling, other work on it. Says so, never corrects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType

from inferdoc.devices.card_health import (
    CLOCK_DROP,
    clock_gap,
    other_processes,
    process_ids,
    throttling,
    watched_card,
)
from inferdoc.devices.device import Device
from inferdoc.devices.driver import CardState, NvmlDriver
from inferdoc.devices.environment import distorting_variables
from inferdoc.devices.framework import Framework
from inferdoc.devices.host import Host, ProcessorTimes
from inferdoc.evidence import Check

# Shares of all processors' time. Two identical runs differ by a few percent on a quiet machine, so more than this
# taken by others can be the whole of a small effect.
_OTHERS_SHARE = 0.05
_STEAL_SHARE = 0.02
_FOREIGN_MEMORY = 256 * 1024**2


class Watch:
    """Use as a context manager around a measurement; `checks` afterwards.

    ``with Watch(device) as watch: ...; watch.sample() between runs; ...`` then ``watch.checks()``.
    """

    def __init__(
        self,
        device: Device,
        *,
        host: Host | None = None,
        driver: NvmlDriver | None = None,
        framework: Framework | None = None,
        variables: Mapping[str, str] | None = None,
        own_pid: int | None = None,
    ) -> None:
        self._host = host or Host()
        self._variables = os.environ if variables is None else variables
        self._own_pid = own_pid or os.getpid()
        self._card = watched_card(device, driver=driver, framework=framework, variables=self._variables)
        self._on_card = device.kind == "cuda"
        self._states: list[CardState] = []
        self._load_before: float | None = None
        self._before: ProcessorTimes | None = None
        self._after: ProcessorTimes | None = None

    def __enter__(self) -> Watch:
        self._load_before = self._host.load_average()
        self._before = self._host.processor_times()
        self.sample()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sample()

    def sample(self) -> None:
        """Reads the state once more; call it between runs, never inside a timed part."""
        self._after = self._host.processor_times()
        if self._card is not None:
            self._states.append(self._card.state())

    def checks(self) -> list[Check]:
        """What was seen: passed, failed, or not known (``None``), each with its numbers."""
        checks = [self._variables_check(), self._load_check(), self._others_check(), self._steal_check()]
        if self._on_card:
            checks += [self._throttle_check(), self._clock_check(), self._processes_check(), self._memory_check()]
        return checks

    def _variables_check(self) -> Check:
        found = distorting_variables(self._variables)
        text = "; ".join(f"{name} is set: {why}" for name, why in found.items())
        return Check(name="timing variables", passed=not found, text=text or "no debugging variable is set")

    def _load_check(self) -> Check:
        cores = self._host.cores()
        if self._load_before is None:
            return Check(name="load before", passed=None, text="the load average cannot be read here")
        quiet = self._load_before <= cores / 2
        text = f"load average {self._load_before:.2f} on {cores} cores before the measurement"
        return Check(name="load before", passed=quiet or None, text=text if quiet else f"{text}, ours included")

    def _others_check(self) -> Check:
        name = "other processes on the CPU"
        share = self._share("busy")
        own = self._share("own")
        if share is None or own is None:
            return Check(name=name, passed=None, text="processor times cannot be read here")
        others = max(share - own, 0.0)
        text = f"{others:.1%} of processor time went to other processes (limit {_OTHERS_SHARE:.0%})"
        return Check(name=name, passed=others <= _OTHERS_SHARE, text=text)

    def _steal_check(self) -> Check:
        name = "time taken by the hypervisor"
        share = self._share("steal")
        if share is None:
            return Check(name=name, passed=None, text="processor times cannot be read here")
        return Check(name=name, passed=share <= _STEAL_SHARE, text=f"{share:.1%} (limit {_STEAL_SHARE:.0%})")

    def _share(self, part: str) -> float | None:
        if self._before is None or self._after is None or self._after.total <= self._before.total:
            return None
        taken: int = getattr(self._after, part) - getattr(self._before, part)
        return taken / (self._after.total - self._before.total)

    def _throttle_check(self) -> Check:
        name = "throttling"
        reasons = throttling(self._states)
        if reasons is None:
            return Check(name=name, passed=None, text="the driver does not tell")
        told = sum(state.throttling is not None for state in self._states)
        text = f"throttled: {', '.join(reasons)}" if reasons else f"none in {told} readings"
        return Check(name=name, passed=not reasons, text=text)

    def _clock_check(self) -> Check:
        name = "clocks"
        clocks = [state.sm_clock_mhz for state in self._states if state.sm_clock_mhz is not None]
        if len(clocks) < 2:
            return Check(name=name, passed=None, text="the driver does not tell")
        # the first reading is before any work, when a card rests at a low clock
        during = clocks[1:]
        most = self._states[-1].max_sm_clock_mhz
        of = f" of at most {most} MHz" if most is not None else ""
        text = f"{min(during)} to {max(during)} MHz{of} (limit: {CLOCK_DROP:.0%} apart)"
        return Check(name=name, passed=clock_gap(during) <= CLOCK_DROP, text=text)

    def _processes_check(self) -> Check:
        name = "other processes on the card"
        pids = process_ids(self._states)
        if pids is None:
            return Check(name=name, passed=None, text="the driver does not tell")
        others = other_processes(pids, self._own_pid)
        if others is None:
            text = f"{len(pids)} processes; their ids are another system's (a container), so ours cannot be told apart"
            return Check(name=name, passed=None, text=text)
        text = f"{len(others)} other processes" if others else "none but ours"
        return Check(name=name, passed=not others, text=text)

    def _memory_check(self) -> Check:
        """Memory that others took or gave back while we measured: a budget must not move with it."""
        name = "memory of other processes"
        foreign = [used for state in self._states if (used := self._foreign_bytes(state)) is not None]
        if len(foreign) < 2:
            return Check(name=name, passed=None, text="the driver does not tell memory by process")
        change = foreign[-1] - foreign[0]
        if abs(change) <= _FOREIGN_MEMORY:
            return Check(name=name, passed=True, text=f"moved by {abs(change)} bytes (limit {_FOREIGN_MEMORY})")
        way = "took" if change > 0 else "gave back"
        return Check(name=name, passed=False, text=f"others {way} {abs(change)} bytes during the measurement")

    def _foreign_bytes(self, state: CardState) -> int | None:
        if state.memory is None or state.processes is None:
            return None
        own = [used for pid, used in state.processes if pid == self._own_pid]
        if None in own or (state.processes and not own):
            return None
        return state.memory.used - sum(used for used in own if used is not None)

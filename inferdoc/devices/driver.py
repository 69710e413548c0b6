"""NVIDIA's driver library behind a small interface, so that its gaps, refusals and versions are handled in one place.

`NvmlDriver` takes the ``pynvml`` module (package ``nvidia-ml-py``) as an argument; tests give it a stand-in.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

MemoryProblem = Literal["no permission", "not supported", "failed"]

_NOT_SUPPORTED = 3
_NO_PERMISSION = 4
_NO_SUCH_VERSION = (13, 25)  # function not found; argument version mismatch: a driver older than the package
_CLOCK_GRAPHICS = 0
_CLOCK_SM = 1
# Bits of nvmlClocksEventReasons. Rest, application clocks and display clocks (0x100) are no throttling.
_IDLE = 0x1
_APPLICATION_CLOCKS = 0x2
POWER_CAP = "power cap"
_THROTTLE_REASONS = {
    0x4: POWER_CAP,
    0x8: "hardware slowdown",
    0x20: "thermal limit (software)",
    0x40: "thermal limit (hardware)",
    0x80: "power brake",
}

OLD_PACKAGE = (
    "the module pynvml belongs to the old package of that name, which hides nvidia-ml-py: "
    "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
)


@dataclass(frozen=True)
class CardMemory:
    """Bytes, as the driver counts them. reserved: held by the driver itself; None where the call cannot tell it."""

    total: int
    free: int
    used: int
    reserved: int | None


@dataclass(frozen=True)
class Card:
    """One card, or one MIG slice of a card.

    handle: the driver's, opaque. index: number of the (parent) card in the driver, by PCI address.
    memory: None where the driver refused, with the reason in `memory_problem`. parent: the card's UUID, for a slice.
    slice_ids: GPU instance and compute instance of a slice.
    """

    handle: Any
    index: int
    uuid: str
    name: str
    pci_bus_id: str
    memory: CardMemory | None
    memory_problem: MemoryProblem | None
    parent: str | None = None
    slice_ids: tuple[int, int] | None = None


@dataclass(frozen=True)
class CardState:
    """What a card does at one moment. ``None``: the driver did not tell.

    processes: process id and bytes (None where not told) of everything that computes on the card.
    idle: nothing runs and the clocks fall, so that they say nothing about a run.
    """

    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    throttling: tuple[str, ...] | None
    temperature_c: int | None
    processes: tuple[tuple[int, int | None], ...] | None
    memory: CardMemory | None
    idle: bool | None = None


class NvmlDriver:
    """The driver through a ``pynvml`` module that has been initialised by `open_driver`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.has_versioned_memory = hasattr(nvml, "nvmlMemory_v2")

    def version(self) -> str | None:
        """Driver version, for example ``580.95.05``."""
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> str | None:
        """Newest CUDA that the driver serves, for example ``13.0``."""
        number = self._ask("nvmlSystemGetCudaDriverVersion")
        return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else None

    def cards(self) -> tuple[Card, ...]:
        """All cards in the driver's order, whatever `CUDA_VISIBLE_DEVICES` says; slices follow their card."""
        found: list[Card] = []
        for index in range(self._ask("nvmlDeviceGetCount") or 0):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                continue
            card = self._card(handle, index)
            found.append(card)
            found.extend(self._slices(card))
        return tuple(found)

    def state(self, card: Card) -> CardState:
        """Clocks, throttling, temperature, processes and memory of `card` now."""
        handle = card.handle
        reasons = self._clock_reasons(handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return CardState(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
            max_sm_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM),
            throttling=None
            if reasons is None
            else tuple(text for bit, text in _THROTTLE_REASONS.items() if reasons & bit),
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, 0),
            processes=None
            if processes is None
            else tuple((int(process.pid), getattr(process, "usedGpuMemory", None)) for process in processes),
            memory=self.memory(handle)[0],
            idle=None if reasons is None else bool(reasons & _IDLE),
        )

    def power_limit_w(self, card: Card) -> float | None:
        """Watts that the driver lets a whole card draw now, all limiters taken together."""
        milliwatts = self._ask("nvmlDeviceGetEnforcedPowerLimit", card.handle)
        return None if milliwatts is None else milliwatts / 1000

    def clocks_locked(self, card: Card) -> bool | None:
        """Whether a setting holds the clocks of a whole card; ``None`` where it cannot be told.

        Application clocks can be read. Locked clocks (``nvidia-smi -lgc``) have no query and set no bit
        (JuliaGPU/CUDA.jl#2194); what excludes a fixed one is a card that rests, because its clocks then fall.
        """
        reasons = self._clock_reasons(card.handle)
        chosen = self._ask("nvmlDeviceGetApplicationsClock", card.handle, _CLOCK_GRAPHICS)
        usual = self._ask("nvmlDeviceGetDefaultApplicationsClock", card.handle, _CLOCK_GRAPHICS)
        if (reasons or 0) & _APPLICATION_CLOCKS or (None not in (chosen, usual) and chosen != usual):
            return True
        return False if (reasons or 0) & _IDLE else None

    def memory(self, handle: Any) -> tuple[CardMemory | None, MemoryProblem | None]:
        """Memory of one handle; where the driver refuses, why.

        The versioned call keeps reserved memory apart; the older one counts it as used, also on an idle card.
        """
        try:
            if self.has_versioned_memory:
                try:
                    info = self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
                    return CardMemory(int(info.total), int(info.free), int(info.used), int(info.reserved)), None
                except (TypeError, AttributeError):
                    self.has_versioned_memory = False
                except self._nvml.NVMLError as error:
                    if getattr(error, "value", None) not in _NO_SUCH_VERSION:
                        raise
                    self.has_versioned_memory = False
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            return CardMemory(int(info.total), int(info.free), int(info.used), None), None
        except self._nvml.NVMLError as error:
            return None, _problem(error)

    def _card(self, handle: Any, index: int, parent: Card | None = None) -> Card:
        memory, problem = self.memory(handle)
        pci = self._ask("nvmlDeviceGetPciInfo", handle) if parent is None else None
        ids = None
        if parent is not None:
            instance = self._ask("nvmlDeviceGetGpuInstanceId", handle)
            compute = self._ask("nvmlDeviceGetComputeInstanceId", handle)
            ids = (instance, compute) if instance is not None and compute is not None else None
        return Card(
            handle=handle,
            index=index,
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle)) or "",
            name=_text(self._ask("nvmlDeviceGetName", handle)) or "unknown card",
            pci_bus_id=parent.pci_bus_id if parent else (_text(getattr(pci, "busId", None)) or ""),
            memory=memory,
            memory_problem=problem,
            parent=parent.uuid if parent else None,
            slice_ids=ids,
        )

    def _slices(self, card: Card) -> list[Card]:
        mode = self._ask("nvmlDeviceGetMigMode", card.handle)
        if not mode or not mode[0]:
            return []
        handles = (
            self._ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, position)
            for position in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", card.handle) or 0)
        )
        return [self._card(handle, card.index, parent=card) for handle in handles if handle is not None]

    def _clock_reasons(self, handle: Any) -> int | None:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return None if reasons is None else int(reasons)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer of one driver call; ``None`` where the driver or the package cannot give it."""
        call: Callable[..., Any] | None = getattr(self._nvml, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None


def open_driver(nvml: Any = None) -> NvmlDriver | None:
    """The driver, or ``None`` where there is no NVIDIA driver or no package to ask it.

    Args:
        nvml: a ``pynvml`` module; imported where it is not given.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError):
        return None
    return NvmlDriver(nvml)


def _problem(error: Any) -> MemoryProblem:
    value = getattr(error, "value", None)
    if value == _NO_PERMISSION:
        return "no permission"
    return "not supported" if value == _NOT_SUPPORTED else "failed"


def _text(value: Any) -> str | None:
    """Old packages answer bytes, new ones str."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None

"""Stand-ins for the driver library, torch and the host, so that cards are tested without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferdoc.devices.framework import FrameworkDevice
from inferdoc.devices.host import Host

GIB = 1024**3
MIB = 1024**2


@dataclass
class Record:
    """An answer of the driver: any attributes."""

    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def record(**values: Any) -> Record:
    return Record(values)


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


def told(answer: Any) -> Any:
    if answer is None:
        raise FakeError(3)
    return answer


@dataclass
class FakeCard:
    uuid: str
    name: str | bytes = "NVIDIA Test"
    total: int = 24 * GIB
    free: int = 24 * GIB
    used: int = 0
    reserved: int = 0
    memory_error: int | None = None
    bus: str | bytes = "00000000:01:00.0"
    clock: int = 1500
    reasons: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    slices: list[FakeCard] = field(default_factory=list)
    ids: tuple[int, int] = (0, 0)
    power_limit_mw: int | None = None
    application_clocks: tuple[int, int] | None = None
    """Chosen and usual, in MHz."""


class FakeNvml:
    """The part of ``pynvml`` that is used. Handles are the cards themselves."""

    NVMLError = FakeError
    nvmlMemory_v2 = 2  # noqa: N815

    def __init__(self, *cards: FakeCard) -> None:
        self._cards = cards

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13000

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:  # noqa: N802
        return self._cards[index]

    def nvmlDeviceGetUUID(self, card: FakeCard) -> str:  # noqa: N802
        return card.uuid

    def nvmlDeviceGetName(self, card: FakeCard) -> str | bytes:  # noqa: N802
        return card.name

    def nvmlDeviceGetPciInfo(self, card: FakeCard) -> Record:  # noqa: N802
        return record(busId=card.bus)

    def nvmlDeviceGetMemoryInfo(self, card: FakeCard, version: int | None = None) -> Record:  # noqa: N802
        if card.memory_error is not None:
            raise FakeError(card.memory_error)
        if version is None:  # the older call counts reserved memory as used
            return record(total=card.total, free=card.free, used=card.used + card.reserved)
        return record(total=card.total, free=card.free, used=card.used, reserved=card.reserved)

    def nvmlDeviceGetMigMode(self, card: FakeCard) -> list[int]:  # noqa: N802
        if not card.slices:
            raise FakeError(3)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: FakeCard) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: FakeCard, index: int) -> FakeCard:  # noqa: N802
        if index >= len(card.slices):
            raise FakeError(6)
        return card.slices[index]

    def nvmlDeviceGetGpuInstanceId(self, card: FakeCard) -> int:  # noqa: N802
        return card.ids[0]

    def nvmlDeviceGetComputeInstanceId(self, card: FakeCard) -> int:  # noqa: N802
        return card.ids[1]

    def nvmlDeviceGetCurrentClocksEventReasons(self, card: FakeCard) -> int:  # noqa: N802
        return card.reasons

    def nvmlDeviceGetClockInfo(self, card: FakeCard, kind: int) -> int:  # noqa: N802
        return card.clock

    def nvmlDeviceGetMaxClockInfo(self, card: FakeCard, kind: int) -> int:  # noqa: N802
        return 1980

    def nvmlDeviceGetTemperature(self, card: FakeCard, sensor: int) -> int:  # noqa: N802
        return 50

    def nvmlDeviceGetEnforcedPowerLimit(self, card: FakeCard) -> int:  # noqa: N802
        return told(card.power_limit_mw)

    def nvmlDeviceGetApplicationsClock(self, card: FakeCard, kind: int) -> int:  # noqa: N802
        assert kind == 0  # graphics
        return told(card.application_clocks)[0]

    def nvmlDeviceGetDefaultApplicationsClock(self, card: FakeCard, kind: int) -> int:  # noqa: N802
        assert kind == 0
        return told(card.application_clocks)[1]

    def nvmlDeviceGetComputeRunningProcesses(self, card: FakeCard) -> list[Record]:  # noqa: N802
        return [record(pid=pid, usedGpuMemory=used) for pid, used in card.processes]


@dataclass
class FakeFramework:
    """torch with the given UUIDs, in its own order."""

    uuids: list[str | None]
    integrated: bool = False
    free_and_total: tuple[int, int] | None = (5 * GIB, 6 * GIB)
    names: list[str] | None = None

    def count(self) -> int:
        return len(self.uuids)

    def device(self, index: int) -> FrameworkDevice:
        name = self.names[index] if self.names else "Torch Card"
        return FrameworkDevice(index, name, self.uuids[index], 6 * GIB, self.integrated, (9, 0), 50 * MIB)

    def memory(self, index: int) -> tuple[int, int] | None:
        return self.free_and_total

    def missing_cuda(self) -> str:
        return "this stand-in has none"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host of 128 GB with 100 GB available, 4 MiB of last-level cache, laid out as files."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       131072000 kB\nMemFree: 1 kB\nMemAvailable:   102400000 kB\n")
    (proc / "cpuinfo").write_text("model name\t: Test Processor 9000\nflags\t\t: fpu avx2\n")
    (proc / "loadavg").write_text("0.25 0.20 0.10 1/100 4242\n")
    (proc / "stat").write_text("cpu  100 0 100 800 0 0 0 0 0 0\n")
    (proc / "self" / "stat").write_text("7 (my (odd) name) S 1 1 1 0 -1 0 0 0 0 0 60 40 0 0 20 0 1 0\n")
    (proc / "self" / "cgroup").write_text("0::/\n")
    levels = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "4M")]
    for position, (level, kind, size) in enumerate(levels):
        folder = sys / f"devices/system/cpu/cpu0/cache/index{position}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    return Host(proc, sys)


@pytest.fixture
def fake() -> SimpleNamespace:
    """The stand-ins: ``Card``, ``Nvml``, ``Framework``, ``Error``, ``record``."""
    return SimpleNamespace(Card=FakeCard, Nvml=FakeNvml, Framework=FakeFramework, Error=FakeError, record=record)

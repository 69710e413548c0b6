"""The device that a diagnosis runs on: what it is, how much memory it has and has free, and who said so."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from inferdoc.devices.driver import OLD_PACKAGE, Card, NvmlDriver, open_driver
from inferdoc.devices.framework import Framework, FrameworkDevice, TorchFramework
from inferdoc.devices.host import Host
from inferdoc.devices.visibility import match_uuid, visible_cards
from inferdoc.errors import InputError

# A machine whose card shares memory with the operating system has gone down with 7 GiB left (vllm-project/vllm#46307).
_SYSTEM_RESERVE_BYTES = 8 * 1024**3
_SYSTEM_RESERVE_SHARE = 0.08


@dataclass(frozen=True)
class Device:
    """One device. Sizes in bytes; ``None`` is unknown, never zero.

    index: number in the framework. driver_index: number in the driver, by PCI address; they often differ.
    total_bytes, free_bytes: memory, for the device of a CPU the host's. reserved_bytes: held by the driver itself.
    memory_label: what kind of memory that is. source: who gave the numbers (driver, framework, operating system).
    unified: the card shares its memory with the host. cache_bytes: last-level cache (L2 on a card).
    """

    kind: Literal["cpu", "cuda"]
    index: int
    name: str
    total_bytes: int | None
    free_bytes: int | None
    memory_label: str
    source: Literal["nvml", "torch", "proc", "unknown"]
    reserved_bytes: int | None = None
    driver_index: int | None = None
    uuid: str | None = None
    capability: tuple[int, int] | None = None
    driver: str | None = None
    unified: bool = False
    cache_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def torch_name(self) -> str:
        """Name that torch takes, for example ``cuda:1``."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def usable_bytes(self) -> int | None:
        """Free memory that a measurement may ask for; on unified memory less a reserve for the operating system."""
        if self.free_bytes is None or not self.unified:
            return self.free_bytes
        reserve = max(_SYSTEM_RESERVE_BYTES, int((self.total_bytes or 0) * _SYSTEM_RESERVE_SHARE))
        return max(self.free_bytes - reserve, 0)


def find_device(
    requested: str,
    *,
    driver: NvmlDriver | None = None,
    framework: Framework | None = None,
    host: Host | None = None,
    variables: Mapping[str, str] | None = None,
) -> Device:
    """The device named ``auto`` (a card where there is one), ``cpu``, ``cuda`` or ``cuda:N``.

    Args:
        driver, framework, host, variables: stand-ins for tests; by default the real ones.

    Raises:
        InputError: another name, or CUDA is asked for and absent.
    """
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", requested)
    if match is None:
        raise InputError(f"--device {requested}: choose auto, cpu, cuda or cuda:N")
    host = host or Host()
    if requested == "cpu":
        return _cpu(host)
    framework = framework or TorchFramework()
    count = framework.count()
    if count == 0:
        if requested == "auto":
            return _cpu(host)
        raise InputError(f"--device {requested}: no CUDA device: {framework.missing_cuda()}; --device cpu works")
    index = int(match[1] or 0)
    if index >= count:
        numbers = "cuda:0 is the only one" if count == 1 else f"cuda:0 to cuda:{count - 1} exist"
        raise InputError(f"--device {requested}: no such device; {numbers}")
    driver = driver or open_driver()
    return _cuda(framework, index, driver, host, os.environ if variables is None else variables)


def find_card(driver: NvmlDriver, device: FrameworkDevice, variables: Mapping[str, str]) -> Card | None:
    """The driver's card of the framework's `device`: by UUID, else by ``CUDA_VISIBLE_DEVICES``."""
    cards = driver.cards()
    visible = visible_cards(cards, variables.get("CUDA_VISIBLE_DEVICES"))
    by_order = visible[device.index] if device.index < len(visible) else None
    if by_order is not None and by_order.parent is not None:
        return by_order  # the framework tells the UUID of the whole card for a slice of it
    if device.uuid is not None:
        return match_uuid(cards, device.uuid)
    return by_order


def _cpu(host: Host) -> Device:
    memory = host.memory()
    notes = []
    if memory.limited_by != "host":
        notes.append(f"memory is limited by a {memory.limited_by}, not by the host")
    if host.is_virtual():
        notes.append("virtual machine: the last-level cache that it reports may be shared with other guests")
    return Device(
        kind="cpu",
        index=0,
        name=host.processor() or "unknown processor",
        total_bytes=memory.total,
        free_bytes=memory.available,
        memory_label="host RAM, not VRAM",
        source="unknown" if memory.total is None else "proc",
        cache_bytes=host.last_level_cache(),
        notes=tuple(notes),
    )


def _cuda(
    framework: Framework, index: int, driver: NvmlDriver | None, host: Host, variables: Mapping[str, str]
) -> Device:
    device = framework.device(index)
    card = find_card(driver, device, variables) if driver is not None else None
    notes: list[str] = []
    if driver is not None and not driver.has_versioned_memory:
        notes.append(OLD_PACKAGE)
    if driver is None:
        notes.append("the driver library cannot be asked: clocks, throttling and other processes are unknown")
    elif card is None:
        notes.append("no card of the driver matches this device: memory comes from torch")
    total, free, reserved = None, None, None
    label = "VRAM"
    source: Literal["nvml", "torch", "proc", "unknown"] = "unknown"
    if device.integrated:
        memory = host.memory()
        total, free, source = memory.total, memory.available, "proc"
        label = "unified memory, shared with the host"
    elif card is not None and card.memory is not None:
        total, free, reserved, source = card.memory.total, card.memory.free, card.memory.reserved, "nvml"
        label = "VRAM of a MIG slice" if card.parent is not None else "VRAM"
    else:
        if card is not None:
            notes.append(f"the driver does not tell memory ({card.memory_problem}): it comes from torch")
        answer = framework.memory(index)
        if answer is not None:
            (free, total), source = answer, "torch"
        else:
            notes.append("neither driver nor torch tells how much memory is free: give --memory")
    return Device(
        kind="cuda",
        index=index,
        name=card.name if card is not None else device.name,
        total_bytes=total,
        free_bytes=free,
        memory_label=label,
        source=source,
        reserved_bytes=reserved,
        driver_index=card.index if card is not None else None,
        uuid=card.uuid if card is not None else device.uuid,
        capability=device.capability,
        driver=driver.version() if driver is not None else None,
        unified=device.integrated,
        cache_bytes=device.l2_bytes,
        notes=tuple(notes),
    )

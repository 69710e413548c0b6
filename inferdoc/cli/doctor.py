"""``inferdoc doctor``: what was found on this machine and what will work. Measures nothing."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from inferdoc.errors import InferdocError
from inferdoc.evidence import Check

if TYPE_CHECKING:
    from inferdoc.devices import Device

_GIB = 1024**3


def doctor() -> None:
    """Say what was found (card, driver, torch, triton, memory) and what will work here."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    marks = {True: Text("yes", style="green"), False: Text("no", style="red"), None: Text("-", style="dim")}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in collect():
        table.add_row(marks[check.passed], check.name, Text(check.text))
    Console().print(table)


def collect() -> list[Check]:
    """What was found: ``passed`` is yes, no (something is missing), or ``None`` for what is only told."""
    from inferdoc.devices.environment import package_version

    checks = [Check(name="python", passed=sys.version_info >= (3, 11), text=sys.version.split()[0])]
    versions = {name: package_version(name) for name in ("torch", "transformers", "triton")}
    checks += [
        Check(name=name, passed=versions[name] is not None, text=versions[name] or f"not installed: pip install {name}")
        for name in ("torch", "transformers")
    ]
    if versions["torch"] is None or versions["transformers"] is None:
        return [*checks, Check(name="diagnose", passed=False, text="needs torch and transformers")]
    device = _device()
    on_card = isinstance(device, str) or device.kind == "cuda"
    checks.append(
        Check(
            name="triton",
            passed=None if versions["triton"] is None and not on_card else versions["triton"] is not None,
            text=versions["triton"] or ("not installed" if on_card else "not installed; a CPU run does not need it"),
        )
    )
    if isinstance(device, str):
        return [*checks, Check(name="device", passed=False, text=device)]
    checks += _device_checks(device)
    checks += _shipped_checks()
    return [*checks, *_what_works(device)]


def _device() -> Device | str:
    from inferdoc.devices import find_device

    try:
        return find_device("auto")
    except InferdocError as error:
        return str(error)


def _device_checks(device: Device) -> list[Check]:
    checks = [Check(name="device", passed=True, text=f"{device.name} ({device.torch_name})")]
    if device.kind == "cuda":
        checks.append(Check(name="driver", passed=device.driver is not None, text=device.driver or "cannot be asked"))
        if device.driver_index is not None:
            text = f"framework index {device.index}, driver index {device.driver_index}, {device.uuid}"
            checks.append(Check(name="numbering", passed=None, text=text))
        checks += _card_checks(device)
    else:
        from inferdoc.devices.framework import TorchFramework

        checks.append(Check(name="card", passed=None, text=f"none: {TorchFramework().missing_cuda()}"))
    if device.free_bytes is None or device.total_bytes is None:
        checks.append(Check(name="memory", passed=False, text="unknown: give --memory"))
    else:
        text = f"{_gib(device.free_bytes)} free of {_gib(device.total_bytes)}, {device.memory_label} ({device.source})"
        if device.reserved_bytes is not None:
            text += f"; {_gib(device.reserved_bytes)} reserved by the driver"
        checks.append(Check(name="memory", passed=True, text=text))
    if device.cache_bytes is not None:
        checks.append(Check(name="last-level cache", passed=None, text=f"{device.cache_bytes / 1024**2:.0f} MiB"))
    return [*checks, *(Check(name="note", passed=None, text=note) for note in device.notes)]


def _card_checks(device: Device) -> list[Check]:
    """What else the environment record says of the card, and a gate compares; only what is known."""
    from inferdoc.devices.card_fields import card_fields

    fields = card_fields(device, variables=os.environ)
    names = {
        "gpu_form_factor": "form factor",
        "gpu_mig": "MIG",
        "power_limit": "power limit",
        "clocks_locked": "locked",
    }
    known = {name: fields[key] for key, name in names.items() if fields[key].state == "value"}
    checks = [
        Check(name=name, passed=None, text=f"{field.value:g} W" if field.unit == "W" else str(field.value))
        for name, field in known.items()
    ]
    models = str(fields["gpu_models"].value or "")
    if "," in models:
        checks.append(Check(name="cards", passed=None, text=f"mixed: {models}; this tool measures on {device.name}"))
    return checks


def _shipped_checks() -> list[Check]:
    from inferdoc.models.embedded import bundled_trace_path, embedded_draft_path, embedded_path

    checks = []
    shipped = (("embedded model", embedded_path), ("draft model", embedded_draft_path), ("trace", bundled_trace_path))
    for name, find in shipped:
        try:
            checks.append(Check(name=name, passed=True, text=find().name))
        except InferdocError as error:
            checks.append(Check(name=name, passed=False, text=str(error)))
    return checks


def _what_works(device: Device) -> list[Check]:
    where = "on the card" if device.kind == "cuda" else "on the CPU, with small models"
    return [
        Check(name="diagnose", passed=True, text=f"measures {where}"),
        Check(name="sizing and trace analysis", passed=True, text="for any model with a config.json, without weights"),
        Check(name="report", passed=True, text="renders evidence.json again on any machine, without torch"),
    ]


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"

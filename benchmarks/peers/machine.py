"""What the numbers were measured on."""

from __future__ import annotations

from typing import Any

from inferdoc.devices import Device, environment
from inferdoc.devices.environment import VOLATILE


def machine(device: Device) -> dict[str, Any]:
    """The known facts, without those that move from run to run."""
    fields = environment(device).fields
    facts = {name: field.value for name, field in fields.items() if field.state == "value" and name not in VOLATILE}
    whole = {name: int(value) for name, value in facts.items() if isinstance(value, float) and value.is_integer()}
    return facts | whole  # 2 cores are not 2.0 cores

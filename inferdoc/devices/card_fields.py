"""What the environment record says about the card: which, in what form, how many are visible, how it is limited."""

from __future__ import annotations

from collections.abc import Mapping

from inferdoc.devices.device import Device, find_card
from inferdoc.devices.driver import Card, NvmlDriver, open_driver
from inferdoc.devices.fields import known, not_applicable
from inferdoc.devices.form_factor import form_factor
from inferdoc.devices.framework import Framework, TorchFramework
from inferdoc.devices.visibility import match_uuid
from inferdoc.evidence import EnvironmentField

CARD_FIELDS = (
    "gpu",
    "gpu_form_factor",
    "gpu_count",
    "gpu_models",
    "gpu_mig",
    "driver",
    "cuda",
    "compute_capability",
    "power_limit",
    "clocks_locked",
)
_LOCKED = {True: "yes", False: "no", None: None}


def card_fields(
    device: Device,
    *,
    driver: NvmlDriver | None = None,
    framework: Framework | None = None,
    variables: Mapping[str, str],
) -> dict[str, EnvironmentField]:
    """One field for each of `CARD_FIELDS`; on a CPU none of them applies, and no driver is asked.

    ``gpu_count`` and ``gpu_models`` are of all cards that this process sees, although it measures on one.
    """
    if device.kind == "cpu":
        return {name: not_applicable("runs on the CPU") for name in CARD_FIELDS}
    import torch

    framework = framework or TorchFramework()
    driver = driver or open_driver()
    visible = [framework.device(index) for index in range(framework.count())]
    card = None
    if driver is not None and device.index < len(visible):
        card = find_card(driver, visible[device.index], variables)
    whole = match_uuid(driver.cards(), card.parent) if driver and card and card.parent else card
    named_by = "nvml" if device.driver_index is not None else "torch"
    capability = None if device.capability is None else f"{device.capability[0]}.{device.capability[1]}"
    return {
        "gpu": known(device.name, named_by),
        "gpu_form_factor": form_factor(device.name, named_by),
        "gpu_count": known(len(visible) or None, "torch"),
        "gpu_models": known(", ".join(sorted({found.name for found in visible})) or None, "torch"),
        "gpu_mig": _mig(device.name, named_by, card),
        "driver": known(device.driver, "nvml"),
        "cuda": known(torch.version.cuda, "torch"),
        "compute_capability": known(capability, "torch"),
        "power_limit": known(driver.power_limit_w(whole) if driver and whole else None, "nvml", unit="W"),
        "clocks_locked": _locked(driver, whole),
    }


def _mig(name: str, named_by: str, card: Card | None) -> EnvironmentField:
    """``whole card``, or the slice's profile, for example ``1g.10gb``, which stands behind MIG in its name."""
    profile = name.partition(" MIG ")[2]
    if profile:
        return known(profile, f"{named_by} name")
    if card is None:
        return known(None, "no card of the driver matches")
    return known("whole card" if card.parent is None else card.name, "nvml")


def _locked(driver: NvmlDriver | None, card: Card | None) -> EnvironmentField:
    locked = driver.clocks_locked(card) if driver and card else None
    # a locked range that reaches down to the clock of a resting card cannot be seen
    return known(_LOCKED[locked], "nvml: the card's clocks fall at rest" if locked is False else "nvml")

"""What the environment record says of cards, with a driver and a framework that a test writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferdoc.devices import environment, find_device
from inferdoc.devices.card_fields import CARD_FIELDS, card_fields
from inferdoc.devices.driver import NvmlDriver
from inferdoc.devices.host import Host
from inferdoc.evidence import Environment, EnvironmentField


def record(
    fake: SimpleNamespace, host: Host, cards: list[Any], *, uuids: list[str] | None = None, **variables: str
) -> Environment:
    """Of the first visible card."""
    driver = NvmlDriver(fake.Nvml(*cards))
    uuids = uuids or [card.uuid for card in cards]
    by_uuid = {card.uuid: card.name for card in (*cards, *(part for card in cards for part in card.slices))}
    framework = fake.Framework(uuids, names=[by_uuid[uuid] for uuid in uuids])
    device = find_device("cuda", driver=driver, framework=framework, host=host, variables=variables)
    return environment(device, host=host, driver=driver, framework=framework, variables=variables)


def told(fields: dict[str, EnvironmentField], name: str) -> tuple[str, str | float | None]:
    return fields[name].state, fields[name].value


def test_whole_card(fake: SimpleNamespace, host: Host) -> None:
    card = fake.Card("GPU-x", name="NVIDIA H200", power_limit_mw=700_000)
    fields = record(fake, host, [card]).fields
    assert set(CARD_FIELDS) <= set(fields)
    assert told(fields, "gpu") == ("value", "NVIDIA H200")
    assert told(fields, "gpu_form_factor") == ("value", "SXM")
    assert told(fields, "gpu_count") == ("value", 1)
    assert told(fields, "gpu_models") == ("value", "NVIDIA H200")
    assert told(fields, "gpu_mig") == ("value", "whole card")
    assert told(fields, "power_limit") == ("value", 700)
    assert (fields["power_limit"].unit, fields["power_limit"].source) == ("W", "nvml")


def test_cards_that_are_hidden_do_not_count(fake: SimpleNamespace, host: Host) -> None:
    cards = [fake.Card(f"GPU-{n}", name="NVIDIA H100 PCIe") for n in range(3)]
    fields = record(fake, host, cards, uuids=["GPU-1", "GPU-2"], CUDA_VISIBLE_DEVICES="1,2").fields
    assert told(fields, "gpu_count") == ("value", 2)


def test_mixed_cards_are_named_once_each(fake: SimpleNamespace, host: Host) -> None:
    # NVIDIA/TensorRT-LLM#8391: H100 NVL and H100 PCIe in one pool
    names = ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H100 PCIe"]
    cards = [fake.Card(f"GPU-{n}", name=name) for n, name in enumerate(names)]
    fields = record(fake, host, cards).fields
    assert told(fields, "gpu_models") == ("value", "NVIDIA H100 NVL, NVIDIA H100 PCIe")
    assert told(fields, "gpu_form_factor") == ("value", "PCIe")


def test_slice_has_its_profile_and_the_limits_of_its_card(fake: SimpleNamespace, host: Host) -> None:
    part = fake.Card("MIG-7", name="NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    card = fake.Card("GPU-x", name="NVIDIA A100-SXM4-40GB", slices=[part], power_limit_mw=400_000, reasons=0x2)
    fields = record(fake, host, [card], uuids=["MIG-7"], CUDA_VISIBLE_DEVICES="MIG-7").fields
    assert told(fields, "gpu_mig") == ("value", "1g.5gb")
    assert told(fields, "gpu_form_factor") == ("value", "SXM")
    assert told(fields, "power_limit") == ("value", 400)
    assert told(fields, "clocks_locked") == ("value", "yes")


def test_slice_without_a_profile_in_its_name_is_named(fake: SimpleNamespace, host: Host) -> None:
    card = fake.Card("GPU-x", name="NVIDIA H200", slices=[fake.Card("MIG-7", name="NVIDIA H200")])
    fields = record(fake, host, [card], uuids=["MIG-7"], CUDA_VISIBLE_DEVICES="MIG-7").fields
    assert told(fields, "gpu_mig") == ("value", "NVIDIA H200")


@pytest.mark.parametrize(
    ("reasons", "clocks", "locked"),
    [
        (0x2, None, "yes"),  # limited by application clocks
        (0x0, (1410, 1980), "yes"),  # chosen below the usual ones
        (0x1, (1410, 1980), "yes"),  # and the card rests now
        (0x1, (1980, 1980), "no"),  # a card whose clocks fall is not held at one
        (0x1, None, "no"),
        (0x0, (1980, 1980), None),  # what a locked clock looks like, too: it sets no bit
        (0x4, None, None),
    ],
)
def test_locked_clocks(
    fake: SimpleNamespace, host: Host, reasons: int, clocks: tuple[int, int] | None, locked: str | None
) -> None:
    card = fake.Card("GPU-x", reasons=reasons, application_clocks=clocks)
    field = record(fake, host, [card]).fields["clocks_locked"]
    assert (field.state, field.value) == ("unknown" if locked is None else "value", locked)


def test_without_a_driver_its_facts_are_unknown(
    fake: SimpleNamespace, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferdoc.devices.device.open_driver", lambda: None)
    monkeypatch.setattr("inferdoc.devices.card_fields.open_driver", lambda: None)
    framework = fake.Framework(["GPU-x"], names=["NVIDIA L4"])
    device = find_device("cuda", framework=framework, host=host, variables={})
    fields = card_fields(device, framework=framework, variables={})
    for name in ("gpu_mig", "driver", "power_limit", "clocks_locked"):
        assert told(fields, name) == ("unknown", None)
    assert told(fields, "gpu_count") == ("value", 1)
    assert (fields["gpu_form_factor"].value, fields["gpu_form_factor"].source) == ("PCIe", "torch name, by table")


def test_fingerprint_is_the_cards_and_not_the_moments(fake: SimpleNamespace, host: Host) -> None:
    def fingerprint(**facts: Any) -> str:
        return record(fake, host, [fake.Card("GPU-x", **{"name": "NVIDIA H100 PCIe", **facts})]).fingerprint

    assert fingerprint(power_limit_mw=350_000, reasons=0x2) == fingerprint()
    assert fingerprint(name="NVIDIA H100 NVL") != fingerprint()

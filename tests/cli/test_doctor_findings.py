"""``inferdoc doctor``: what was found and what will work."""

from __future__ import annotations

from importlib import metadata

import pytest

from inferdoc.cli.doctor import collect, doctor
from inferdoc.devices import Device
from inferdoc.devices.fields import known
from inferdoc.errors import InputError


def test_machine_is_described() -> None:
    checks = {check.name: check for check in collect()}
    for name in ("python", "torch", "transformers", "triton", "device", "memory", "diagnose", "report"):
        assert name in checks
    assert checks["torch"].passed
    assert "free of" in checks["memory"].text


def test_unknown_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("cuda", 0, "Card", None, None, "VRAM", "unknown", driver_index=2, uuid="GPU-x", driver="580.1")
    monkeypatch.setattr("inferdoc.devices.find_device", lambda _: device)
    checks = {check.name: check for check in collect()}
    assert checks["memory"].passed is False
    assert "--memory" in checks["memory"].text
    assert "framework index 0, driver index 2" in checks["numbering"].text


def test_cards_facts_for_a_gate_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("cuda", 0, "NVIDIA H100 PCIe", 1, 1, "VRAM", "nvml", driver_index=0, uuid="GPU-x", driver="580.1")
    fields = {
        "gpu_form_factor": known("PCIe", "nvml name"),
        "gpu_mig": known("whole card", "nvml"),
        "power_limit": known(350.0, "nvml", unit="W"),
        "clocks_locked": known(None, "nvml"),
        "gpu_models": known("NVIDIA H100 NVL, NVIDIA H100 PCIe", "torch"),
    }
    monkeypatch.setattr("inferdoc.devices.find_device", lambda _: device)
    monkeypatch.setattr("inferdoc.devices.card_fields.card_fields", lambda *_, **__: fields)
    checks = {check.name: check.text for check in collect()}
    assert checks["form factor"] == "PCIe"
    assert checks["MIG"] == "whole card"
    assert checks["power limit"] == "350 W"
    assert "clocks locked" not in checks
    assert "mixed: NVIDIA H100 NVL, NVIDIA H100 PCIe" in checks["cards"]


def test_broken_device_ends_the_list_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise InputError("the driver is confused")

    monkeypatch.setattr("inferdoc.devices.find_device", fail)
    last = collect()[-1]
    assert (last.name, last.passed, last.text) == ("device", False, "the driver is confused")


def test_missing_torch_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    checks = {check.name: check for check in collect()}
    assert "pip install torch" in checks["torch"].text
    assert checks["diagnose"].passed is False


def test_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    doctor()
    assert "torch" in capsys.readouterr().out

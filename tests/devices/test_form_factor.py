"""The form factor from the names that drivers give, as seen on real machines."""

from __future__ import annotations

import pytest

from inferdoc.devices.form_factor import form_factor


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("Tesla V100-SXM2-16GB", "SXM"),
        ("Tesla V100-PCIE-32GB", "PCIe"),
        ("NVIDIA A100-SXM4-80GB", "SXM"),
        ("NVIDIA A100-SXM-64GB", "SXM"),
        ("NVIDIA A100-PCIE-40GB", "PCIe"),
        ("NVIDIA A100 80GB PCIe", "PCIe"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "SXM"),
        ("NVIDIA H100 80GB HBM3", "SXM"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "SXM"),
        ("NVIDIA H100 PCIe", "PCIe"),
        ("NVIDIA H100 NVL", "NVL"),
        ("NVIDIA H200", "SXM"),
        ("NVIDIA H200 NVL", "NVL"),
        ("NVIDIA H20-3e", "SXM"),
        ("NVIDIA H800 PCIe", "PCIe"),
        ("NVIDIA B200", "SXM"),
        ("NVIDIA B300 SXM6 AC", "SXM"),
        ("NVIDIA GH200 480GB", "superchip"),
        ("NVIDIA GB200", "superchip"),
        ("NVIDIA L4", "PCIe"),
        ("NVIDIA L40S", "PCIe"),
        ("Tesla T4", "PCIe"),
    ],
)
def test_data_center_parts(name: str, form: str) -> None:
    field = form_factor(name, "nvml")
    assert (field.state, field.value) == ("value", form)
    assert field.source.startswith("nvml name")


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100",  # sold in three forms
        "NVIDIA A100X",
        "NVIDIA A40-48Q",  # a virtual card
        "Tesla V100-DGXS-32GB",
        "NVIDIA Z900",
        "unknown card",
    ],
)
def test_names_that_do_not_decide_are_unknown(name: str) -> None:
    assert (form_factor(name, "nvml").state, form_factor(name, "nvml").value) == ("unknown", None)


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 4090", "NVIDIA RTX A6000", "Quadro RTX 8000", "NVIDIA TITAN V", "NVIDIA GB10", "Orin"],
)
def test_cards_of_one_form_do_not_have_the_fact(name: str) -> None:
    assert (form_factor(name, "nvml").state, form_factor(name, "nvml").value) == ("not_applicable", None)

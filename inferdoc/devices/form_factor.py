"""The form factor of a card, from the marketing name that its driver gives: H100 SXM, PCIe and NVL differ in speed."""

from __future__ import annotations

import re

from inferdoc.devices.fields import known, not_applicable
from inferdoc.evidence import EnvironmentField

_TOKEN = re.compile(r"(?<![A-Za-z0-9])(SXM|PCIE|NVL)\d*(?![A-Za-z0-9])", re.IGNORECASE)
_SPELLING = {"SXM": "SXM", "PCIE": "PCIe", "NVL": "NVL"}
# Names without a token, where one form alone has that name; the other forms of the same chip carry theirs.
_WITHOUT_TOKEN = (
    (r"H100 80GB HBM3", "SXM"),  # pci.ids 10de:2330, GH100 [H100 SXM5 80GB]
    (r"H200", "SXM"),  # pci.ids 10de:2335, GH100 [H200 SXM 141GB]
    (r"H800( 80GB HBM3)?", "SXM"),  # pci.ids 10de:2324, GH100 [H800], beside 10de:2322, [H800 PCIe]; HGX H800 boards
    (r"H20(-3e)?", "SXM"),  # NVIDIA AI Enterprise, vGPU types: H20 SXM5 96GB and H20 SXM5 141GB
    (r"B200", "SXM"),  # pci.ids 10de:2901; NVIDIA AI Enterprise, NVSwitch: HGX B200 boards, no other product
    (r"GH200( .*)?", "superchip"),  # pci.ids 10de:2342, GH100 [GH200 120GB / 480GB]: one module with a Grace CPU
    (r"GB[23]00( .*)?", "superchip"),  # pci.ids 10de:2941 and 10de:31c2: one module with a Grace CPU
    # NVIDIA's product briefs of these describe a PCI Express card, and there is no HGX variant
    (r"(A2|A10|A10G|A16|A30|A40|L2|L4|L20|L40|L40S|T4)", "PCIe"),
)
_NOT_DATA_CENTER = re.compile(r"\b(GeForce|RTX|GTX|Quadro|TITAN|GB10|Orin|Thor|Xavier|Tegra)\b", re.IGNORECASE)


def form_factor(name: str, source: str) -> EnvironmentField:
    """``SXM``, ``PCIe``, ``NVL`` or ``superchip`` of a data-center part; unknown where its name does not decide.

    Cards for workstations and consumers, and chips on a board, come in one form each: not applicable.

    Args:
        name: marketing name, for example ``NVIDIA A100-SXM4-80GB``; a MIG slice's is its card's with the profile.
        source: who gave the name.
    """
    whole = re.sub(r"^((NVIDIA|Tesla) )+", "", name.partition(" MIG ")[0].strip())
    if _NOT_DATA_CENTER.search(whole):
        return not_applicable(f"{source} name: not a data-center part")
    token = _TOKEN.search(whole)
    if token is not None:
        return known(_SPELLING[token[1].upper()], f"{source} name")
    listed = next((form for pattern, form in _WITHOUT_TOKEN if re.fullmatch(pattern, whole)), None)
    return known(listed, f"{source} name, by table")

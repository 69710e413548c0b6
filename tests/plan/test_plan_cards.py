"""The cards' data file: every number has its source, and what the driver counts is near what the vendor states."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from inferdoc.devices.cards import card_names, find_card_spec, present_card_spec
from inferdoc.devices.device import Device
from inferdoc.errors import InputError
from inferdoc.evidence import Basis


@pytest.mark.parametrize("name", card_names())
def test_every_card_is_complete_and_sourced(name: str) -> None:
    card = find_card_spec(name)
    assert card.source
    assert card.memory_source
    assert card.basis is Basis.SPEC
    assert card.memory_stated_gb is not None
    # the vendors' gigabytes lie between 10^9 and 2^30 bytes; ECC takes up to a sixteenth of GDDR
    assert 0.93 * card.memory_stated_gb * 1e9 < card.memory_bytes <= card.memory_stated_gb * 2**30
    assert card.bandwidth_bytes_per_s is not None
    assert 2.5e11 < card.bandwidth_bytes_per_s < 1e13
    if card.bf16_flop_per_s is not None:
        eight = 4 if name.startswith("rtx") else 2  # FP32 accumulation halves BF16 and FP8 of these, not INT8
        for rate, times in ((card.fp8_flop_per_s, 2), (card.int8_op_per_s, eight)):
            assert rate is None or rate == pytest.approx(times * card.bf16_flop_per_s, rel=0.015)


def test_data_file_has_no_unknown_keys(repository: Any) -> None:
    entries = yaml.safe_load((repository / "inferdoc" / "data" / "gpus.yaml").read_text())
    known = {"name", "aliases", "memory_gb", "memory_mib", "memory_source", "bandwidth_gb_s"}
    known |= {"bf16_tflops", "fp8_tflops", "int8_tops", "source", "rates_unread"}
    for name, entry in entries.items():
        assert set(entry) <= known, name
        assert ("memory_mib" in entry) == ("memory_source" in entry), name


@pytest.mark.parametrize("name", ["h100_nvl", "b200", "gb200", "rtx_4090", "rtx_5090", "mi300x", "mi325x", "t4"])
def test_rates_that_were_not_read_again_say_where_they_stand(name: str) -> None:
    source = find_card_spec(name).source
    assert "data sheet" in source or "white paper" in source or "column" in source
    assert "not read again" in source
    assert "not read again" not in find_card_spec("h200_sxm").source


def test_vendors_numbers_of_the_h200() -> None:
    card = find_card_spec("h200_sxm")
    assert card.memory_bytes == 143_771 * 2**20
    assert (card.bandwidth_bytes_per_s, card.bf16_flop_per_s) == (4.8e12, 9.895e14)


@pytest.mark.parametrize(
    ("name", "id"),
    [("a100_80gb", "a100_80gb_pcie"), ("H200-SXM", "h200_sxm"), (" h200 ", "h200_sxm"), ("RTX 4090", "rtx_4090")],
)
def test_aliases_and_spelling(name: str, id: str) -> None:
    assert find_card_spec(name).id == id


@pytest.mark.parametrize(("name", "near"), [("h100", "h100_sxm"), ("h200_smx", "h200_sxm"), ("a100", "a100_40gb")])
def test_unknown_card_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InputError, match=rf"--gpu {name}: no such card; did you mean .*{near}"):
        find_card_spec(name)


def test_card_like_none_lists_all() -> None:
    with pytest.raises(InputError, match=r"known are h100_sxm, .*mi325x"):
        find_card_spec("zzzz")


def a_device(**change: Any) -> Device:
    values: dict[str, Any] = {
        "kind": "cuda",
        "index": 0,
        "name": "NVIDIA L4",
        "total_bytes": 24 * 10**9,
        "free_bytes": 20 * 10**9,
        "memory_label": "VRAM",
        "source": "nvml",
    }
    return Device(**(values | change))


def test_present_card_is_what_the_driver_tells() -> None:
    card = present_card_spec(a_device())
    assert (card.id, card.name, card.memory_bytes) == ("present", "NVIDIA L4", 24 * 10**9)
    assert card.basis is Basis.MEASURED
    assert "nvml" in card.source


@pytest.mark.parametrize(("change", "what"), [({"kind": "cpu"}, "no card here"), ({"total_bytes": None}, "NVIDIA L4")])
def test_no_card_here_lists_the_names(change: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=rf"{what}.*--gpu: h100_sxm, .*t4"):
        present_card_spec(a_device(**change))

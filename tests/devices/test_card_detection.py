"""Which card is meant, how much memory it has, and who said so. Tests name the public report behind them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferdoc.devices import Device, find_device
from inferdoc.devices.driver import NvmlDriver, open_driver
from inferdoc.devices.host import Host
from inferdoc.devices.visibility import visible_cards
from inferdoc.errors import InputError

GIB = 1024**3
MIB = 1024**2


@pytest.fixture
def three(fake: SimpleNamespace) -> Any:
    """Three cards of 24, 48 and 80 GiB."""
    return fake.Nvml(
        fake.Card("GPU-1a2b-00", name="Card 24", total=24 * GIB, bus="00000000:01:00.0"),
        fake.Card("GPU-3f2a-11", name="Card 48", total=48 * GIB, bus="00000000:02:00.0"),
        fake.Card("GPU-3f2b-22", name="Card 80", total=80 * GIB, bus="00000000:03:00.0"),
    )


def find(nvml: Any, framework: Any, host: Host, requested: str = "cuda", **variables: str) -> Device:
    return find_device(requested, driver=NvmlDriver(nvml), framework=framework, host=host, variables=variables)


def test_framework_index_is_matched_to_the_driver_by_uuid(fake: SimpleNamespace, three: Any, host: Host) -> None:
    # huggingface/optimum-benchmark#47: CUDA_VISIBLE_DEVICES=2,0
    framework = fake.Framework(["3f2b-22", "1a2b-00"])
    first = find(three, framework, host, CUDA_VISIBLE_DEVICES="2,0")
    second = find(three, framework, host, "cuda:1", CUDA_VISIBLE_DEVICES="2,0")
    assert (first.index, first.driver_index, first.name, first.total_bytes) == (0, 2, "Card 80", 80 * GIB)
    assert (second.index, second.driver_index, second.name, second.total_bytes) == (1, 0, "Card 24", 24 * GIB)


def test_order_by_speed_is_no_trap(fake: SimpleNamespace, three: Any, host: Host) -> None:
    # without the variable CUDA puts the fastest card first; only its UUID tells which one that is
    assert find(three, fake.Framework(["3f2b-22", "1a2b-00", "3f2a-11"]), host).driver_index == 2


def test_variable_decides_where_torch_tells_no_uuid(fake: SimpleNamespace, three: Any, host: Host) -> None:
    device = find(three, fake.Framework([None, None]), host, CUDA_VISIBLE_DEVICES="2,0")
    assert (device.driver_index, device.uuid) == (2, "GPU-3f2b-22")


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-3f2a", [1]),
        ("GPU-3f2a-11,GPU-1a", [1, 0]),
        ("GPU-3f2", []),
        ("1,GPU-nothing,0", [1]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("1,1", [1]),
    ],
)
def test_visible_devices_are_resolved_as_cuda_does(three: Any, variable: str | None, expected: list[int]) -> None:
    # vllm-project/vllm#51677: beginnings of UUIDs must be unambiguous; the first bad entry ends the list
    assert [card.index for card in visible_cards(NvmlDriver(three).cards(), variable)] == expected


@pytest.mark.parametrize("variable", ["MIG-aa", "MIG-aaaa-1", "MIG-GPU-big/3/0", None])
def test_slice_has_its_own_memory(fake: SimpleNamespace, host: Host, variable: str | None) -> None:
    # vllm-project/vllm PR#39874: a slice of 16 GiB on a parent of 141 GB
    part = fake.Card("MIG-aaaa-1", name="Card MIG 1g.16gb", total=16 * GIB, free=15 * GIB, ids=(3, 0))
    other = fake.Card("MIG-bbbb-2", total=32 * GIB, ids=(4, 0))
    nvml = fake.Nvml(fake.Card("GPU-big", total=141_000_000_000, slices=[part, other]))
    variables = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    device = find(nvml, fake.Framework(["big"]), host, **variables)
    assert (device.total_bytes, device.free_bytes) == (16 * GIB, 15 * GIB)
    assert device.memory_label == "VRAM of a MIG slice"
    assert device.uuid == "MIG-aaaa-1"


def test_no_permission_is_unknown_and_torch_is_asked(fake: SimpleNamespace, host: Host) -> None:
    # vllm-project/vllm PR#50463
    nvml = fake.Nvml(fake.Card("GPU-x", name="Named Card", memory_error=4))
    device = find(nvml, fake.Framework(["x"]), host)
    assert device.name == "Named Card"
    assert (device.total_bytes, device.free_bytes, device.source) == (6 * GIB, 5 * GIB, "torch")
    assert any("no permission" in note for note in device.notes)


def test_memory_that_nobody_tells_stays_unknown(fake: SimpleNamespace, host: Host) -> None:
    nvml = fake.Nvml(fake.Card("GPU-x", memory_error=4))
    device = find(nvml, fake.Framework(["x"], free_and_total=None), host)
    assert (device.total_bytes, device.free_bytes, device.usable_bytes) == (None, None, None)
    assert device.source == "unknown"
    assert any("--memory" in note for note in device.notes)


def test_unified_memory_is_the_hosts(fake: SimpleNamespace, host: Host) -> None:
    # gpud PR#1170: the driver's memory query is "not supported" on machines that share memory
    nvml = fake.Nvml(fake.Card("GPU-x", memory_error=3, processes=[(1, 2 * GIB)]))
    device = find(nvml, fake.Framework(["x"], integrated=True), host)
    assert (device.total_bytes, device.free_bytes) == (131_072_000 * 1024, 102_400_000 * 1024)
    assert device.unified
    assert "unified" in device.memory_label
    assert NvmlDriver(nvml).state(NvmlDriver(nvml).cards()[0]).processes == ((1, 2 * GIB),)


def test_probe_on_unified_memory_keeps_a_reserve(fake: SimpleNamespace, host: Host) -> None:
    # vllm-project/vllm#46307: 119 GiB in all, 60 available: stay below 52
    (host.proc / "meminfo").write_text(f"MemTotal: {119 * 1024**2} kB\nMemAvailable: {60 * 1024**2} kB\n")
    device = find(fake.Nvml(fake.Card("GPU-x", memory_error=3)), fake.Framework(["x"], integrated=True), host)
    assert device.usable_bytes is not None
    assert 0 < device.usable_bytes < 52 * GIB


def test_discrete_card_needs_no_reserve(fake: SimpleNamespace, host: Host) -> None:
    device = find(fake.Nvml(fake.Card("GPU-x", free=20 * GIB)), fake.Framework(["x"]), host)
    assert device.usable_bytes == device.free_bytes == 20 * GIB


def test_reserved_memory_is_not_used_memory(fake: SimpleNamespace, host: Host) -> None:
    # wookayin/gpustat#141
    card = fake.Card("GPU-x", total=24_576 * MIB, free=24_260 * MIB, reserved=308 * MIB, used=8 * MIB)
    memory = NvmlDriver(fake.Nvml(card)).cards()[0].memory
    assert memory is not None
    assert (memory.used, memory.reserved) == (8 * MIB, 308 * MIB)
    assert find(fake.Nvml(card), fake.Framework(["x"]), host).reserved_bytes == 308 * MIB


def test_old_package_is_used_and_named(fake: SimpleNamespace, host: Host) -> None:
    # wookayin/gpustat#153: the module of the old package has no versioned call and answers bytes
    class Old(fake.Nvml):  # type: ignore[misc]
        nvmlMemory_v2 = property()  # noqa: N815  # hides the constant: reading it raises AttributeError

        def nvmlDeviceGetMemoryInfo(self, card: Any) -> Any:  # noqa: N802
            return fake.record(total=card.total, free=card.free, used=card.used + card.reserved)

    card = fake.Card("GPU-x", name=b"Old Card", bus=b"00000000:01:00.0", free=23 * GIB)
    device = find(Old(card), fake.Framework(["x"]), host)
    assert (device.name, device.free_bytes, device.reserved_bytes) == ("Old Card", 23 * GIB, None)
    assert any("pip uninstall pynvml" in note for note in device.notes)


def test_driver_older_than_the_package_falls_back(fake: SimpleNamespace) -> None:
    class OldDriver(fake.Nvml):  # type: ignore[misc]
        def nvmlDeviceGetMemoryInfo(self, card: Any, version: int | None = None) -> Any:  # noqa: N802
            if version is not None:
                raise fake.Error(13)
            return super().nvmlDeviceGetMemoryInfo(card)

    memory = NvmlDriver(OldDriver(fake.Card("GPU-x", used=5))).cards()[0].memory
    assert memory is not None
    assert (memory.used, memory.reserved) == (5, None)


def test_machine_without_driver_library_still_has_a_device(
    fake: SimpleNamespace, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferdoc.devices.device.open_driver", lambda: None)
    device = find_device("cuda", framework=fake.Framework(["x"]), host=host, variables={})
    assert (device.name, device.source, device.driver) == ("Torch Card", "torch", None)
    assert any("cannot be asked" in note for note in device.notes)


def test_driver_that_does_not_start_is_no_driver(fake: SimpleNamespace) -> None:
    class Broken(fake.Nvml):  # type: ignore[misc]
        def nvmlInit(self) -> None:  # noqa: N802
            raise fake.Error(9)

    assert open_driver(Broken()) is None
    assert open_driver(fake.Nvml()) is not None


def test_versions_are_told(fake: SimpleNamespace, host: Host) -> None:
    driver = NvmlDriver(fake.Nvml(fake.Card("GPU-x")))
    assert (driver.version(), driver.cuda_version()) == ("580.95.05", "13.0")
    assert find(fake.Nvml(fake.Card("GPU-x")), fake.Framework(["x"]), host).torch_name == "cuda:0"


def test_auto_takes_a_card_where_there_is_one(fake: SimpleNamespace, host: Host) -> None:
    assert find(fake.Nvml(fake.Card("GPU-x")), fake.Framework(["x"]), host, "auto").kind == "cuda"
    assert find(fake.Nvml(), fake.Framework([]), host, "auto").kind == "cpu"


@pytest.mark.parametrize(
    ("requested", "count", "message"),
    [
        ("cuda", 0, "no CUDA device: this stand-in has none; --device cpu works"),
        ("cuda:1", 1, "cuda:0 is the only one"),
        ("cuda:4", 3, "cuda:0 to cuda:2 exist"),
        ("gpu", 1, "choose auto, cpu, cuda or cuda:N"),
        ("cuda:x", 1, "choose auto"),
    ],
)
def test_wrong_device_is_one_clear_error(
    fake: SimpleNamespace, host: Host, requested: str, count: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        find(fake.Nvml(), fake.Framework(["x"] * count), host, requested)


def test_cuda_on_a_machine_without_it_says_what_torch_was_built_for() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a card")
    with pytest.raises(InputError, match=r"no CUDA device: .*torch"):
        find_device("cuda")

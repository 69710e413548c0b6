"""Memory, caches and load of the host, from files laid out like another machine's."""

from __future__ import annotations

import pytest

from inferdoc.devices import find_device
from inferdoc.devices.host import Host

GIB = 1024**3


def test_processor_device_has_host_memory_and_says_so(host: Host) -> None:
    device = find_device("cpu", host=host)
    assert (device.total_bytes, device.free_bytes) == (131_072_000 * 1024, 102_400_000 * 1024)
    assert device.memory_label == "host RAM, not VRAM"
    assert (device.name, device.source, device.torch_name) == ("Test Processor 9000", "proc", "cpu")
    assert device.cache_bytes == 4 * 1024**2
    assert device.notes == ()


def test_virtual_machine_is_warned_about_its_cache(host: Host) -> None:
    (host.proc / "cpuinfo").write_text("model name : Virtual\nflags : fpu hypervisor\n")
    assert any("last-level cache" in note for note in find_device("cpu", host=host).notes)


def test_control_group_of_version_two_limits(host: Host) -> None:
    (host.proc / "self/cgroup").write_text("0::/user/job\n")
    group = host.sys / "fs/cgroup/user/job"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{8 * GIB}\n")
    (group / "memory.current").write_text(f"{5 * GIB}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {1 * GIB}\n")
    (host.sys / "fs/cgroup/user/memory.max").write_text("max\n")
    memory = host.memory()
    assert (memory.total, memory.available, memory.limited_by) == (8 * GIB, 4 * GIB, "control group")
    assert any("control group" in note for note in find_device("cpu", host=host).notes)


def test_tighter_parent_group_wins(host: Host) -> None:
    (host.proc / "self/cgroup").write_text("0::/user/job\n")
    for name, limit in (("user", 2 * GIB), ("user/job", 8 * GIB)):
        group = host.sys / "fs/cgroup" / name
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(str(limit))
        (group / "memory.current").write_text("0")
    assert host.memory().total == 2 * GIB


def test_control_group_of_version_one_limits(host: Host) -> None:
    (host.proc / "self/cgroup").write_text("9:cpu:/\n4:memory:/docker/abc\n0::/\n")
    # the path is the host's and does not exist inside the container: the mount's root is our group
    group = host.sys / "fs/cgroup/memory"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{3 * GIB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{2 * GIB}\n")
    (group / "memory.stat").write_text(f"total_inactive_file {GIB // 2}\n")
    memory = host.memory()
    assert (memory.total, memory.available) == (3 * GIB, 3 * GIB // 2)


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", str(200 * 1000 * GIB)])
def test_group_without_a_real_limit_changes_nothing(host: Host, limit: str) -> None:
    root = host.sys / "fs/cgroup"
    root.mkdir(parents=True, exist_ok=True)
    (root / "memory.max").write_text(limit)
    (root / "memory.current").write_text("123")
    memory = host.memory()
    assert (memory.total, memory.limited_by) == (131_072_000 * 1024, "host")


def test_nothing_readable_is_unknown_not_zero(host: Host) -> None:
    empty = Host(host.proc / "absent", host.sys / "absent")
    assert (empty.memory().total, empty.memory().available) == (None, None)
    assert empty.last_level_cache() is None
    assert empty.processor() is None
    assert empty.is_virtual() is None
    assert empty.load_average() is None
    assert empty.processor_times() is None
    device = find_device("cpu", host=empty)
    assert (device.total_bytes, device.free_bytes, device.source) == (None, None, "unknown")


def test_processor_times_read_fields_behind_an_odd_name(host: Host) -> None:
    times = host.processor_times()
    assert times is not None
    assert (times.total, times.busy, times.steal, times.own) == (1000, 200, 0, 100)


def test_real_machine_answers() -> None:
    real = Host()
    memory = real.memory()
    assert real.cores() >= 1
    assert memory.total is None or memory.available is None or 0 < memory.available <= memory.total

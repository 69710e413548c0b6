"""The machine's health during a measurement, with readings that a test writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferdoc.devices import Watch, find_device
from inferdoc.devices.driver import NvmlDriver
from inferdoc.devices.host import Host
from inferdoc.evidence import Check

MIB = 1024**2


def tick(host: Host, *, user: int, idle: int, steal: int, own: int) -> None:
    (host.proc / "stat").write_text(f"cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\n")
    (host.proc / "self/stat").write_text(f"7 (x) S 1 1 1 0 -1 0 0 0 0 0 {own} 0 0 0 20 0 1 0\n")


def by_name(watch: Watch) -> dict[str, Check]:
    return {check.name: check for check in watch.checks()}


def cpu_watch(host: Host, **variables: str) -> Watch:
    return Watch(find_device("cpu", host=host), host=host, variables=variables)


@pytest.mark.parametrize(
    ("user", "steal", "own", "others_pass", "steal_passes"),
    [
        (100, 0, 100, True, True),
        (104, 0, 100, True, True),
        (200, 0, 100, False, True),
        (100, 30, 100, True, False),
    ],
)
def test_shares_of_others_and_of_the_hypervisor(
    host: Host, user: int, steal: int, own: int, others_pass: bool, steal_passes: bool
) -> None:
    tick(host, user=0, idle=0, steal=0, own=0)
    with cpu_watch(host) as watch:
        tick(host, user=user, idle=1000 - user - steal, steal=steal, own=own)
    checks = by_name(watch)
    assert checks["other processes on the CPU"].passed is others_pass
    assert checks["time taken by the hypervisor"].passed is steal_passes
    others = (user - own) / 1000
    assert f"{others:.1%} of processor time" in checks["other processes on the CPU"].text


def test_own_work_is_not_held_against_us(host: Host) -> None:
    tick(host, user=0, idle=0, steal=0, own=0)
    with cpu_watch(host) as watch:
        tick(host, user=1000, idle=0, steal=0, own=1000)
    assert by_name(watch)["other processes on the CPU"].passed is True


def test_unreadable_times_are_unknown(host: Host) -> None:
    (host.proc / "stat").unlink()
    (host.proc / "loadavg").unlink()
    with cpu_watch(host) as watch:
        pass
    checks = by_name(watch)
    for name in ("load before", "other processes on the CPU", "time taken by the hypervisor"):
        assert checks[name].passed is None


def test_busy_machine_before_the_start_is_told_not_judged(host: Host) -> None:
    (host.proc / "loadavg").write_text("512.00 3 3 1/1 1\n")
    with cpu_watch(host) as watch:
        pass
    assert by_name(watch)["load before"].passed is None
    assert "512.00" in by_name(watch)["load before"].text


def test_debugging_variable_fails_and_is_named(host: Host) -> None:
    # vllm-project/vllm PR#11791: a gain of 30 to 50 % came from CUDA_LAUNCH_BLOCKING=1
    with cpu_watch(host, CUDA_LAUNCH_BLOCKING="1") as watch:
        pass
    check = by_name(watch)["timing variables"]
    assert check.passed is False
    assert "CUDA_LAUNCH_BLOCKING" in check.text
    with cpu_watch(host, CUDA_LAUNCH_BLOCKING="0", OMP_NUM_THREADS="2") as quiet:
        pass
    assert by_name(quiet)["timing variables"].passed is True


def card_watch(fake: SimpleNamespace, host: Host, card: Any) -> Watch:
    driver, framework = NvmlDriver(fake.Nvml(card)), fake.Framework(["x"])
    device = find_device("cuda", driver=driver, framework=framework, host=host, variables={})
    return Watch(device, host=host, driver=driver, framework=framework, variables={}, own_pid=77)


def test_quiet_card_passes(fake: SimpleNamespace, host: Host) -> None:
    card = fake.Card("GPU-x", processes=[(77, 500 * MIB)], used=600 * MIB)
    with card_watch(fake, host, card) as watch:
        watch.sample()
    checks = by_name(watch)
    for name in ("throttling", "clocks", "other processes on the card", "memory of other processes"):
        assert checks[name].passed is True, checks[name]


@pytest.mark.parametrize(
    ("reasons", "text"),
    [(0x1, None), (0x2, None), (0x4, "power cap"), (0x20, "thermal"), (0x40 | 0x8, "hardware slowdown")],
)
def test_throttling_is_told_from_rest_and_settings(
    fake: SimpleNamespace, host: Host, reasons: int, text: str | None
) -> None:
    card = fake.Card("GPU-x")
    with card_watch(fake, host, card) as watch:
        card.reasons = reasons
        watch.sample()
        card.reasons = 0
    check = by_name(watch)["throttling"]
    assert check.passed is (text is None)
    assert text is None or text in check.text


def test_clock_that_falls_during_the_measurement_fails(fake: SimpleNamespace, host: Host) -> None:
    card = fake.Card("GPU-x", clock=210)  # at rest before the work
    with card_watch(fake, host, card) as watch:
        card.clock = 1900
        watch.sample()
        card.clock = 1400
    check = by_name(watch)["clocks"]
    assert check.passed is False
    assert "1400 to 1900 MHz of at most 1980 MHz" in check.text


def test_other_process_on_the_card_fails(fake: SimpleNamespace, host: Host) -> None:
    card = fake.Card("GPU-x", processes=[(77, 1), (99, 1)])
    with card_watch(fake, host, card) as watch:
        pass
    assert by_name(watch)["other processes on the card"].passed is False


def test_processes_of_another_numbering_are_unknown(fake: SimpleNamespace, host: Host) -> None:
    card = fake.Card("GPU-x", processes=[(4242, 1)])  # a container: ours is there under the host's number
    with card_watch(fake, host, card) as watch:
        pass
    assert by_name(watch)["other processes on the card"].passed is None


@pytest.mark.parametrize(("before", "after", "way"), [(4096, 0, "gave back"), (0, 4096, "took")])
def test_memory_that_others_move_is_told_with_its_direction(
    fake: SimpleNamespace, host: Host, before: int, after: int, way: str
) -> None:
    # vllm-project/vllm#2248: another process frees 4 GiB while we measure
    card = fake.Card("GPU-x", processes=[(77, 1000 * MIB)], used=(1000 + before) * MIB)
    with card_watch(fake, host, card) as watch:
        card.used = (1000 + after) * MIB
    check = by_name(watch)["memory of other processes"]
    assert check.passed is False
    assert f"others {way} {4096 * MIB} bytes" in check.text


def test_own_allocations_do_not_count_as_foreign(fake: SimpleNamespace, host: Host) -> None:
    card = fake.Card("GPU-x", processes=[(77, 1000 * MIB)], used=1000 * MIB)
    with card_watch(fake, host, card) as watch:
        card.processes, card.used = [(77, 9000 * MIB)], 9000 * MIB
    assert by_name(watch)["memory of other processes"].passed is True


def test_card_that_tells_nothing_is_unknown(fake: SimpleNamespace, host: Host) -> None:
    class Silent(fake.Nvml):  # type: ignore[misc]
        def _refuse(self, *_: Any) -> None:
            raise fake.Error(3)

        nvmlDeviceGetCurrentClocksEventReasons = nvmlDeviceGetClockInfo = nvmlDeviceGetMaxClockInfo = _refuse  # noqa: N815
        nvmlDeviceGetComputeRunningProcesses = _refuse  # noqa: N815

    driver, framework = NvmlDriver(Silent(fake.Card("GPU-x"))), fake.Framework(["x"])
    device = find_device("cuda", driver=driver, framework=framework, host=host, variables={})
    with Watch(device, host=host, driver=driver, framework=framework, variables={}) as watch:
        pass
    checks = by_name(watch)
    for name in ("throttling", "clocks", "other processes on the card", "memory of other processes"):
        assert checks[name].passed is None

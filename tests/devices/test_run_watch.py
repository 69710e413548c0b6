"""Which pairs of runs were disturbed from outside, with readings that a test writes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from inferdoc.devices import Reading, RunWatch, cause, find_device
from inferdoc.devices.driver import NvmlDriver
from inferdoc.devices.host import Host

Change = dict[str, Any]


@pytest.fixture
def read_pair(fake: SimpleNamespace, host: Host) -> Callable[..., str | None]:
    """Reads a card before and after each of two runs, as a test sets it, and judges the pair."""

    def read(*states: Change, own_pid: int = 77) -> str | None:
        card = fake.Card("GPU-x", processes=[(77, 1)], clock=1980)
        driver, framework = NvmlDriver(fake.Nvml(card)), fake.Framework(["x"])
        device = find_device("cuda", driver=driver, framework=framework, host=host, variables={})
        watch = RunWatch(device, driver=driver, framework=framework, variables={}, own_pid=own_pid)
        readings: list[Reading | None] = []
        for change in states:
            for name, value in change.items():
                setattr(card, name, value)
            readings.append(watch.read())
        assert None not in readings
        return cause(readings[:2], readings[2:])

    return read


def test_a_quiet_pair_counts(read_pair: Callable[..., str | None]) -> None:
    assert read_pair({"clock": 345}, {"clock": 1980}, {}, {"clock": 1900}) is None


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        (0x8, "hardware slowdown"),
        (0x20, "thermal limit (software)"),
        (0x40, "thermal limit (hardware)"),
        (0x80, "power brake"),
        (0x4 | 0x20, "thermal limit (software)"),
    ],
)
def test_throttling_names_the_arm_and_the_reason(read_pair: Callable[..., str | None], reasons: int, text: str) -> None:
    assert read_pair({}, {"reasons": reasons}, {"reasons": 0}, {}) == f"the baseline throttled: {text}"
    assert read_pair({}, {}, {}, {"reasons": reasons}) == f"the candidate throttled: {text}"


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x4, 0x100])
def test_rest_settings_and_the_loads_own_power_are_no_cause(read_pair: Callable[..., str | None], reasons: int) -> None:
    assert read_pair({}, {"reasons": reasons}, {}, {}) is None


def test_another_process_in_either_run_is_a_cause(read_pair: Callable[..., str | None]) -> None:
    shared = {"processes": [(77, 1), (99, 1)]}
    alone = {"processes": [(77, 1)]}
    assert read_pair({}, {}, {}, shared) == "1 other process computed on the card"
    assert read_pair(shared, alone, {}, {}) == "1 other process computed on the card"
    assert read_pair({"processes": [(77, 1), (98, 1), (99, 1)]}, {}, {}, {}) == "2 other processes computed on the card"


def test_process_ids_of_another_system_are_not_held_against_a_pair(read_pair: Callable[..., str | None]) -> None:
    assert read_pair({}, {}, {}, {}, own_pid=4242) is None


@pytest.mark.parametrize(("slow", "apart"), [(1782, False), (1781, True), (900, True)])
def test_clocks_more_than_a_tenth_apart(read_pair: Callable[..., str | None], slow: int, apart: bool) -> None:
    # 1782 MHz is 0.9 of 1980 MHz
    expected = f"clocks of the two runs are more than 10% apart: baseline 1980 MHz, candidate {slow} MHz"
    assert read_pair({}, {}, {}, {"clock": slow}) == (expected if apart else None)
    told = read_pair({"clock": slow}, {"clock": slow}, {"clock": slow}, {"clock": 1980})
    assert (told is not None) is apart


def test_a_card_at_rest_tells_no_clock_of_the_run(read_pair: Callable[..., str | None]) -> None:
    assert read_pair({}, {"clock": 345, "reasons": 0x1}, {"clock": 1980, "reasons": 0}, {}) is None


def test_several_causes_are_all_told(read_pair: Callable[..., str | None]) -> None:
    told = read_pair({}, {}, {}, {"clock": 1000, "reasons": 0x40, "processes": [(77, 1), (5, 1)]})
    assert told is not None
    assert told.split("; ") == [
        "the candidate throttled: thermal limit (hardware)",
        "1 other process computed on the card",
        "clocks of the two runs are more than 10% apart: baseline 1980 MHz, candidate 1000 MHz",
    ]


def test_what_the_driver_does_not_tell_is_no_cause(fake: SimpleNamespace, host: Host) -> None:
    class Silent(fake.Nvml):  # type: ignore[misc]
        def _refuse(self, *_: Any) -> None:
            raise fake.Error(3)

        nvmlDeviceGetCurrentClocksEventReasons = nvmlDeviceGetClockInfo = _refuse  # noqa: N815
        nvmlDeviceGetComputeRunningProcesses = _refuse  # noqa: N815

    driver, framework = NvmlDriver(Silent(fake.Card("GPU-x"))), fake.Framework(["x"])
    device = find_device("cuda", driver=driver, framework=framework, host=host, variables={})
    watch = RunWatch(device, driver=driver, framework=framework, variables={})
    readings = [watch.read() for _ in range(4)]
    assert readings[0] is not None
    assert readings[0].state.idle is None
    assert cause(readings[:2], readings[2:]) is None


def test_a_processor_has_no_readings_and_no_cause(host: Host) -> None:
    watch = RunWatch(find_device("cpu", host=host))
    readings = [watch.read() for _ in range(4)]
    assert readings == [None] * 4
    assert cause(readings[:2], readings[2:]) is None

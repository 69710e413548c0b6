"""The record of the machine: four states, and a fingerprint over what is stable."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata

import pytest

from inferdoc.devices import Device, environment, find_device
from inferdoc.devices.card_fields import CARD_FIELDS
from inferdoc.devices.environment import package_version
from inferdoc.devices.host import Host


@pytest.fixture
def device(host: Host) -> Device:
    return find_device("cpu", host=host)


def test_fields_have_values_and_sources(host: Host, device: Device) -> None:
    fields = environment(device, host=host, variables={}).fields
    assert fields["torch"].value == metadata.version("torch")
    assert fields["transformers"].value == metadata.version("transformers")
    assert fields["processor"].value == "Test Processor 9000"
    assert fields["memory_total"].value == 131_072_000 * 1024
    assert fields["memory_total"].unit == "B"
    assert fields["memory_kind"].value == "host RAM, not VRAM"
    assert fields["virtual_machine"].value == "no"
    assert fields["timing_variables"].value == "none set"


def test_card_fields_do_not_apply_on_a_processor(host: Host, device: Device) -> None:
    fields = environment(device, host=host, variables={}).fields
    for name in CARD_FIELDS:
        assert (fields[name].state, fields[name].value) == ("not_applicable", None)


def test_unknown_is_a_state_of_its_own(host: Host, device: Device) -> None:
    empty = Host(host.proc / "absent", host.sys / "absent")
    unknown = replace(device, total_bytes=None, free_bytes=None)
    fields = environment(unknown, host=empty, variables={}).fields
    for name in ("processor", "last_level_cache", "memory_total", "memory_free", "virtual_machine"):
        assert (fields[name].state, fields[name].value) == ("unknown", None)


def test_variables_that_change_timing_are_recorded(host: Host, device: Device) -> None:
    variables = {"CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "2", "HOME": "/somewhere"}
    text = environment(device, host=host, variables=variables).fields["timing_variables"].value
    assert text == "CUDA_LAUNCH_BLOCKING=1, OMP_NUM_THREADS=2"


def test_fingerprint_ignores_free_memory(host: Host, device: Device) -> None:
    first = environment(device, host=host, variables={}).fingerprint
    assert len(first) == 64
    assert environment(replace(device, free_bytes=1), host=host, variables={}).fingerprint == first
    assert environment(replace(device, total_bytes=1024**4), host=host, variables={}).fingerprint != first
    assert environment(device, host=host, variables={"OMP_NUM_THREADS": "1"}).fingerprint != first
    (host.proc / "cpuinfo").write_text("model name : Another\nflags : fpu\n")
    assert environment(device, host=host, variables={}).fingerprint != first


@pytest.mark.parametrize("name", ["GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILDKITE_COMMIT"])
def test_commit_is_what_the_ci_service_says(host: Host, device: Device, name: str) -> None:
    variables = {name: "0123456789ABCDEF0123456789abcdef01234567"}
    field = environment(device, host=host, variables=variables).fields["source_commit"]
    assert (field.value, field.source) == ("0123456789abcdef0123456789abcdef01234567", name)


@pytest.mark.parametrize("value", [None, "", "HEAD", "main", "abc", "12345678 ::error::"])
def test_what_names_no_commit_is_unknown(host: Host, device: Device, value: str | None) -> None:
    variables = {} if value is None else {"GITHUB_SHA": value}
    field = environment(device, host=host, variables=variables).fields["source_commit"]
    assert (field.state, field.value) == ("unknown", None)


def test_another_commit_is_the_same_machine(host: Host, device: Device) -> None:
    first, second = (
        environment(device, host=host, variables={"GITHUB_SHA": digit * 40}).fingerprint for digit in ("1", "2")
    )
    assert first == second


def test_absent_package_is_no_version() -> None:
    assert package_version("no-such-package-anywhere") is None

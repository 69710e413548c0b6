"""What the numbers were measured on: versions, hardware, and the variables that change timing."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata

from inferdoc.devices.card_fields import card_fields
from inferdoc.devices.device import Device
from inferdoc.devices.driver import NvmlDriver
from inferdoc.devices.fields import known, not_applicable
from inferdoc.devices.framework import Framework
from inferdoc.devices.host import Host
from inferdoc.evidence import Environment, EnvironmentField

# Set for debugging: they serialize, emulate or stop caching, and a gain measured under them is not a gain.
_DISTORTING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for the device",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation goes to the driver",
    "TRITON_INTERPRET": "kernels are interpreted",
    "TORCH_USE_CUDA_DSA": "kernels carry assertions",
    "TORCH_NCCL_BLOCKING_WAIT": "collectives wait",
    "TORCH_COMPILE_DISABLE": "nothing is compiled",
    "PYTORCH_JIT_DISABLE": "nothing is scripted",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "kernels run under a debugger",
}
_TUNING = (
    "ATEN_CPU_CAPABILITY",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
_OFF = ("", "0", "false", "no", "off")
_COMMITS = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILDKITE_COMMIT")
VOLATILE = ("memory_free", "source_commit", "clocks_locked", "power_limit")
"""Not the machine's identity: what moves between two runs on one machine, and what is only seen at one moment. The
power limit is the one in force now, all limiters taken together; a gate compares it as a field of its own."""


def environment(
    device: Device,
    *,
    host: Host | None = None,
    driver: NvmlDriver | None = None,
    framework: Framework | None = None,
    variables: Mapping[str, str] | None = None,
) -> Environment:
    """Facts about this machine in four states, and a fingerprint over those that are stable (all but `VOLATILE`).

    Two runs with equal fingerprints come from one set-up. Packages are asked for their version by name, so that none is
    imported for it.

    Args:
        host, driver, framework, variables: stand-ins for tests; by default the real ones.
    """
    host = host or Host()
    variables = os.environ if variables is None else variables
    fields = {
        "python": known(platform.python_version(), "platform"),
        "system": known(f"{platform.system()} {platform.machine()}", "platform"),
        **{name: _package(name) for name in ("torch", "transformers", "triton", "numpy")},
        "processor": known(host.processor(), "/proc/cpuinfo"),
        "cores": known(host.cores(), "scheduler affinity"),
        "threads": _threads(),
        "virtual_machine": _virtual(host),
        "last_level_cache": known(host.last_level_cache(), "/sys", unit="B"),
        **card_fields(device, driver=driver, framework=framework, variables=variables),
        "memory_total": known(device.total_bytes, device.source, unit="B"),
        "memory_free": known(device.free_bytes, device.source, unit="B"),
        "memory_kind": known(device.memory_label, device.source),
        "timing_variables": known(timing_variables(variables) or "none set", "environment"),
        "source_commit": _commit(variables),
    }
    stable = {name: (field.state, field.value) for name, field in sorted(fields.items()) if name not in VOLATILE}
    if device.total_bytes is not None:
        # kernels of one machine type leave slightly different totals
        stable["memory_total"] = ("value", round(device.total_bytes / 1024**3))
    fingerprint = hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()
    return Environment(fields=fields, fingerprint=fingerprint)


def timing_variables(variables: Mapping[str, str]) -> str:
    """Variables that change timing and are set, as ``NAME=value, ...``; empty where none is."""
    names = sorted((*_DISTORTING, *_TUNING))
    return ", ".join(f"{name}={variables[name]}" for name in names if name in variables)


def distorting_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Debugging variables that are switched on, with what each of them does to timing."""
    return {name: why for name, why in _DISTORTING.items() if variables.get(name, "").strip().lower() not in _OFF}


def package_version(name: str) -> str | None:
    """Installed version of a package, without importing it; ``None`` where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _package(name: str) -> EnvironmentField:
    version = package_version(name)
    if version is None:
        return not_applicable("not installed")
    return known(version, "installed package")


def _commit(variables: Mapping[str, str]) -> EnvironmentField:
    """The commit that a CI service says it builds; git itself is never run."""
    for name in _COMMITS:
        value = variables.get(name, "").strip()
        if re.fullmatch(r"[0-9a-fA-F]{7,64}", value):  # Buildkite may say HEAD, which names none
            return known(value.lower(), name)
    return known(None, f"none of {', '.join(_COMMITS)} is set")


def _threads() -> EnvironmentField:
    if package_version("torch") is None:
        return known(None, "torch is not installed")
    import torch

    return known(torch.get_num_threads(), "torch")


def _virtual(host: Host) -> EnvironmentField:
    virtual = host.is_virtual()
    return known(None if virtual is None else "yes" if virtual else "no", "/proc/cpuinfo")

"""What the numbers were measured on: versions, hardware, and the variables that change timing."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib import metadata

from inferdoc.devices.device import Device
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
# Not part of the machine's identity: they move between two runs on the same machine.
_UNSTABLE = ("memory_free",)


def environment(device: Device, *, host: Host | None = None, variables: Mapping[str, str] | None = None) -> Environment:
    """Facts about this machine in four states, and a fingerprint over those that are stable.

    Two runs with equal fingerprints may be compared; free memory is recorded and left out of it. Packages are asked for
    their version by name, so that none is imported for it.
    """
    host = host or Host()
    variables = os.environ if variables is None else variables
    fields = {
        "python": _value(platform.python_version(), "platform"),
        "system": _value(f"{platform.system()} {platform.machine()}", "platform"),
        **{name: _package(name) for name in ("torch", "transformers", "triton", "numpy")},
        "processor": _value(host.processor(), "/proc/cpuinfo"),
        "cores": _value(host.cores(), "scheduler affinity"),
        "threads": _threads(),
        "virtual_machine": _virtual(host),
        "last_level_cache": _value(host.last_level_cache(), "/sys", unit="B"),
        **_card_fields(device),
        "memory_total": _value(device.total_bytes, device.source, unit="B"),
        "memory_free": _value(device.free_bytes, device.source, unit="B"),
        "memory_kind": _value(device.memory_label, device.source),
        "timing_variables": _value(timing_variables(variables) or "none set", "environment"),
    }
    stable = {name: (field.state, field.value) for name, field in sorted(fields.items()) if name not in _UNSTABLE}
    if device.total_bytes is not None:
        # kernels of one machine type leave slightly different totals
        stable["memory_total"] = ("value", round(device.total_bytes / 1024**3))
    fingerprint = hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()
    return Environment(fields=fields, fingerprint=fingerprint)


def timing_variables(variables: Mapping[str, str]) -> str:
    """Variables that change timing and are set, as ``NAME=value, ...``; empty where none is."""
    known = sorted((*_DISTORTING, *_TUNING))
    return ", ".join(f"{name}={variables[name]}" for name in known if name in variables)


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
        return EnvironmentField(state="not_applicable", source="not installed")
    return EnvironmentField(state="value", value=version, source="installed package")


def _card_fields(device: Device) -> dict[str, EnvironmentField]:
    names = ("gpu", "driver", "cuda", "compute_capability")
    if device.kind == "cpu":
        return {name: EnvironmentField(state="not_applicable", source="runs on the CPU") for name in names}
    import torch

    capability = None if device.capability is None else f"{device.capability[0]}.{device.capability[1]}"
    return {
        "gpu": _value(device.name, "nvml" if device.driver_index is not None else "torch"),
        "driver": _value(device.driver, "nvml"),
        "cuda": _value(torch.version.cuda, "torch"),
        "compute_capability": _value(capability, "torch"),
    }


def _threads() -> EnvironmentField:
    if package_version("torch") is None:
        return _value(None, "torch is not installed")
    import torch

    return _value(torch.get_num_threads(), "torch")


def _virtual(host: Host) -> EnvironmentField:
    virtual = host.is_virtual()
    return _value(None if virtual is None else "yes" if virtual else "no", "/proc/cpuinfo")


def _value(value: str | float | None, source: str, *, unit: str | None = None) -> EnvironmentField:
    if value is None:
        return EnvironmentField(state="unknown", source=source)
    return EnvironmentField(state="value", value=value, unit=unit, source=source)

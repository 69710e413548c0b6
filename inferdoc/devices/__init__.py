"""Devices: what the card or processor is, what is free, how fast it reads and multiplies, its health meanwhile."""

from __future__ import annotations

from inferdoc.devices.bandwidth import Bandwidth, measure_bandwidth
from inferdoc.devices.device import Device, find_device
from inferdoc.devices.environment import environment
from inferdoc.devices.exhaustion import asked_bytes, bytes_text, describe, free_now, is_out_of_memory, release
from inferdoc.devices.matmul import MatmulRate, measure_matmul
from inferdoc.devices.run_watch import Reading, RunWatch, cause
from inferdoc.devices.watch import Watch

__all__ = [
    "Bandwidth",
    "Device",
    "MatmulRate",
    "Reading",
    "RunWatch",
    "Watch",
    "asked_bytes",
    "bytes_text",
    "cause",
    "describe",
    "environment",
    "find_device",
    "free_now",
    "is_out_of_memory",
    "measure_bandwidth",
    "measure_matmul",
    "release",
]

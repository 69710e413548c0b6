"""Devices: what the card or processor is, what is free, how fast it reads, and its health while we measure."""

from __future__ import annotations

from inferdoc.devices.bandwidth import Bandwidth, measure_bandwidth
from inferdoc.devices.device import Device, find_device
from inferdoc.devices.environment import environment
from inferdoc.devices.watch import Watch

__all__ = ["Bandwidth", "Device", "Watch", "environment", "find_device", "measure_bandwidth"]

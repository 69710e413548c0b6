"""The host: memory that is really ours to use, caches, processor, load. Read from ``/proc`` and ``/sys``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60
_SIZES = {"K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True)
class HostMemory:
    """Bytes. ``None`` where the system does not tell. limited_by: ``host``, or the control group that is tighter."""

    total: int | None
    available: int | None
    limited_by: str = "host"


@dataclass(frozen=True)
class ProcessorTimes:
    """Clock ticks of all processors since the start: in all, busy, taken by the hypervisor; and our own process's."""

    total: int
    busy: int
    steal: int
    own: int


@dataclass(frozen=True)
class Host:
    """Readings of one machine; `proc` and `sys` are the roots, so that tests can lay out another machine."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def memory(self) -> HostMemory:
        """Total and available memory: the host's, or the control group's where its limit is tighter."""
        values = {
            name: int(number) * 1024
            for name, number in re.findall(r"^(\w+):\s+(\d+) kB", self._read(self.proc / "meminfo") or "", re.MULTILINE)
        }
        total, available = values.get("MemTotal"), values.get("MemAvailable")
        if total is None and self.proc == Path("/proc") and hasattr(os, "sysconf"):
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        group = self._group_memory()
        if group is None:
            return HostMemory(total, available)
        limit, used = group
        if total is not None and limit >= total:
            return HostMemory(total, available)
        left = max(limit - used, 0)
        return HostMemory(limit, left if available is None else min(left, available), "control group")

    def last_level_cache(self) -> int | None:
        """Bytes of the last-level cache that processor 0 sees. A virtual machine may be told the whole host's."""
        sizes: dict[int, int] = {}
        for folder in sorted((self.sys / "devices/system/cpu/cpu0/cache").glob("index*")):
            level, size = self._read(folder / "level"), self._read(folder / "size")
            match = re.fullmatch(r"(\d+)([KMG])", (size or "").strip())
            if level and match and (self._read(folder / "type") or "").strip() != "Instruction":
                sizes[int(level)] = int(match[1]) * _SIZES[match[2]]
        return sizes[max(sizes)] if sizes else None

    def processor(self) -> str | None:
        """Model name of the processor."""
        text = self._read(self.proc / "cpuinfo") or ""
        match = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
        return match[1].strip() if match else None

    def is_virtual(self) -> bool | None:
        """Whether a hypervisor runs underneath; ``None`` where the processor does not say."""
        match = re.search(r"^flags\s*:(.*)$", self._read(self.proc / "cpuinfo") or "", re.MULTILINE)
        return "hypervisor" in match[1].split() if match else None

    def cores(self) -> int:
        """Processors that this process may run on."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def load_average(self) -> float | None:
        """Runnable processes, averaged over the last minute."""
        words = (self._read(self.proc / "loadavg") or "").split()
        return float(words[0]) if words else None

    def processor_times(self) -> ProcessorTimes | None:
        """Ticks so far; the difference of two readings gives shares."""
        match = re.search(r"^cpu\s+(.*)$", self._read(self.proc / "stat") or "", re.MULTILINE)
        own = self._read(self.proc / "self/stat")
        if match is None or own is None:
            return None
        ticks = [int(word) for word in match[1].split()] + [0] * 8
        idle, steal = ticks[3] + ticks[4], ticks[7]
        total = sum(ticks[:8])
        # fields 14-17 (utime, stime, and those of waited-for children) stand behind the name, which may hold spaces
        after_name = own.rpartition(")")[2].split()
        return ProcessorTimes(total, total - idle - steal, steal, sum(int(word) for word in after_name[11:15]))

    def _group_memory(self) -> tuple[int, int] | None:
        """Limit and use of the tightest control group of this process, version 2 or 1."""
        found: list[tuple[int, int]] = []
        for line in (self._read(self.proc / "self/cgroup") or "").splitlines():
            hierarchy, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if hierarchy == "0" and not controllers:
                root, limit, usage, cache = self.sys / "fs/cgroup", "memory.max", "memory.current", "inactive_file"
            elif "memory" in controllers.split(","):
                root = self.sys / "fs/cgroup/memory"
                limit, usage, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            else:
                continue
            folder = root / path.lstrip("/")
            # inside a container the path may be the host's; the root of the mount is then our group
            for group in (folder, *folder.parents):
                if not group.is_relative_to(root):
                    break
                reading = self._limit_and_use(group, limit, usage, cache)
                if reading is not None:
                    found.append(reading)
        return min(found, key=lambda reading: reading[0] - reading[1]) if found else None

    def _limit_and_use(self, group: Path, limit: str, usage: str, cache: str) -> tuple[int, int] | None:
        limit_text, used_text = self._read(group / limit), self._read(group / usage)
        if not limit_text or not used_text or not limit_text.strip().isdecimal():
            return None  # "max", or not a group
        if int(limit_text) >= _NO_LIMIT:
            return None
        # pages of files that nobody uses are given back under pressure, so they are not taken
        match = re.search(rf"^{cache} (\d+)$", self._read(group / "memory.stat") or "", re.MULTILINE)
        return int(limit_text), max(int(used_text) - (int(match[1]) if match else 0), 0)

    @staticmethod
    def _read(path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

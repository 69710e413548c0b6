"""Gauges that engines write into their logs every few seconds, as ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping


class Gauges:
    """Smallest and largest value of each gauge, and the number of lines that had one."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = {name: re.compile(pattern) for name, pattern in patterns.items()}
        self._ranges: dict[str, tuple[float, float]] = {}
        self.lines = 0

    def observe(self, text: str) -> bool:
        """Whether the text has a gauge."""
        found = {name: pattern.search(text) for name, pattern in self._patterns.items()}
        values = {name: float(match[1]) for name, match in found.items() if match}
        for name, value in values.items():
            low, high = self._ranges.get(name, (value, value))
            self._ranges[name] = (min(low, value), max(high, value))
        self.lines += bool(values)
        return bool(values)

    def describe(self) -> str:
        """All ranges in one sentence; empty without lines."""
        if not self.lines:
            return ""
        shown = "; ".join(f"{name} {low:,.6g} to {high:,.6g}" for name, (low, high) in self._ranges.items())
        return f"{self.lines:,} lines of engine gauges: {shown}"

"""A row of small bars, one for each number."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_ASCII = "_.:-=+*#"
_NOTHING = " "


def sparkline(values: Sequence[float], *, utf: bool = True) -> str:
    """Bars from 0 to the largest value; 0 itself is a blank, and whatever is above it can be seen."""
    bars = _BARS if utf else _ASCII
    largest = max(values, default=0.0)
    if largest <= 0:
        return _NOTHING * len(values)
    steps = [0 if value <= 0 else max(1, round(value / largest * len(bars))) for value in values]
    return "".join(bars[step - 1] if step else _NOTHING for step in steps)


def narrowed(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values: neighbours, as many to each, are averaged."""
    if len(values) <= width:
        return list(values)
    each = -(-len(values) // max(1, width))
    parts = [values[start : start + each] for start in range(0, len(values), each)]
    return [sum(part) / len(part) for part in parts]

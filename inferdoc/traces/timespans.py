"""Spans of time in notes and messages, in the unit in which a reader counts them."""

from __future__ import annotations

import math

_UNITS = ((172_800.0, 86_400.0, "d"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))
"""Seconds from which on a unit is used, its seconds, its name."""
_SHORT = 0.01
"""Share of the end below which both ends of a span would look the same."""


def lasting(seconds: float) -> str:
    """``90 s``, ``11.9 d``: three significant digits."""
    return _in_unit(seconds, seconds)


def between(begin: float, end: float) -> str:
    """``11.4 d to 11.9 d``; a span that is short for where it lies as ``10 min from 11.4 d on``."""
    if end > 0 and 0 < end - begin < _SHORT * end:
        return f"{lasting(end - begin)} from {lasting(begin)} on"
    return f"{_in_unit(begin, end)} to {_in_unit(end, end)}"


def _in_unit(seconds: float, like: float) -> str:
    size, name = next((size, name) for least, size, name in _UNITS if abs(like) >= least)
    value, most = seconds / size, abs(like / size)
    decimals = max(0, 2 - math.floor(math.log10(most))) if most else 0
    text = f"{value:,.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {name}"

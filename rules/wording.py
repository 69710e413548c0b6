"""Numbers in sentences: formatting, and filling ``{placeholders}`` in the texts of rules. No code is run.

``{fit.weights_bytes}`` is the quantity with its interval, ``{fit.weights_fraction|percent}`` forces a style and
``{least_worthwhile_gain|times}`` is a constant of the pack; ``{fit.quantization_scheme|label}`` is what the quantity is
called, ``|note`` what stands beside it. An unknown quantity prints as *unknown* with its reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping

from inferdoc.evidence import Interval, Quantity

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_LABEL, _NOTE = "label", "note"
_STYLES = ("bytes", "count", _LABEL, _NOTE, "number", "percent", "seconds", "times", "tokens")
_STYLE_OF_UNIT = {
    "b": "bytes",
    "byte": "bytes",
    "bytes": "bytes",
    "s": "seconds",
    "seconds": "seconds",
    "token": "tokens",
    "tokens": "tokens",
    "share": "percent",
    "fraction": "percent",
    "x": "times",
    "times": "times",
}


def number(value: float) -> str:
    """Three significant digits, thousands separated, no exponent for ordinary sizes: ``1,234``, ``0.0123``."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e15 or size < 1e-4:
        return f"{value:.2e}"
    digits = max(0, 2 - math.floor(math.log10(size)))
    return f"{round(value, digits):,.{digits}f}"


def count(value: float) -> str:
    return f"{round(value):,}" if float(value).is_integer() or abs(value) >= 100 else number(value)


def times(value: float) -> str:
    """A factor: ``1.83x``."""
    return f"{value:,.2f}x" if value < 100 else f"{value:,.0f}x"


def percent(value: float) -> str:
    """A share in [0, 1] as percent; one decimal below 10%, and what is too small for that is never *0%*."""
    scaled = value * 100
    if 0 < scaled < 0.05:
        return "<0.1%"
    return f"{scaled:.1f}%" if 0 < abs(scaled) < 9.95 else f"{scaled:.0f}%"


def bytes_(value: float) -> str:
    """Binary units under their right names: ``3.81 GiB``."""
    size, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count(size)} {unit}" if unit == "B" else f"{number(size)} {unit}"


def seconds(value: float) -> str:
    """A duration in the unit that reads best: ``850 us``, ``41.2 ms``, ``3.1 s``, ``12 min``."""
    size = abs(value)
    if size == 0 or size >= 7200:
        return "0 s" if size == 0 else f"{number(value / 3600)} h"
    if size >= 120:
        return f"{number(value / 60)} min"
    if size >= 1:
        return f"{number(value)} s"
    return f"{number(value * 1e3)} ms" if size >= 1e-3 else f"{number(value * 1e6)} µs"


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "bytes": bytes_,
    "count": count,
    "number": number,
    "percent": percent,
    "seconds": seconds,
    "times": times,
    "tokens": lambda value: f"{count(value)} tokens",
}


def style_of(quantity: Quantity) -> str | None:
    """The style that fits: gains are factors, the rest goes by unit; ``None`` prints the number and the unit."""
    return "times" if is_effect(quantity) else _STYLE_OF_UNIT.get(quantity.unit.lower())


def is_effect(quantity: Quantity) -> bool:
    """Whether this is the paired effect of a comparison."""
    return quantity.id.endswith(".gain")


def needs_interval(quantity: Quantity) -> bool:
    """Whether a value without an interval says nothing: paired effects, and what a technique costs in quality."""
    return quantity.id.endswith((".gain", ".perplexity_ratio", ".kl", ".top1"))


def value_text(value: float, unit: str, style: str | None) -> str:
    if style is not None:
        return _FORMATS[style](value)
    return f"{number(value)} {unit}".rstrip()


def quantity_text(quantity: Quantity, style: str | None = None) -> str:
    """The value with its interval and, for an effect, its pairs: ``1.83x [1.71, 1.95], 6 pairs``."""
    if quantity.value is None:
        return f"unknown ({quantity.reason})" if quantity.reason else "unknown"
    style = style or style_of(quantity)
    text = value_text(quantity.value, quantity.unit, style)
    if quantity.interval is not None and not quantity.exact:
        text += f" {interval_text(quantity.interval, quantity.unit, style)}"
    if is_effect(quantity) and quantity.n is not None:
        text += f", {quantity.n} pair{'s' if quantity.n != 1 else ''}"
    return text


def interval_text(interval: Interval, unit: str, style: str | None) -> str:
    """``[1.71..1.95]``; the unit is that of the value before it, unless it differs (``[940 ms..1.2 s]``)."""
    ends = [value_text(value, unit, style) for value in (interval.low, interval.high)]
    if style == "times":
        ends = [end.removesuffix("x") for end in ends]
    return f"[{ends[0]}..{ends[1]}]"


def sentence(text: str) -> str:
    """`text` with a capital at its start and a full stop at its end."""
    text = text.strip()
    if not text:
        return text
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


def placeholders(template: str) -> list[str]:
    return _PLACEHOLDER.findall(template)


def problem(placeholder: str, constants: Container[str]) -> str | None:
    """What is wrong with a placeholder, or ``None``."""
    name, _, style = placeholder.partition("|")
    if style and style not in _STYLES:
        return f"'{{{placeholder}}}': there is no style '{style}'; use one of {', '.join(_STYLES)}"
    if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", name):
        return f"'{{{placeholder}}}' is not the id of a quantity or a constant; write one, or leave the braces out"
    if style in (_LABEL, _NOTE) and "." not in name:
        return f"'{{{placeholder}}}': a constant has no {style}; use another style"
    if "." not in name and name not in constants:
        return f"'{{{placeholder}}}': there is no constant '{name}'"
    return None


def fill(template: str, quantity: Callable[[str], Quantity], constants: Mapping[str, float]) -> str:
    """`template` with every placeholder replaced by its formatted number."""

    def replace(match: re.Match[str]) -> str:
        name, _, style = match[1].partition("|")
        if name in constants:
            return value_text(constants[name], "", style or "number")
        found = quantity(name)
        words = {_LABEL: found.label, _NOTE: found.note or "no note"}
        return words.get(style) or quantity_text(found, style or None)

    return _PLACEHOLDER.sub(replace, template)

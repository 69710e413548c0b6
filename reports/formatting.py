"""Numbers as a reader sees them: one rule for units, digits and intervals in every report.

Units in the evidence are SI base units; here a scale is chosen for display. Three significant digits, thousands
separators, binary names for bytes (GiB) and decimal ones for bandwidth (GB/s). Nothing is computed but the scale.

============================  =======================================================
unit in the evidence          shown as
============================  =======================================================
``s``                         µs, ms, s, min, h
``bytes``, ``B``              bytes, KiB, MiB, GiB, TiB
``bytes/s``                   MB/s, GB/s, TB/s
``x``                         1.83x
``share``, ``fraction``       71.3%, and <0.1% for less than that
``%``                         71.3%
``ratio``, ``1``, empty       0.93, and so ``count`` and ``currency``, which the label names
any other (``tokens/s``)      3,410 tokens/s
============================  =======================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferdoc.evidence import Comparison, EnvironmentField, Expected, Fact, Interval, Quantity, Recommendation, Workload

UNKNOWN = "not known"
PAIRS_NEEDED = 6
"""The fewest pairs for which the exact Wilcoxon test has a 95% interval."""
LEAST_PERCENT = 0.1
"""Percentages between zero and this one are only told to be below it."""

Effect = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True)
class Scale:
    """How a unit is shown: value in the evidence times `factor`, then `suffix` (with its space, where it has one)."""

    factor: float
    suffix: str
    decimals: int = 5
    """The most decimals that mean anything: two for factors of improvement."""

    @property
    def name(self) -> str:
        return self.suffix.strip()


_TIME = ((7200.0, 1 / 3600, " h"), (120.0, 1 / 60, " min"), (1.0, 1.0, " s"), (1e-3, 1e3, " ms"), (0.0, 1e6, " µs"))
_BYTES = (
    (2.0**40, 2.0**-40, " TiB"),
    (2.0**30, 2.0**-30, " GiB"),
    (2.0**20, 2.0**-20, " MiB"),
    (2.0**10, 2.0**-10, " KiB"),
    (0.0, 1.0, " bytes"),
)
_BANDWIDTH = ((1e12, 1e-12, " TB/s"), (1e9, 1e-9, " GB/s"), (0.0, 1e-6, " MB/s"))
_COMPUTE = ((1e12, 1e-12, " TFLOP/s"), (0.0, 1e-9, " GFLOP/s"))
_LADDERS = {"s": _TIME, "bytes": _BYTES, "B": _BYTES, "bytes/s": _BANDWIDTH, "FLOP/s": _COMPUTE}
_COUNTS = ("bytes", "tokens", "requests", "blocks", "runs", "pairs", "count")
_SHARES = ("share", "fraction", "%")
_FIXED = {
    "x": Scale(1.0, "x", decimals=2),
    "share": Scale(100.0, "%"),
    "fraction": Scale(100.0, "%"),
    "%": Scale(1.0, "%"),
    "ratio": Scale(1.0, ""),
    "count": Scale(1.0, ""),
    "currency": Scale(1.0, ""),
    "1": Scale(1.0, ""),
    "": Scale(1.0, ""),
}


def scale_for(unit: str, magnitude: float) -> Scale:
    """The scale in which a value of `magnitude` (in `unit`) has few digits; zero is shown in the base unit."""
    ladder = _LADDERS.get(unit)
    if ladder is None:
        return _FIXED.get(unit, Scale(1.0, f" {unit}"))
    if magnitude == 0:
        return Scale(1.0, f" {unit}")
    size = abs(magnitude)
    return next(Scale(factor, suffix) for floor, factor, suffix in ladder if size >= floor)


def axis_scale(unit: str, values: Sequence[float | None]) -> Scale:
    """One scale for all values of an axis or a column."""
    return scale_for(unit, max((abs(value) for value in values if value is not None), default=0.0))


def digits(value: float, *, exact: bool = False, decimals: int = 5) -> str:
    """Three significant digits, at most `decimals` of them after the point, with thousands separators.

    An `exact` number is printed without trailing zeros.
    """
    size = abs(value)
    if exact and value == int(value):
        return f"{int(value):,}"
    if size == 0:
        return "0"
    if size < 1e-4:
        return f"{value:.2e}"
    places = next(places for floor, places in ((100, 0), (10, 1), (1, 2), (0.1, 3), (0.01, 4), (0, 5)) if size >= floor)
    text = f"{value:,.{min(places, decimals)}f}"
    return text.rstrip("0").rstrip(".") if exact and "." in text else text


def number(value: float, unit: str, *, exact: bool = False) -> str:
    """``412 ms``, ``5.93 GiB``, ``1.83x``, ``3,410 tokens/s``."""
    scale = scale_for(unit, value)
    return cell(value, unit, scale, exact=exact) + scale.suffix


def cell(value: float, unit: str, scale: Scale, *, exact: bool = False) -> str:
    """A number of a column whose header names the scale. A whole count has no decimals: ``5 requests``."""
    if unit in _SHARES and 0 < value * scale.factor < LEAST_PERCENT:
        return f"<{LEAST_PERCENT}"
    counted = exact or (scale.factor == 1.0 and unit in _COUNTS and value == int(value))
    return digits(value * scale.factor, exact=counted, decimals=scale.decimals)


def factor(value: float) -> str:
    """A factor of improvement: ``1.83x``."""
    return number(value, "x")


def unit_of(quantity: Quantity) -> str:
    """The unit to show a quantity in: a gain is always a factor, whatever its writer called the unit."""
    return "x" if quantity.id.endswith((".gain", ".adds")) else quantity.unit


def point(quantity: Quantity) -> str:
    """The value alone, or why there is none."""
    if quantity.value is None:
        return f"{UNKNOWN}: {quantity.reason or 'no reason was recorded'}"
    return number(quantity.value, unit_of(quantity), exact=quantity.exact)


def bounds(interval: Interval | None, unit: str, value: float | None) -> str:
    """``[1.79..1.88]`` in the scale of the value beside it, or an empty text where there is no interval."""
    if interval is None:
        return ""
    scale = scale_for(unit, value if value else max(abs(interval.low), abs(interval.high)))
    low, high = (cell(end, unit, scale) for end in (interval.low, interval.high))
    return f"[{low}..{high}]"


def interval(quantity: Quantity) -> str:
    """``[1.79..1.88]``, or an empty text."""
    return bounds(quantity.interval, unit_of(quantity), quantity.value)


def full(quantity: Quantity) -> str:
    """Value and interval: ``1.83x [1.79..1.88]``."""
    shown = interval(quantity)
    return f"{point(quantity)} {shown}" if shown else point(quantity)


def expected(change: Expected) -> str:
    """The range of a change, as a factor of improvement: ``1.83x [1.79..1.88]``."""
    span = ""
    if change.low is not None and change.high is not None:
        span = f"[{digits(change.low, decimals=2)}..{digits(change.high, decimals=2)}]"
    if change.estimate is None:
        return span or UNKNOWN
    return f"{factor(change.estimate)} {span}".rstrip()


def effect(change: Expected) -> Effect | None:
    """What the range of a change shows; ``None`` where there is no range."""
    if change.low is None or change.high is None:
        return None
    return "better" if change.low > 1.0 else "worse" if change.high < 1.0 else "no difference shown"


def bases(card: Recommendation) -> list[str]:
    """The bases of what a card expects, each once."""
    changes = [*card.expected, *([card.adds] if card.adds else [])]
    return list(dict.fromkeys(change.basis.value for change in changes))


def threshold(fact: Fact) -> str:
    """``at least 1.05x``; a fact without a threshold is context."""
    if fact.threshold is None:
        return "known" if fact.relation == "known" else "context"
    unit = unit_of(fact.quantity)
    scale = scale_for(unit, fact.threshold)
    shown = digits(fact.threshold * scale.factor, exact=unit != "x", decimals=scale.decimals)
    return f"{fact.relation} {shown}{scale.suffix}"


def environment_value(field: EnvironmentField) -> str:
    """The value, or in words which of the other three states it is in."""
    if field.state != "value" or field.value is None:
        words = {"not_applicable": "not applicable", "unknown": UNKNOWN, "error": "could not be read", "value": UNKNOWN}
        return words[field.state]
    if isinstance(field.value, str):
        return field.value if not field.unit else f"{field.value} {field.unit}"
    return number(field.value, field.unit or "", exact=field.value == int(field.value))


def count(value: int) -> str:
    return f"{value:,}"


def pairs(comparison: Comparison) -> str:
    """``6 pairs``, or ``3 of 6 pairs`` where there are too few for an interval."""
    if comparison.pairs < PAIRS_NEEDED:
        return f"{comparison.pairs} of {PAIRS_NEEDED} pairs"
    return f"{count(comparison.pairs)} pairs"


def measured_on(workload: Workload) -> str:
    """``measured on 16 of 360 requests``, or an empty text where no slice was recorded."""
    if workload.slice_requests is None:
        return ""
    return f"measured on {count(workload.slice_requests)} of {count(workload.requests)} requests"


def scale_text(length_scale: float) -> str:
    """``1/32`` for a length scale that is the reciprocal of a whole number."""
    reciprocal = 1 / length_scale if length_scale else 0.0
    whole = round(reciprocal)
    return f"1/{whole}" if whole > 1 and abs(reciprocal - whole) < 1e-6 * whole else digits(length_scale, exact=True)

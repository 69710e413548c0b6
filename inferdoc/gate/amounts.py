"""Amounts as a policy writes them (``5%``, ``10 ms``, ``20 tok/s``, ``16GiB``), in the unit of a metric."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from inferdoc.errors import InputError, PolicyError
from inferdoc.gate.policy import MetricPolicy
from inferdoc.parsing import BYTES, SECONDS

_SPELLINGS: dict[str, dict[str, float]] = {
    "share": {"%": 0.01},
    "s": {"us": 1e-6, "µs": 1e-6, "μs": 1e-6, **SECONDS},
    "tok/s": {"tok/s": 1, "tokens/s": 1},
    "requests/s": {"requests/s": 1, "request/s": 1, "req/s": 1},
    "B": {"byte": 1, "bytes": 1, **{name: size for name, size in BYTES.items() if name}},
    "bytes/s": {"bytes/s": 1, **{f"{name}/s": size for name, size in BYTES.items() if name}},
    "tokens": {"tokens": 1, "token": 1, "tok": 1},
    "requests": {"requests": 1, "request": 1},
    "x": {"x": 1},
    "count": {},
    "currency": {},
}
"""Factor of every way to write a unit, in small letters. No two units share one."""
_SAME = {"relative": "share", "ratio": "share", "bytes": "B", "tokens/s": "tok/s"}
"""Units under another name."""
_EXAMPLES = {
    "share": "5% or 0.05",
    "s": "10 ms",
    "tok/s": "20 tok/s",
    "requests/s": "2 requests/s",
    "B": "16GiB",
    "bytes/s": "100 GB/s",
    "currency": "0.50",
}
_UNIT_OF = {spelling: unit for unit, factors in _SPELLINGS.items() for spelling in factors}
_AMOUNT = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:nan|inf(?:inity)?))(.*)", re.IGNORECASE | re.DOTALL
)


def parse_amount(text: str, unit: str, *, what: str) -> float:
    """The amount in `unit`; a plain number is in `unit` already.

    Args:
        unit: a metric's, or ``relative``.
        what: names the amount in an error.

    Raises:
        InputError: not an amount, in another unit, negative, or not finite.
    """
    number, spelling = _split(text, example(unit), what)
    factor = _factors(unit).get(spelling)
    if factor is None:
        raise InputError(f"{what}: {text!r} is not {_described(unit)}; write it like {example(unit)}")
    return _scaled(number, factor)


def parse_any_amount(text: str, *, what: str) -> tuple[float, str | None]:
    """An amount of a metric whose unit is not known yet, in SI; with the unit, where it is written.

    Raises:
        InputError: as `parse_amount`, or the unit is not one of ours.
    """
    examples = "5%, 10 ms, 20 tok/s, 16GiB or a plain number"
    number, spelling = _split(text, examples, what)
    if not spelling:
        return float(number), None
    unit = _UNIT_OF.get(spelling)
    if unit is None:
        raise InputError(f"{what}: {spelling!r} in {text!r} is not a known unit; write it like {examples}")
    return _scaled(number, _SPELLINGS[unit][spelling]), unit


def same_unit(a: str, b: str) -> bool:
    """Whether two names are of one unit, such as ``B`` and ``bytes``."""
    return _SAME.get(a, a) == _SAME.get(b, b)


def check_units(metric: MetricPolicy, unit: str, *, where: str) -> None:
    """Refuse limits that were written in another unit than the evidence has.

    Args:
        unit: of the metric in the evidence.
        where: the policy file.

    Raises:
        PolicyError: with the metric's line.
    """
    for key, written in metric.units.items():
        if not same_unit(written, unit):
            raise PolicyError(
                f"{key} of {metric.id!r} is written in {written}, but the evidence has it in {unit!r}; write it in "
                "that unit or as a plain number",
                where=f"{where}:{metric.line}",
            )


def example(unit: str) -> str:
    """How an amount in `unit` is written."""
    return _EXAMPLES.get(_SAME.get(unit, unit), "20")


def _factors(unit: str) -> dict[str, float]:
    own = _SAME.get(unit, unit)
    return {"": 1, **_SPELLINGS.get(own, {own.lower(): 1})}


def _described(unit: str) -> str:
    own = _SAME.get(unit, unit)
    return {"share": "a share", "currency": "a plain number", "count": "a plain number"}.get(own, f"in {unit}")


def _split(text: str, examples: str, what: str) -> tuple[str, str]:
    """Number and unit, the unit in small letters and without spaces."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{what}: {text!r} is not an amount; write it like {examples}")
    number, spelling = match.groups()
    if not math.isfinite(float(number)):
        raise InputError(f"{what}: {text!r} is not a finite number; write it like {examples}")
    if float(number) < 0:
        raise InputError(f"{what}: {text!r} is negative; write it like {examples}")
    return number, "".join(spelling.lower().split())


def _scaled(number: str, factor: float) -> float:
    """In decimals, so that 57% is 0.57."""
    return float(Decimal(number) * Decimal(str(factor)))

"""Readers of one value of a policy: each returns it checked and converted, or raises a `ValueError` that mends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from inferdoc.errors import InputError
from inferdoc.evidence import Slo
from inferdoc.parsing import parse_bytes, parse_duration, parse_scale, parse_slo
from inferdoc.rules.loading import near_matches

Reader = Callable[[Any], Any]
Parsed = TypeVar("Parsed")


def near(name: str, known: Iterable[str]) -> str:
    """The nearest known name as the end of a sentence, else all of them."""
    names = list(known)
    # Two letters that changed places are the likeliest slip.
    close = sorted(near_matches(name.lower(), names), key=lambda other: sorted(other) != sorted(name.lower()))
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be text, not {_shown(value)}; put it in quotes")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_shown(value)}")
    return value


def one_of(*choices: Any) -> Reader:
    def read(value: Any) -> Any:
        # By type too: true is 1 to Python, and 3.0 is 3.
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            names = [str(choice) for choice in choices]
            hint = near(value, names) if isinstance(value, str) else f"known: {', '.join(names)}"
            raise ValueError(f"there is no {_shown(value)}; {hint}")
        return value

    return read


def whole(least: int, most: int | None = None) -> Reader:
    """A whole number, both ends included."""

    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be a whole number, not {_shown(value)}")
        if value < least or (most is not None and value > most):
            allowed = f"at least {least}" if most is None else f"{least} to {most}"
            raise ValueError(f"is {value}; it must be {allowed}")
        return value

    return read


def number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"must be a number, not {_shown(value)}")
    try:
        read = float(value)
    except OverflowError:
        read = math.inf
    if not math.isfinite(read):
        raise ValueError("must be a finite number")
    return read


def between(low: float, high: float) -> Reader:
    """A number strictly between two."""

    def read(value: Any) -> float:
        if not low < number(value) < high:
            raise ValueError(f"is {value}; it must lie between {low:g} and {high:g}, both excluded")
        return number(value)

    return read


def within(low: float, high: float) -> Reader:
    def read(value: Any) -> float:
        if not low <= number(value) <= high:
            raise ValueError(f"is {value}; it must be {low:g} to {high:g}")
        return number(value)

    return read


def duration(value: Any) -> float:
    """Seconds; a plain number is in seconds already."""
    if not isinstance(value, str) and number(value) <= 0:
        raise ValueError(f"is {value}; it must be more than 0 seconds")
    return _parsed(parse_duration, value) if isinstance(value, str) else number(value)


def size(value: Any) -> int:
    """Bytes."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f"must be a size such as '16GiB', not {_shown(value)}")
    return _parsed(parse_bytes, str(value))


def scale(value: Any) -> str:
    """A scale as text, checked."""
    written = value if isinstance(value, str) else repr(number(value))
    _parsed(parse_scale, written)
    return written


def objectives(value: Any) -> tuple[Slo, ...]:
    return _parsed(parse_slo, text(value))


def amount(value: Any) -> str:
    """An amount as text, to be read where its unit is known."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(f"must be an amount such as '5%' or '10 ms', not {_shown(value)}")
    return value if isinstance(value, str) else repr(value)


def power_of_two(value: Any) -> int:
    read: int = whole(1)(value)
    if read & (read - 1):
        raise ValueError(f"is {read}; it must be a power of two, such as 16")
    return read


def _parsed(parse: Callable[..., Parsed], value: str) -> Parsed:
    """By a parser of the command line, which names the option itself."""
    try:
        return parse(value, option="")
    except InputError as error:
        raise ValueError(str(error).strip()) from None


def _shown(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list():
            return "a list"
        case None:
            return "empty"
        case str() | int() | float():
            return repr(value)
        case _:
            return str(value)

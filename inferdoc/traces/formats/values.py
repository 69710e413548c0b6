"""Single values of logs: JSON inside strings, whole numbers, points in time and what lies between them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SIZES = ((1e17, 1), (1e14, 10**3), (1e11, 10**6), (0.0, 10**9))
"""Smallest epoch number of each unit, and the nanoseconds in that unit."""


def at(value: Any, *path: str) -> Any:
    """What lies under `path` in nested objects; ``None`` where a step is missing."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def first(record: Mapping[str, Any], *names: str) -> Any:
    """The value of the first of `names` that the record has, ``None`` values passed over."""
    return next((record[name] for name in names if record.get(name) is not None), None)


def decoded(value: Any) -> Any:
    """JSON that stands in a string as what it means; other values as they are. Broken JSON is ``None``."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", '"')):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def whole(value: Any) -> int | None:
    """A count that may be written as text or as a float without a fraction; ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and number == int(number) else None


def positive(value: Any) -> Any:
    """A duration as it is, ``None`` for 0, which tools write for what they did not measure."""
    return None if whole(value) == 0 else value


def instant(value: Any) -> int | None:
    """Epoch nanoseconds of an ISO-8601 time (without zone: UTC) or of an epoch number, whose unit its size tells."""
    if isinstance(value, datetime):
        return (_zoned(value) - _EPOCH) // _MICROSECOND * 1000
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value) if isinstance(value, int) or str(value).isdigit() else float(value)
    except ValueError:
        return _clock(str(value))
    if not math.isfinite(number) or number < 0:
        return None
    factor = next(factor for size, factor in _SIZES if number >= size)
    # Apart from its fraction: the product of both has more digits than a float.
    full = int(number)
    return full * factor + round((number - full) * factor)


def elapsed_s(start: Any, end: Any) -> float | None:
    """Seconds from one point in time to another; ``None`` where one is missing or both are the same."""
    begin, finish = instant(start), instant(end)
    return None if begin is None or finish is None or begin == finish else (finish - begin) / 1e9


def _clock(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except ValueError:
        return None
    return (_zoned(moment) - _EPOCH) // _MICROSECOND * 1000


def _zoned(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

"""Text of options and of the gate's policy into values, each with an error that says how to write it."""

from __future__ import annotations

import re
from fractions import Fraction

from inferdoc.errors import InputError
from inferdoc.evidence import Slo

SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_METRIC = re.compile(r"(ttft|tpot|e2e)_(p50|p95)|itl_max")


def parse_duration(text: str, *, option: str) -> float:
    """Seconds of ``90s``, ``3m``, ``1.5h``, ``500ms``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", text.strip())
    if not match or float(match.group(1)) == 0:
        raise InputError(f"{option} {text!r} is not a duration; write it like 90s, 3m, 1h or 500ms")
    return float(match.group(1)) * SECONDS[match.group(2)]


def parse_bytes(text: str, *, option: str) -> int:
    """Bytes of ``16GiB``, ``80GB`` or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not match or match.group(2) not in BYTES or float(match.group(1)) == 0:
        raise InputError(f"{option} {text!r} is not a size; write it like 16GiB, 80GB or 17179869184")
    return int(float(match.group(1)) * BYTES[match.group(2)])


def parse_share(text: str, *, option: str) -> float:
    """A share above 0 and up to 1, like ``1%`` or ``0.01``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip())
    share = float(match.group(1)) / (100 if match.group(2) else 1) if match else 0.0
    if not 0 < share <= 1:
        raise InputError(f"{option} {text!r} is not a share above 0 and up to 1; write it like 1% or 0.01")
    return share


def parse_scale(text: str, *, option: str) -> Fraction:
    """A scale of at most 1, like ``1/32`` or ``0.125``."""
    try:
        scale = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        scale = Fraction(0)
    if not 0 < scale <= 1:
        raise InputError(f"{option} {text!r} is not a scale between 0 and 1; write it like 1/32 or 0.125")
    return scale


def parse_slo(text: str, *, option: str = "--slo") -> tuple[Slo, ...]:
    """Objectives like ``ttft_p95=500ms,tpot_p95=50ms``."""
    objectives = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, separator, limit = part.partition("=")
        if not separator or not _METRIC.fullmatch(name.strip()):
            raise InputError(
                f"{option} {part!r} is not an objective; write metric_percentile=duration, for example "
                "ttft_p95=500ms,tpot_p95=50ms (ttft, tpot or e2e at p50 or p95, and itl_max)"
            )
        objectives.append(Slo(metric=name.strip(), limit=parse_duration(limit, option=f"{option} {name}="), unit="s"))
    if len({objective.metric for objective in objectives}) < len(objectives):
        raise InputError(f"{option} {text!r} names a metric twice")
    return tuple(objectives)

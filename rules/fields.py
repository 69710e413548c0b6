"""The fields that rule files are made of, with what each refuses."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator

from inferdoc.evidence import Objective


def _threshold(value: Any) -> float | str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a number, or the name of a constant")
    return float(value)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return " ".join(value.split())


def _measure(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", value):
        raise ValueError("must be the id of a quantity, such as 'fit.weights_fraction'")
    return value


def _gain(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+\.gain", value):
        raise ValueError("must be the paired effect of a comparison, such as 'prefix_caching.open.ttft_p50.gain'")
    return value


def _identifier(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]+([_-][a-z0-9]+)*", value):
        raise ValueError("must be lower-case letters, digits, '-' and '_'")
    return value


def _https(value: str) -> str:
    if not re.fullmatch(r"https://[^\s\"'<>]+", value):
        raise ValueError("must be an https:// address")
    return value


Threshold = Annotated[float | str, PlainValidator(_threshold)]
Text = Annotated[str, AfterValidator(_text)]
Measure = Annotated[str, AfterValidator(_measure)]
Gain = Annotated[str, AfterValidator(_gain)]
Identifier = Annotated[str, AfterValidator(_identifier)]
Reference = Annotated[str, AfterValidator(_https)]
AnObjective = Annotated[Objective, Field(strict=False)]
Level = Literal["low", "medium", "high"]

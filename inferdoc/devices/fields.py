"""Facts in one of four states: a value with its source, or why there is none."""

from __future__ import annotations

from inferdoc.evidence import EnvironmentField


def known(value: str | float | None, source: str, *, unit: str | None = None) -> EnvironmentField:
    """A field with this value; unknown where it is ``None``."""
    if value is None:
        return EnvironmentField(state="unknown", source=source)
    return EnvironmentField(state="value", value=value, unit=unit, source=source)


def not_applicable(why: str) -> EnvironmentField:
    """A field that this machine cannot have."""
    return EnvironmentField(state="not_applicable", source=why)

"""Requests that a reader finds one by one, as the draft that assembly takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import polars as pl

from inferdoc.traces import shown
from inferdoc.traces.columns import text_column
from inferdoc.traces.draft import Draft
from inferdoc.traces.formats.chat import media_notes
from inferdoc.traces.ledger import Ledger, RowError
from inferdoc.traces.messages import Rendered

_TEXTS = ("prompt_text", "output_text")
_TYPED: dict[str, pl.DataType] = {
    "prompt_ids": pl.List(pl.Int64),
    "output_ids": pl.List(pl.Int64),
    "itl_s": pl.List(pl.Float64),
    "segment": pl.Int64(),
}


@dataclass
class Requests:
    """Values by role of every request found so far, in the order of the source."""

    format: str
    ledger: Ledger
    lines: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """As `lines`, but increasing: the entries of a list on one line are numbered from that line on."""
    values: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[Rendered] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, line: int, values: Mapping[str, Any], prompt: Rendered | None = None) -> None:
        """A request: `values` by role (durations in s), and its prompt where it was rendered from messages."""
        if prompt is not None:
            self.prompts.append(prompt)
            values = {**values, "prompt_text": prompt.text}
        number = max(line, self.numbers[-1] + 1) if self.numbers else line
        # Taken from the ledger, so that the lines of the next file come after them.
        self.ledger.number(number - self.ledger.number(0))
        self.numbers.append(number)
        self.lines.append(line)
        self.values.append(dict(values))

    def draft(
        self,
        *,
        names: Mapping[str, str] | None = None,
        units: Mapping[str, str] | None = None,
        notes: Sequence[str],
        independent_clocks: bool = False,
    ) -> Draft:
        """All requests. Columns that no request has are left out; so is `segment` where there is one clock.

        Where several requests of known length and unknown content stand on one line, they go by their numbers: made-up
        token ids are drawn by row, and requests of one row would share a prefix that nobody recorded.
        """
        roles = dict.fromkeys(role for values in self.values for role, value in values.items() if value is not None)
        if len({values.get("segment") for values in self.values}) < 2:
            roles.pop("segment", None)
        columns = {role: [values.get(role) for values in self.values] for role in roles}
        ready = {role: text_column(columns[role]) for role in _TEXTS if role in roles}
        ready |= {role: pl.Series(columns[role], dtype=kind) for role, kind in _TYPED.items() if role in roles}
        found = [*notes, *media_notes(self.prompts)]
        numbered = len(set(self.lines)) < len(self.lines) and any(
            values.get("prompt_text") is None and values.get("prompt_ids") is None for values in self.values
        )
        if numbered:
            found.append("several requests stand on one line: line numbers count the requests of a file instead")
        return Draft(
            format=self.format,
            lines=pl.Series(self.numbers if numbered else self.lines, dtype=pl.Int64),
            cells={role: text_column(values) for role, values in columns.items() if role not in ready},
            names=dict(names or {}),
            units={role: "s" for role in ("ttft_s", "e2e_s", "queue_s") if role in roles} | dict(units or {}),
            ready=ready,
            notes=found,
            independent_clocks=independent_clocks and "segment" in ready,
        )

    def chunk_notes(self) -> list[str]:
        """Whether the times between chunks are also the times between tokens: ``n`` tokens make ``n - 1`` gaps."""
        known = [
            len(values["itl_s"]) != values["output_tokens"] - 1
            for values in self.values
            if values.get("itl_s") is not None and isinstance(values.get("output_tokens"), int)
        ]
        if not any(known):
            return []
        return [
            f"in {sum(known):,} of {len(known):,} requests the number of streamed chunks is not the number of tokens:"
            " itl_s holds times between chunks, not between tokens"
        ]


def number(value: Any, name: str) -> float | None:
    """A finite number, 0 or more; ``None`` where there is none.

    Raises:
        RowError: something else.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if math.isfinite(found) and found >= 0:
            return found
    raise RowError(f"{name} is {shown.value(value)}: expected a number, 0 or more", f"{name} is not a number")


def measured(value: Any, name: str) -> float | None:
    """A duration; ``None`` for 0, which tools write where they have measured nothing.

    Raises:
        RowError: no number.
    """
    return number(value, name) or None


def numbers(value: Any, name: str) -> list[float] | None:
    """A list of finite numbers, 0 or more.

    Raises:
        RowError: something else.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise RowError(f"{name} is {shown.kind(value)}: expected a list of numbers", f"{name} is not a list of numbers")
    found = [number(element, name) for element in value]
    if None in found:
        raise RowError(f"{name} holds null: expected a list of numbers", f"{name} is not a list of numbers")
    return [element for element in found if element is not None]


def gaps(times: Sequence[float], name: str) -> list[float]:
    """Differences of following times.

    Raises:
        RowError: times that go back.
    """
    found = [later - earlier for earlier, later in pairwise(times)]
    if any(gap < 0 for gap in found):
        raise RowError(f"{name} goes back in time", f"{name} goes back in time")
    return found


def mapping(value: Any) -> Mapping[str, Any]:
    """`value`, or an empty mapping where it is none."""
    return value if isinstance(value, Mapping) else {}


def total(values: Sequence[Any]) -> int:
    """Sum of the whole numbers among `values`."""
    return sum(value for value in values if isinstance(value, int) and not isinstance(value, bool))


def difference_note(label: str, chosen: str, other: str, pairs: Sequence[tuple[Any, Any]]) -> list[str]:
    """That two counters of the same tokens differ, and which one is used. `pairs`: chosen and other count."""
    both = [pair for pair in pairs if all(isinstance(count, int) and count > 0 for count in pair)]
    used, unused = total([pair[0] for pair in both]), total([pair[1] for pair in both])
    if used == unused:
        return []
    return [
        f"{label} are those of {chosen}, not of {other}: {used:,} against {unused:,} tokens over {len(both):,} requests"
        f" ({used / unused - 1:+.1%})"
    ]

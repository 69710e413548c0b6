"""What the commands of ``inferdoc trace`` share: reading with progress, writing, and their options' values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from inferdoc.errors import InputError
from inferdoc.parsing import parse_duration

if TYPE_CHECKING:
    from inferdoc.traces.comparison import Comparison
    from inferdoc.traces.sampling import Around
    from inferdoc.traces.service import ServiceModel
    from inferdoc.traces.tokens import Encode
    from inferdoc.traces.trace import Trace

_LARGE_BYTES = 50_000_000
"""A trace from which on a log shows what is being done, too; a terminal always does."""
_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9}


class Stages:
    """Tells on standard error what begins, where that takes long or can be wiped out again."""

    def __init__(self, paths: Sequence[str]) -> None:
        from inferdoc.progress import Progress

        self._progress = Progress()
        self._large = sum(_bytes(Path(path)) for path in paths) >= _LARGE_BYTES

    def __call__(self, text: str) -> None:
        if self._large:
            self._progress.stage(text)
        else:
            self._progress.step(text)

    def close(self) -> None:
        self._progress.close()


def read(
    paths: Sequence[str], trace_format: str | None, skip_bad_rows: bool, model: str | None
) -> tuple[Stages, Trace, Encode | None]:
    """The trace in `paths`, its texts counted with the tokenizer of `model`.

    Raises:
        TraceError: it cannot be read.
        ModelError: the tokenizer cannot be loaded.
    """
    from inferdoc.traces.reading import read_trace

    stages = Stages(paths)
    stages("reading")
    given = paths[0] if len(paths) == 1 else list(paths)
    trace = read_trace(given, trace_format=trace_format, skip_bad_rows=skip_bad_rows)
    if model is None:
        return stages, trace, None
    from inferdoc.cli.tokenizers import counted

    stages("counting tokens")
    return stages, *counted(trace, model)


def check(output: Path, paths: Sequence[str], *, force: bool) -> None:
    """Raises:
    InputError: our own format cannot be written to `output`.
    """
    from inferdoc.traces.files import check_suffix, check_target

    check_suffix(output)
    check_target(output, paths, force=force)


def write(
    stages: Stages,
    made: Trace,
    output: Path,
    notes: Sequence[str],
    told: Sequence[str],
    comparison: Comparison,
    *,
    as_json: bool,
) -> None:
    """Write a trace made from another one and print both beside each other.

    Args:
        notes: what the file says of itself.
        told: what the user is told.
    """
    from inferdoc.traces.files import write_trace

    stages("writing")
    lost = write_trace(made, output, list(notes))
    stages.close()
    if as_json:
        from inferdoc.reports.writing import to_json

        typer.echo(to_json(comparison), nl=False)
        return
    from inferdoc.reports.trace_comparison import print_comparison

    print_comparison(output, len(made), [*told, *(f"lost: {what}" for what in lost)], comparison)


def numbers(texts: Sequence[str], option: str) -> list[int]:
    """Whole numbers above 0 of ``16,64`` or ``100k``.

    Raises:
        InputError: something else.
    """
    found = []
    for part in (piece.strip() for text in texts for piece in text.split(",")):
        factor = _FACTORS.get(part[-1:].lower(), 1)
        digits = part[:-1] if factor > 1 else part
        try:
            value = float(digits) * factor if factor > 1 else int(digits)
        except ValueError:
            value = 0
        if value < 1 or value != int(value):
            raise InputError(f"{option} {part!r} is not a number of tokens; write it like 16, or 100k")
        found.append(int(value))
    return found


def place(around: str) -> Around | float:
    """Raises:
    InputError: neither a name nor a time.
    """
    names: dict[str, Around] = {"peak": "peak", "off-peak": "off-peak", "busiest": "busiest"}
    if around in names:
        return names[around]
    if around in ("0", "0s"):
        return 0.0
    try:
        return parse_duration(around, option="--around")
    except InputError:
        raise InputError(
            f"--around {around!r}: give peak, off-peak, busiest, or a time after the first arrival like 90s or 2h"
        ) from None


def service(prefill_rate: float | None, tpot: str | None) -> ServiceModel | None:
    """Raises:
    InputError: one without the other.
    """
    if prefill_rate is None and tpot is None:
        return None
    if prefill_rate is None or tpot is None:
        raise InputError("--prefill-rate and --tpot go together: they model how long a request takes")
    from inferdoc.traces.service import ServiceModel

    return ServiceModel(prefill_tokens_per_s=prefill_rate, tpot_s=parse_duration(tpot, option="--tpot"))


def _bytes(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size
    except OSError:
        return 0

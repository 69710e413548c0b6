"""The data table under each chart: the same numbers as text, long ones cut with the rest counted."""

from __future__ import annotations

from dataclasses import dataclass

from inferdoc.evidence import Comparison, Series
from inferdoc.reports import formatting

ROWS = 20


@dataclass(frozen=True)
class Table:
    """A header and rows of text; `more` rows are only in the JSON."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int


def runs_table(comparison: Comparison) -> Table:
    """A row for each run in the order in which they ran, a column for each metric."""
    metrics = list(comparison.metrics.values())
    scales = [formatting.axis_scale(paired.unit, [*paired.off, *paired.on]) for paired in metrics]
    header = ("run", "arm", *(_header(paired.label, scale.name) for paired, scale in zip(metrics, scales, strict=True)))
    arms = [{"off": iter(paired.off), "on": iter(paired.on)} for paired in metrics]
    rows = []
    for i, arm in enumerate(comparison.order):
        cells = [
            _cell(next(values[arm], None), paired.unit, scale)
            for values, paired, scale in zip(arms, metrics, scales, strict=True)
        ]
        rows.append((str(i + 1), arm, *cells))
    return _cut(header, rows)


def series_table(series: Series) -> Table:
    """A row for each x, a column for each line with its interval where it has one."""
    x_scale = formatting.axis_scale(series.x_unit, [x for line in series.lines for x in line.x])
    y_scale = formatting.axis_scale(series.y_unit, [y for line in series.lines for y in line.y])
    points: dict[float, dict[int, str]] = {}
    for column, line in enumerate(series.lines):
        for i, (x, y) in enumerate(zip(line.x, line.y, strict=False)):
            cell = _cell(y, series.y_unit, y_scale)
            if y is not None and line.low is not None and line.high is not None:
                low, high = (formatting.cell(end[i], series.y_unit, y_scale) for end in (line.low, line.high))
                cell += f" [{low}..{high}]"
            points.setdefault(x, {})[column] = cell
    header = (
        _header(series.x_label, x_scale.name),
        *(_header(line.name, y_scale.name) for line in series.lines),
    )
    rows = [
        (
            formatting.digits(x * x_scale.factor, exact=True),
            *(cells.get(column, "") for column in range(len(series.lines))),
        )
        for x, cells in sorted(points.items())
    ]
    return _cut(header, rows)


def _header(label: str, unit: str) -> str:
    return f"{label} ({unit})" if unit and unit not in label else label


def _cell(value: float | None, unit: str, scale: formatting.Scale) -> str:
    return formatting.UNKNOWN if value is None else formatting.cell(value, unit, scale)


def _cut(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    return Table(header, tuple(rows[:ROWS]), max(0, len(rows) - ROWS))

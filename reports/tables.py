"""The data table under each chart: the same numbers as text, long ones cut with the rest counted."""

from __future__ import annotations

from dataclasses import dataclass

from inferdoc.evidence import Comparison, Line, PairedMetric, Series
from inferdoc.gate.result import GateResult
from inferdoc.reports import formatting

ROWS = 20


@dataclass(frozen=True)
class Table:
    """A header and rows of text; `more` rows are only in the JSON."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int


@dataclass(frozen=True)
class Point:
    """One point of a line, with both ends of its interval or neither."""

    x: float
    y: float | None
    low: float | None
    high: float | None


def points(line: Line) -> list[Point]:
    """The points of a line: as many as it has both x and y for."""
    ends: list[tuple[float | None, float | None]] = [*zip(line.low or (), line.high or (), strict=False)]
    ends += [(None, None)] * len(line.y)
    return [Point(x, y, low, high) for x, y, (low, high) in zip(line.x, line.y, ends, strict=False)]


def unknown(paired: PairedMetric) -> str | None:
    """Why nothing of a metric is known, each reason once; ``None`` when something is."""
    parts = (paired.off_estimate, paired.on_estimate, paired.gain)
    if any(quantity.value is not None for quantity in parts):
        return None
    return "; ".join(dict.fromkeys(formatting.point(quantity) for quantity in parts))


def runs_table(comparison: Comparison) -> Table:
    """A row for each run in the order in which they ran, a column for each metric that any of them has."""
    metrics = [paired for paired in comparison.metrics.values() if {*paired.off, *paired.on} - {None}]
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
    cells_at: dict[float, dict[int, str]] = {}
    for column, line in enumerate(series.lines):
        for point in points(line):
            cell = _cell(point.y, series.y_unit, y_scale)
            if point.y is not None and point.low is not None and point.high is not None:
                low, high = (formatting.cell(end, series.y_unit, y_scale) for end in (point.low, point.high))
                cell += f" [{low}..{high}]"
            cells_at.setdefault(point.x, {})[column] = cell
    header = (
        _header(series.x_label, x_scale.name),
        *(_header(line.name, y_scale.name) for line in series.lines),
    )
    rows = [
        (
            formatting.digits(x * x_scale.factor, exact=True),
            *(cells.get(column, "") for column in range(len(series.lines))),
        )
        for x, cells in sorted(cells_at.items())
    ]
    return _cut(header, rows)


def repeats_table(result: GateResult) -> Table:
    """Two rows for each metric of a gate, a column for each repeat: every value behind its verdict."""
    measured = [row for row in result.results if {*row.baseline_values, *row.candidate_values} - {None}]
    count = max((len(side) for row in measured for side in (row.baseline_values, row.candidate_values)), default=0)
    shown = min(count, ROWS)
    header = ("metric", "arm", *(str(i + 1) for i in range(shown)))
    rows = []
    for row in measured:
        scale = formatting.axis_scale(row.unit, [*row.baseline_values, *row.candidate_values])
        for arm, side in (("baseline", row.baseline_values), ("candidate", row.candidate_values)):
            cells = [_cell(value, row.unit, scale) for value in side[:shown]]
            cells += [""] * (shown - len(cells))
            rows.append((_header(row.metric, scale.name), arm, *cells))
    return _cut(header, rows, 3 * ROWS)


def _header(label: str, unit: str) -> str:
    return f"{label} ({unit})" if unit and unit not in label else label


def _cell(value: float | None, unit: str, scale: formatting.Scale) -> str:
    return formatting.UNKNOWN if value is None else formatting.cell(value, unit, scale)


def _cut(header: tuple[str, ...], rows: list[tuple[str, ...]], most: int = ROWS) -> Table:
    return Table(header, tuple(rows[:most]), max(0, len(rows) - most))

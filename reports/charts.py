"""Charts as static SVG: no script, no ``style=``, colours in presentation attributes.

The specifications are written with altair and drawn by vl-convert, both imported only when a chart is asked for. The
colours below are also those that ``templates/report.css`` maps to the dark theme, by attribute; with all CSS blocked
the SVG keeps them and stays readable. A chart draws the numbers of the evidence and computes none; a long line is
thinned to its smallest and largest value in each of `MAX_POINTS` / 2 buckets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import Any

from inferdoc.evidence import Comparison, PairedMetric, Series
from inferdoc.reports.formatting import axis_scale
from inferdoc.reports.tables import points as points_of
from inferdoc.reports.text import visible

MAX_POINTS = 300
MAX_BARS = 64
MAX_ROWS = 60
LEAST_WORTHWHILE = 1.05
"""The least gain that is worth a change, drawn as a line; the rules hold the number that decides."""

INK, MUTED, GRID, AXIS = "#1f2933", "#5f6b7a", "#e4e7eb", "#b8c0ca"
NEUTRAL, BETTER, WORSE = "#76828f", "#12724c", "#b3261e"
LINES = ("#1f5fa8", "#b4530a", "#0f766e", "#6d3fb2", "#76828f")
OFF, ON = "#76828f", "#1f5fa8"

_STATES = ("better", "not clear of 1.00x", "worse")
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 10, 15, 20, 50, 100, 1000)
WIDTH = 700
_FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
_USELESS = (
    re.compile(r' (?:class|role|aria-\w+|pointer-events|font-family)="[^"<>]*"'),
    re.compile(r' opacity="1"'),
    re.compile(r'<path d="" display="none"/>'),
)
"""Half of what the renderer writes: names for its own tooling, and the font, which is said once at the top."""


def forest(comparisons: Sequence[Comparison]) -> str:
    """Every measured gain with its interval on a log axis, or an empty text where there is none."""
    rows: list[dict[str, Any]] = [
        {
            "comparison": visible(comparison.label, 70),
            "metric": visible(paired.label, 28),
            "gain": paired.gain.value,
            "low": paired.gain.interval.low,
            "high": paired.gain.interval.high,
            "state": _state(paired),
        }
        for comparison in comparisons
        for paired in comparison.metrics.values()
        if paired.gain.value is not None
        and paired.gain.interval is not None
        and min(paired.gain.value, paired.gain.interval.low) > 0
    ][:MAX_ROWS]
    if not rows:
        return ""
    import altair as alt

    low = min(0.95, *(row["low"] for row in rows)) * 0.97
    high = max(1.1, *(row["high"] for row in rows)) * 1.03
    ticks = _spread([tick for tick in _TICKS if low <= tick <= high])
    x = alt.X(
        "gain:Q",
        title="gain (on is better to the right of 1.00x), 95% interval",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=ticks, labelExpr="format(datum.value, '~g') + 'x'"),
    )
    y = alt.Y("metric:N", title=None, sort=None, axis=alt.Axis(grid=False, ticks=False, domain=False, labelLimit=220))
    colour = alt.Color(
        "state:N",
        title=None,
        scale=alt.Scale(domain=list(_STATES), range=[BETTER, NEUTRAL, WORSE]),
        legend=legend(alt),
    )
    shape = alt.Shape("state:N", title=None, scale=alt.Scale(domain=list(_STATES), range=["circle", "square", "cross"]))
    base = alt.Chart()
    layers = alt.layer(
        base.mark_rule(color=AXIS, strokeDash=[3, 3]).encode(x=alt.datum(LEAST_WORTHWHILE)),
        base.mark_rule(color=INK).encode(x=alt.datum(1)),
        base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q", y=y, color=colour).transform_calculate(gain="datum.low"),
        base.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
        data=alt.Data(values=rows),
    ).properties(width=WIDTH - 60, height=alt.Step(19))
    header = alt.Header(
        title=None, labelOrient="top", labelAnchor="start", labelAlign="left", labelFontWeight="bold", labelPadding=3
    )
    chart = layers.facet(
        row=alt.Row("comparison:N", title=None, sort=[row["comparison"] for row in rows], header=header), spacing=6
    ).resolve_scale(y="independent")
    text = f"{len(rows)} gains in {len(comparisons)} comparisons, on a log axis with lines at 1.00x and 1.05x."
    return draw(chart, "forest", "Every measured gain with its interval", text)


def runs(comparison: Comparison, metric: str) -> str:
    """The value of each run in the order in which they ran, or an empty text where there are none."""
    paired = comparison.metrics[metric]
    values = {"off": iter(paired.off), "on": iter(paired.on)}
    rows: list[dict[str, Any]] = [
        {"run": i + 1, "arm": arm, "value": next(values[arm], None)} for i, arm in enumerate(comparison.order)
    ]
    scale = axis_scale(paired.unit, [row["value"] for row in rows])
    points = [{**row, "value": row["value"] * scale.factor} for row in rows if row["value"] is not None][:MAX_POINTS]
    if not points:
        return ""
    import altair as alt

    arms = ["off", "on"]
    chart = (
        alt.Chart(alt.Data(values=points))
        .mark_point(filled=True, size=60, opacity=1)
        .encode(
            x=alt.X("run:O", title="run, in the order in which they ran", axis=alt.Axis(labelAngle=0, grid=False)),
            y=alt.Y("value:Q", title=_axis_title(paired.label, scale.name), axis=alt.Axis(tickCount=4)),
            color=alt.Color("arm:N", title=None, scale=alt.Scale(domain=arms, range=[OFF, ON]), legend=legend(alt)),
            shape=alt.Shape("arm:N", title=None, scale=alt.Scale(domain=arms, range=["square", "circle"])),
        )
        .properties(width=WIDTH - 20, height=96)
    )
    text = f"{len(points)} runs of both arms; the table below holds the same numbers."
    title = f"{visible(paired.label, 60)}, each run: {visible(comparison.label, 80)}"
    return draw(chart, f"runs-{comparison.id}-{metric}", title, text)


def series(data: Series) -> str:
    """A sweep, a distribution or a step curve, or an empty text where there are no points."""
    x_scale = axis_scale(data.x_unit, [x for line in data.lines for x in line.x])
    y_scale = axis_scale(data.y_unit, [y for line in data.lines for y in line.y])
    rows: list[dict[str, Any]] = []
    for line in data.lines[: len(LINES)]:
        given = points_of(line)
        kept = range(min(len(given), MAX_BARS)) if data.kind == "bar" else thin([point.y for point in given])
        for point in (given[i] for i in kept):
            y = _scaled(point.y, y_scale.factor)
            row = {"line": visible(line.name, 40), "x": point.x * x_scale.factor, "y": y}
            if point.low is not None and point.high is not None:
                row |= {"low": point.low * y_scale.factor, "high": point.high * y_scale.factor}
            rows.append(row)
    if not any(row["y"] is not None for row in rows):
        return ""
    import altair as alt

    names = list(dict.fromkeys(row["line"] for row in rows))
    log = data.x_log and all(row["x"] > 0 for row in rows)
    key = legend(alt) if len(names) > 1 else None
    colour = alt.Color("line:N", title=None, scale=alt.Scale(domain=names, range=list(LINES)), legend=key)
    y = alt.Y("y:Q", title=_axis_title(data.y_label, y_scale.name), axis=alt.Axis(tickCount=5))
    x_title = _axis_title(data.x_label, x_scale.name)
    base = alt.Chart(alt.Data(values=rows))
    if data.kind == "bar":
        x: Any = alt.X(
            "x:O", title=x_title, axis=alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=8, grid=False)
        )
        layers = [base.mark_bar().encode(x=x, y=y, color=colour, xOffset=alt.XOffset("line:N", sort=names))]
    else:
        axis = alt.Axis(values=sorted({row["x"] for row in rows}), labelOverlap=True) if log else alt.Axis(tickCount=8)
        kind = {"type": "log", "base": 2, "nice": False} if log else {"type": "linear"}
        x = alt.X("x:Q", title=x_title, scale=alt.Scale(**kind), axis=axis)
        dash = alt.StrokeDash("line:N", title=None, scale=alt.Scale(domain=names), legend=key)
        step = {"interpolate": "step-after"} if data.kind == "step" else {}
        layers = [base.mark_line(strokeWidth=2, **step).encode(x=x, y=y, color=colour, strokeDash=dash)]
        if any("low" in row for row in rows):
            band = base.mark_area(opacity=0.15, **step).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour)
            layers.insert(0, band)
        if data.kind == "line":
            quiet = alt.Color("line:N", scale=alt.Scale(domain=names, range=list(LINES)), legend=None)
            layers.append(base.mark_point(filled=True, size=40, opacity=1).encode(x=x, y=y, color=quiet))
    chart = alt.layer(*layers).properties(width=WIDTH, height=190)
    text = f"{visible(data.y_label, 80)} by {visible(data.x_label, 80)}; the table below holds the same numbers."
    return draw(chart, f"series-{data.id}", visible(data.title, 120), text)


def thin(values: Sequence[float | None]) -> list[int]:
    """The positions to draw: all, or the smallest and the largest value of each bucket."""
    count = len(values)
    if count <= MAX_POINTS:
        return list(range(count))
    buckets = MAX_POINTS // 2
    kept: list[int] = []
    for bucket in range(buckets):
        positions = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        known = [(value, i) for i in positions if (value := values[i]) is not None]
        kept += sorted({min(known)[1], max(known)[1]}) if known else [positions[0]]
    return kept


def _state(paired: PairedMetric) -> str:
    interval = paired.gain.interval
    if interval is None or interval.low <= 1.0 <= interval.high:
        return _STATES[1]
    return _STATES[0] if interval.low > 1.0 else _STATES[2]


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _axis_title(label: str, unit: str) -> str:
    shown = visible(label, 60)
    return f"{shown} ({visible(unit, 20)})" if unit and unit not in shown else shown


def _spread(ticks: list[float]) -> list[float]:
    """At most eight ticks, 1 always among them."""
    stride = -(-len(ticks) // 8)
    return [tick for i, tick in enumerate(ticks) if (i - ticks.index(1)) % stride == 0]


def legend(alt: Any) -> Any:
    """The legend of every chart, above it."""
    return alt.Legend(orient="top", direction="horizontal", symbolStrokeWidth=2, symbolOpacity=1, offset=4)


def draw(chart: Any, id: str, title: str, description: str) -> str:
    """`chart` (of altair) as an SVG element in the one style of the reports; `id` is unlike that of other charts."""
    configured = (
        chart.configure(font=_FONT, background="transparent", padding=4, aria=False)
        .configure_axis(
            labelColor=MUTED,
            titleColor=INK,
            gridColor=GRID,
            domainColor=AXIS,
            tickColor=AXIS,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=8,
        )
        .configure_legend(labelColor=INK, labelFontSize=12)
        .configure_header(labelColor=INK, labelFontSize=12)
        .configure_view(stroke=None)
        .configure_line(invalid="break-paths-filter-domains")
    )
    return _inline(_svg(json.dumps(configured.to_dict(), sort_keys=True)), id, title, description)


@lru_cache(maxsize=64)
def _svg(specification: str) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(json.loads(specification)))


def _inline(svg: str, id: str, title: str, description: str) -> str:
    """`svg` to stand inside a page: named for screen readers, its ids unlike those of any other chart of the page."""
    digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    name = f"chart-{re.sub('[^a-z0-9]+', '-', id[:40].lower()).strip('-')}-{digest}"
    opening, body = svg.split(">", 1)
    size = re.findall(r' (?:width|height|viewBox)="[^"]*"', opening)
    body = re.sub(r'\bid="([\w-]+)"', rf'id="{name}-\1"', body)
    for useless in _USELESS:
        body = useless.sub("", body)
    body = re.sub(r"url\(#([\w-]+)\)", rf"url(#{name}-\1)", body)
    label = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    head = f'<svg{"".join(size)} font-family="{_FONT}" role="img" aria-labelledby="{name}-title {name}-desc">'
    return f"{head}{label}{body}"

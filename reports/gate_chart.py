"""The forest plot of a gate: every change with its interval and its limit, worse to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferdoc.evidence import Direction
from inferdoc.gate.result import MetricResult, MetricVerdict
from inferdoc.reports.charts import AXIS, BETTER, INK, LINES, MAX_ROWS, NEUTRAL, WIDTH, WORSE, draw, legend
from inferdoc.reports.gate_formatting import worsening
from inferdoc.reports.text import visible

_FARTHEST = 1.0
"""Changes beyond 100% are drawn at the edge: one of them would leave no room for the others."""
_STATES = ("better", "within the limit", "not decided", "worse")
_STATE = {
    MetricVerdict.IMPROVED: "better",
    MetricVerdict.PASS: "within the limit",
    MetricVerdict.INCONCLUSIVE: "not decided",
    MetricVerdict.ADVISORY: "not decided",
    MetricVerdict.REGRESSED: "worse",
    MetricVerdict.BROKEN: "worse",
}


def gate_forest(results: Sequence[MetricResult]) -> str:
    """Each metric's change for the worse with its interval and its limit, or an empty text where there is none."""
    rows = [_row(row, row.ratio) for row in results if row.ratio is not None and row.direction is not None][:MAX_ROWS]
    if not rows:
        return ""
    import altair as alt

    ends = [row[name] for row in rows for name in ("change", "low", "high", "limit") if row[name] is not None]
    low, high = max(-_FARTHEST, min(-0.02, *ends) * 1.08), min(_FARTHEST, max(0.02, *ends) * 1.08)
    places = "+.0%" if high - low > 0.08 else "+.1%"
    x = alt.X(
        "change:Q",
        title="← better\u2003\u2003change of the candidate\u2003\u2003worse →",
        scale=alt.Scale(domain=[low, high], nice=False, clamp=True),
        axis=alt.Axis(labelExpr=f"datum.value === 0 ? '0' : format(datum.value, '{places}')", tickCount=8),
    )
    y = alt.Y("metric:N", title=None, sort=None, axis=alt.Axis(grid=False, ticks=False, domain=False, labelLimit=220))
    colour = alt.Color(
        "state:N",
        title=None,
        scale=alt.Scale(domain=list(_STATES), range=[BETTER, NEUTRAL, LINES[1], WORSE]),
        legend=legend(alt),
    )
    shapes = ["triangle-left", "circle", "square", "cross"]
    shape = alt.Shape("state:N", title=None, scale=alt.Scale(domain=list(_STATES), range=shapes))
    base = alt.Chart()
    limits = base.mark_tick(color=INK, thickness=2, size=13).encode(x=alt.X("limit:Q"), y=y)
    spans = base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q", y=y, color=colour)
    chart = alt.layer(
        base.mark_rule(color=AXIS).encode(x=alt.datum(0)),
        limits.transform_filter("isValid(datum.limit)"),
        spans.transform_filter("isValid(datum.low)").transform_calculate(change="datum.low"),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
        data=alt.Data(values=rows),
    ).properties(width=WIDTH - 60, height=alt.Step(22))
    text = f"{len(rows)} metrics; each with its change, its interval and its limit. The table below holds the numbers."
    return draw(chart, "gate-forest", "Change of each metric, worse to the right", text)


def _row(result: MetricResult, ratio: float) -> dict[str, Any]:
    span = result.interval
    ends = (None, None) if span is None else sorted(worsening(result, end) for end in (span.low, span.high))
    return {
        "metric": visible(result.metric, 32) + ("" if result.rule == "regression" else f" ({result.rule})"),
        "change": worsening(result, ratio),
        "low": ends[0],
        "high": ends[1],
        "limit": None if result.limit is None else worsening(result, _at_limit(result.direction, result.limit)),
        "state": _STATE[result.verdict],
    }


def _at_limit(direction: Direction | None, limit: float) -> float:
    """The ratio at which a metric is `limit` worse: limits hold for how many times worse it is."""
    return 1 / (1 + limit) if direction == "higher" else 1 + limit

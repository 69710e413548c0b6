"""The ``[[metric]]`` tables of a policy: amounts in the metric's unit, and limits that can decide something."""

from __future__ import annotations

from typing import Any

from inferdoc.errors import InputError
from inferdoc.gate.amounts import parse_amount, parse_any_amount
from inferdoc.gate.policy import MetricPolicy
from inferdoc.gate.problems import Problems
from inferdoc.gate.registry import RUN_METRICS, GateMetric
from inferdoc.gate.sections import METRIC
from inferdoc.gate.values import near

AMOUNTS = ("max_regression", "floor", "max_value", "min_value")
LIMITS = ("max_regression", "max_value", "min_value")


def read_metrics(problems: Problems) -> tuple[MetricPolicy, ...]:
    """Every ``[[metric]]``; what is wrong goes to `problems`."""
    tables = problems.document.data.get("metric", [])
    if not isinstance(tables, list):
        problems.add(("metric",), "each metric is a table of its own: write [[metric]], in YAML a list")
        return ()
    if not tables:
        problems.add(("metric",), "the file has no [[metric]]: nothing would be compared; add at least one")
    metrics = [_read(problems, index, table) for index, table in enumerate(tables)]
    _refuse_twice(problems, metrics)
    return tuple(metric for metric in metrics if metric is not None)


def _read(problems: Problems, index: int, table: Any) -> MetricPolicy | None:
    path = ("metric", index)
    found = len(problems.found)
    values = problems.read(path, table, METRIC, "[[metric]]")
    id = values.get("id")
    if id is None:
        if isinstance(table, dict) and "id" not in table:
            problems.add(path, f"[[metric]] has no id; give one, such as '{next(iter(RUN_METRICS))}'")
        return None
    known = RUN_METRICS.get(id)
    if known is None and "." not in id:
        problems.add(
            (*path, "id"),
            f"there is no metric {id!r}; {near(id, RUN_METRICS)} (an id with a dot is looked for in the evidence)",
        )
        return None
    units = _convert(problems, index, values, known)
    if known is not None and known.kind == "exact":
        values.setdefault("kind", "exact")
    if len(problems.found) > found:
        return None
    metric = MetricPolicy(**values, units=units, line=problems.line((*path, "id")))
    _check(problems, path, metric, known)
    return metric


def _convert(problems: Problems, index: int, values: dict[str, Any], known: GateMetric | None) -> dict[str, str]:
    """Amounts as numbers in place of their text; returns the units that were written where none is known."""
    units = {}
    for key in AMOUNTS:
        if key not in values:
            continue
        written, what = values.pop(key), f"{key} of {values['id']!r}"
        try:
            if key == "max_regression":
                values[key] = parse_amount(written, "relative", what=what)
            elif known is not None:
                values[key] = parse_amount(written, known.unit, what=what)
            else:
                values[key], unit = parse_any_amount(written, what=what)
                if unit is not None:
                    units[key] = unit
        except InputError as error:
            problems.add(("metric", index, key), str(error))
    return units


def _check(problems: Problems, path: tuple[str | int, ...], metric: MetricPolicy, known: GateMetric | None) -> None:
    id, exact = metric.id, metric.kind == "exact"
    if known is not None and exact and known.timed:
        problems.add((*path, "kind"), f"{id!r} is timed, so no two runs agree exactly; give max_regression instead")
    elif known is not None and known.kind == "exact" and not exact:
        problems.add((*path, "kind"), f"{id!r} is a count that must be the same on both sides; leave kind out")
    elif exact and metric.max_regression is not None:
        problems.add((*path, "max_regression"), f"{id!r} is exact: any difference fails; leave max_regression out")
    elif metric.role == "fail" and not exact and all(getattr(metric, key) is None for key in LIMITS):
        problems.add(path, f"{id!r} has role 'fail' and no limit; give max_regression, max_value or min_value")
    if metric.max_regression is not None and metric.max_regression >= 1:
        problems.add(
            (*path, "max_regression"),
            f"max_regression of {id!r} is {metric.max_regression:.0%}; it must be below 100% (5% is '5%' or 0.05)",
        )
    if metric.floor is not None and metric.max_regression is None:
        problems.add((*path, "floor"), f"floor of {id!r} goes with max_regression, which is not given")
    if metric.max_value is not None and metric.min_value is not None and metric.max_value < metric.min_value:
        problems.add((*path, "max_value"), f"max_value of {id!r} is below its min_value; no value keeps both")


def _refuse_twice(problems: Problems, metrics: list[MetricPolicy | None]) -> None:
    first: dict[tuple[str, str], int] = {}
    for index, metric in enumerate(metrics):
        if metric is None:
            continue
        limits = [key for key in LIMITS if getattr(metric, key) is not None]
        if metric.kind == "exact":
            limits.append("kind")
        for key in limits or ["id"]:
            earlier = first.setdefault((metric.id, key), index)
            if earlier != index:
                place = problems.document.where(("metric", earlier))
                what = f"with {'kind exact' if key == 'kind' else key} " if limits else ""
                problems.add(("metric", index, "id"), f"{metric.id!r} {what}is already at {place}; remove one")
                break

"""A gate's result as OpenMetrics text, for GitLab's metrics report or a Prometheus that watches the trend.

Labels are those that stay the same from run to run (metric, unit, rule), so that a value has one history. Ratios are
candidate over baseline; a metric that several limits name under one rule is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inferdoc.gate.result import GateResult, GateVerdict, MetricResult, MetricVerdict
from inferdoc.reports.text import visible

_PREFIX = "inferdoc_gate"
_Labels = dict[str, str]
_OF_METRIC: tuple[tuple[str, str, str, Callable[[MetricResult], float | None]], ...] = (
    ("baseline", "", "Median of the baseline's repeats, in the unit of the label.", lambda row: row.baseline),
    ("candidate", "", "Median of the candidate's repeats, in the unit of the label.", lambda row: row.candidate),
    ("change_ratio", "ratio", "Candidate over baseline.", lambda row: row.ratio),
    ("change_low_ratio", "ratio", "Lower end of the interval of the ratio.", lambda row: _end(row, "low")),
    ("change_high_ratio", "ratio", "Upper end of the interval of the ratio.", lambda row: _end(row, "high")),
    ("limit_ratio", "ratio", "Largest allowed relative change for the worse.", lambda row: row.limit),
    ("floor", "", "Absolute change that a regression must also reach.", lambda row: row.floor),
    ("max_value", "", "Budget: the largest allowed value.", lambda row: row.max_value),
    ("min_value", "", "Budget: the smallest allowed value.", lambda row: row.min_value),
    ("detectable_ratio", "ratio", "Change for the worse shown with 80% power.", lambda row: row.min_detectable),
    ("p_adjusted", "", "One-sided p, adjusted over the metrics that may fail.", lambda row: row.p_adjusted),
    ("repeats", "", "Pairs, or sessions, behind the ratio.", lambda row: float(row.n)),
)


def render_openmetrics(result: GateResult) -> str:
    """The whole exposition, ended by ``# EOF``."""
    lines = [
        *_family("exit_code", "", "Exit code of the gate.", [({}, float(result.exit_code))]),
        *_family(
            "verdict",
            "",
            "1 for the verdict that was reached, 0 for the others.",
            [({"verdict": verdict.value}, float(verdict is result.verdict)) for verdict in GateVerdict],
        ),
        *_family("duration_seconds", "seconds", "Time that the gate took.", [({}, result.duration_s)]),
    ]
    for name, unit, help, value in _OF_METRIC:
        samples = [(_labels(row), found) for row in result.results if (found := value(row)) is not None]
        lines += _family(name, unit, help, samples)
    lines += _family(
        "metric_verdict",
        "",
        "1 for the verdict of a metric, 0 for the others.",
        [
            ({**_labels(row), "verdict": verdict.value}, float(verdict is row.verdict))
            for row in result.results
            for verdict in MetricVerdict
        ],
    )
    return "".join(f"{line}\n" for line in (*lines, "# EOF"))


def _labels(row: MetricResult) -> _Labels:
    return {"metric": row.metric, "unit": row.unit, "rule": row.rule, "role": row.role}


def _end(row: MetricResult, side: str) -> float | None:
    return None if row.interval is None else float(getattr(row.interval, side))


def _family(name: str, unit: str, help: str, samples: Iterable[tuple[_Labels, float]]) -> list[str]:
    written: dict[str, float] = {}
    for labels, value in samples:
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        written.setdefault(f"{{{told}}}" if told else "", value)
    if not written:
        return []
    full = f"{_PREFIX}_{name}"
    head = [f"# HELP {full} {help}", f"# TYPE {full} gauge", *([f"# UNIT {full} {unit}"] if unit else [])]
    return [*head, *(f"{full}{labels} {value!r}" for labels, value in written.items())]


def _escaped(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"')

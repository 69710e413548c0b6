from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from inferdoc.gate.result import GateResult
from inferdoc.reports.gate_openmetrics import render_openmetrics


def families(result: GateResult) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(render_openmetrics(result))}


def value(found: dict[str, Any], name: str, metric: str) -> float:
    [sample] = [sample for sample in found[f"inferdoc_gate_{name}"].samples if sample.labels["metric"] == metric]
    return float(sample.value)


def test_values_are_those_of_the_result(gated: GateResult) -> None:
    found = families(gated)
    assert found["inferdoc_gate_exit_code"].samples[0].value == 1
    row = next(row for row in gated.results if row.metric == "output_tok_s")
    assert row.interval is not None
    expected = {
        "baseline": row.baseline,
        "candidate": row.candidate,
        "change_ratio": row.ratio,
        "change_low_ratio": row.interval.low,
        "change_high_ratio": row.interval.high,
        "limit_ratio": row.limit,
        "floor": row.floor,
    }
    assert {name: value(found, name, "output_tok_s") for name in expected} == expected
    assert value(found, "max_value", "error_rate") == 0.0005


def test_exactly_one_verdict_is_set(any_gate: GateResult) -> None:
    found = families(any_gate)
    on = [sample.labels["verdict"] for sample in found["inferdoc_gate_verdict"].samples if sample.value == 1]
    assert on == [any_gate.verdict.value]
    if any_gate.results:
        rows = [sample.labels for sample in found["inferdoc_gate_metric_verdict"].samples if sample.value == 1]
        assert sorted(labels["metric"] for labels in rows) == sorted(row.metric for row in any_gate.results)


def test_units_and_types_are_told(gated: GateResult) -> None:
    found = families(gated)
    assert {family.type for family in found.values()} == {"gauge"}
    assert found["inferdoc_gate_duration_seconds"].unit == "seconds"
    assert found["inferdoc_gate_change_ratio"].unit == "ratio"
    assert all(family.documentation for family in found.values())
    assert render_openmetrics(gated).endswith("\n# EOF\n")


def test_a_metric_under_two_limits_of_one_kind_is_written_once(gated: GateResult) -> None:
    gated.results.append(gated.results[0].model_copy(update={"limit": 0.5}))
    assert value(families(gated), "limit_ratio", gated.results[0].metric) == 0.05


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\\", 'x"} 1\n# EOF'])
def test_labels_are_escaped(gated: GateResult, name: str) -> None:
    gated.results = [gated.results[0].model_copy(update={"metric": name})]
    [sample] = families(gated)["inferdoc_gate_baseline"].samples
    assert sample.labels["metric"] == name.replace("\n", " ")

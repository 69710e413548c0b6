from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from inferdoc.errors import InputError
from inferdoc.gate.calibrating import noise_by_metric
from inferdoc.gate.calibration import Calibration, read_calibration
from inferdoc.gate.policy import DesignPolicy, MetricPolicy, Policy
from inferdoc.gate.procedure import Values

WORSE, SAME = [1.2] * 8, [1.0, 1.001, 0.999, 1.002] * 2


def policy(*metrics: dict[str, Any], **design: int) -> Policy:
    return Policy(metrics=tuple(MetricPolicy(**metric) for metric in metrics), design=DesignPolicy(**design))


def limited(id: str, **fields: Any) -> dict[str, Any]:
    return {"id": id, "max_regression": 0.05, **fields}


def session(**candidate: list[float]) -> Values:
    return {id: ([1.0] * len(values), list(values)) for id, values in candidate.items()}


@pytest.mark.parametrize("reverse", [False, True])
def test_the_false_alarms_of_a_metric_with_two_tables_are_those_of_its_relative_limit(reverse):
    tables = [limited("ttft_p95"), {"id": "ttft_p95", "max_value": 1.0}]
    found = noise_by_metric(policy(*tables[:: -1 if reverse else 1]), [session(ttft_p95=WORSE), session(ttft_p95=SAME)])
    assert (found["ttft_p95"].false_alarms, found["ttft_p95"].limit, found["ttft_p95"].pairs) == (1, 0.05, 16)
    only_budget = noise_by_metric(policy(tables[1]), [session(ttft_p95=WORSE)])
    assert (only_budget["ttft_p95"].false_alarms, only_budget["ttft_p95"].limit) == (None, None)


def test_a_session_is_judged_at_the_first_looks_share_of_alpha():
    """One of 8 pairs, the one that changed the least, got better: p = 2/256. With four metrics 4 * 2/256 = 3.1%."""
    values = [1.2] * 7 + [0.99]
    ids = ["ttft_p95", "ttft_p50", "tpot_p50", "e2e_p50"]
    drawn = [session(**{ids[0]: values}, **dict.fromkeys(ids[1:], SAME))]
    for max_pairs, alarms in ((12, 0), (8, 1)):
        found = noise_by_metric(policy(*map(limited, ids), max_pairs=max_pairs), drawn)
        assert found[ids[0]].false_alarms == alarms
    assert noise_by_metric(policy(limited(ids[0]), max_pairs=12), drawn)[ids[0]].false_alarms == 1


def test_a_metric_that_warns_is_judged_among_those_that_warn():
    """p = 2/256 each, at a false discovery rate of 10%: with 15 others 16 * 2/256 = 12.5%, among those that fail 1."""
    values = [1.2] * 7 + [0.99]
    ids = [f"{name}_p{q}" for name in ("ttft", "tpot", "itl", "e2e") for q in (50, 90, 95, 99)]
    drawn = [session(**{ids[0]: values}, **dict.fromkeys(ids[1:], [0.98] * 8))]
    alone = policy(limited(ids[0], role="warn"), *[limited(id) for id in ids[1:]])
    assert noise_by_metric(alone, drawn)[ids[0]].false_alarms == 1
    crowd = policy(*[limited(id, role="warn") for id in ids])
    assert noise_by_metric(crowd, drawn)[ids[0]].false_alarms == 0


def test_values_at_the_ends_of_floating_point_give_a_number():
    found = noise_by_metric(policy(limited("ttft_p95")), [{"ttft_p95": ([1e-300, 1e300] * 4, [1e300, 1e-300] * 4)}])
    assert found["ttft_p95"].sd == pytest.approx(600 * math.log(10))
    assert math.isfinite(found["ttft_p95"].detectable)
    assert math.isfinite(found["ttft_p95"].suggested)


def test_a_metric_without_two_positive_values_has_no_noise():
    assert noise_by_metric(policy(limited("ttft_p95")), [{"ttft_p95": ([0.0, None], [1.0, 1.0])}]) == {}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "calibration.json"
    empty = Calibration(
        recorded_at="", tool_version="", environment="", workload="", requests=8, sessions=1, pairs=8, noise={}
    )
    path.write_text(empty.model_dump_json(by_alias=True))
    return path


def test_a_calibration_is_read_back(stored: Path) -> None:
    assert read_calibration(stored).requests == 8
    assert read_calibration(stored.with_name("none.json")) is None


@pytest.mark.parametrize(
    ("name", "version", "accepted"),
    [
        ("inferdoc.calibration", "1.7", True),
        ("inferdoc.calibration", "2.0", False),
        ("inferdoc.calibration", "10.0", False),
        ("inferdoc.gate", "1.0", False),
    ],
)
def test_a_calibration_of_another_schema_is_refused(stored: Path, name: str, version: str, accepted: bool) -> None:
    data = json.loads(stored.read_text())
    data["schema"] = {"name": name, "version": version}
    stored.write_text(json.dumps(data))
    if accepted:
        assert read_calibration(stored).schema_.version == version
        return
    with pytest.raises(InputError, match=f"schema {name} {version}.*gate calibrate"):
        read_calibration(stored)

"""Objectives on the time per token: each judged by the metric that it names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferdoc.evidence import Basis, Slo
from inferdoc.probes.context import Collector, Settings
from inferdoc.probes.objective import observe_objective


def judge(measured: dict[str, float | None], **limits: float) -> Any:
    """(value, reason, note) of the share of the objective, and the time per token shown beside it."""
    found = Collector()
    for metric, value in measured.items():
        reason = None if value is not None else f"too few requests in a run (20; {metric[-3:]} needs 72)"
        found.add(f"prefix_caching.open.{metric}.off", metric, value, "s", Basis.MEASURED, reason=reason)
    found.comparisons = {"prefix_caching.open": SimpleNamespace(roofline_fraction=None, metrics={})}  # type: ignore[dict-item]
    slo = tuple(Slo(metric=name, limit=limit, unit="s") for name, limit in limits.items())
    observe_objective(SimpleNamespace(found=found, settings=Settings(slo=slo)))  # type: ignore[arg-type]
    share, shown = found.quantities["latency.slo_share"], found.quantities["latency.tpot_at_load"]
    return share.value, share.reason, share.note, shown.value


def test_a_95th_percentile_is_not_judged_by_the_median() -> None:
    assert judge({"tpot_p50": 0.045, "tpot_p95": 0.080}, tpot_p95=0.050) == (pytest.approx(1.6), None, None, 0.080)


def test_the_objective_that_is_missed_most_counts() -> None:
    measured = {"tpot_p50": 0.045, "tpot_p95": 0.080}
    assert judge(measured, tpot_p50=0.030, tpot_p95=0.100)[0] == pytest.approx(1.5)
    assert judge(measured, tpot_p50=0.090, tpot_p95=0.100)[0] == pytest.approx(0.8)


def test_with_too_few_requests_the_median_can_only_say_that_it_is_missed() -> None:
    missed = judge({"tpot_p50": 0.045, "tpot_p95": None}, tpot_p95=0.030)
    assert missed == (
        pytest.approx(1.5),
        None,
        "the median, a lower bound of what the objective names",
        0.045,
    )
    open_ = judge({"tpot_p50": 0.045, "tpot_p95": None}, tpot_p95=0.050)
    assert open_[:2] == (None, "tpot_p95: too few requests in a run (20; p95 needs 72)")
    also = judge({"tpot_p50": 0.045, "tpot_p95": None}, tpot_p50=0.050, tpot_p95=0.060)
    assert also[0] is None


def test_gaps_are_judged_by_the_longest() -> None:
    assert judge({"tpot_p50": 0.045, "itl_max": 0.2}, itl_max=0.1)[0] == pytest.approx(2.0)


def test_without_an_objective_or_a_run_it_says_which() -> None:
    assert judge({"tpot_p50": 0.045}) == (None, "no SLO on the time per token was given", None, 0.045)
    assert judge({}, tpot_p50=0.1) == (None, "no open-loop run was made", None, None)

"""Histories of what ``gate record`` writes: one rate in every session, however the saturation measured differs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from inferdoc.gate.baselines import BaselineFile
from inferdoc.gate.comparing import compare_stored
from inferdoc.gate.pairing import Pairing
from inferdoc.gate.policy import BaselinePolicy, MetricPolicy, Policy, WorkloadPolicy
from inferdoc.gate.recording import _measurements
from inferdoc.gate.result import GateResult, GateVerdict, MetricResult, MetricVerdict
from inferdoc.gate.sessions import Session, session_of

POLICY = Policy(
    path="gate.toml",
    sha256="0",
    baseline=BaselinePolicy(mode="history"),
    workload=WorkloadPolicy(rate=20.0),
    metrics=(
        MetricPolicy(id="ttft_p95", max_regression=0.10, line=10),
        MetricPolicy(id="output_tok_s", max_regression=0.10, line=13),
    ),
)
Sessions = Callable[..., list[Session]]


@pytest.fixture
def recorded(runs: Any) -> Sessions:
    """Sessions as `gate record` makes them: noise of 2% between them, and a saturation of its own in each."""

    def make(
        name: str, count: int, *, slower: float = 1.0, seed: int, rates: Sequence[float] | None = None
    ) -> list[Session]:
        draw = random.Random(seed)
        made = []
        for index in range(count):
            policy = POLICY.model_copy(update={"workload": WorkloadPolicy(rate=rates[index] if rates else 20.0)})
            noise = slower * draw.lognormvariate(0, 0.02)
            repeats: list[dict[str, float | None]] = [
                {"ttft_p95": 0.2 * noise * (1 + 0.001 * i), "output_tok_s": 400 / noise} for i in range(5)
            ]
            ids = [metric.id for metric in policy.metrics]
            pairing = Pairing(None, policy, ids, None, None, saturation=28 * draw.lognormvariate(0, 0.1))  # type: ignore[arg-type]
            session = session_of(runs.evidence(run_id=f"{name}{index}"), None)
            made.append(session.model_copy(update={"measurements": _measurements(policy, repeats, pairing.open_label)}))
        return made

    return make


def compared(folder: Path, base: list[Session], cand: list[Session], policy: Policy = POLICY) -> GateResult:
    """By way of the files."""
    paths = folder / "base.json", folder / "cand.json"
    for path, sessions in zip(paths, (base, cand), strict=True):
        path.write_text(BaselineFile(sessions=sessions).model_dump_json(by_alias=True), encoding="utf-8")
    return compare_stored(*paths, policy)


def of(result: GateResult, metric: str) -> MetricResult:
    return next(item for item in result.results if item.metric == metric)


def test_a_latency_of_sessions_at_one_rate_is_judged(tmp_path: Path, recorded: Sessions) -> None:
    base = recorded("b", 8, seed=1)
    assert len({session.measurements["ttft_p95"].load for session in base}) > 1, "each has a saturation of its own"
    slower = compared(tmp_path, base, recorded("c", 8, slower=1.4, seed=2))
    assert (slower.verdict, slower.exit_code) == (GateVerdict.REGRESSED, 1)
    assert of(slower, "ttft_p95").verdict is MetricVerdict.REGRESSED
    assert of(slower, "ttft_p95").ratio == pytest.approx(1.4, rel=0.05)
    same = compared(tmp_path, base, recorded("d", 8, seed=3))
    assert (same.verdict, same.exit_code) == (GateVerdict.PASSED, 0)
    assert of(same, "ttft_p95").reason is None


@pytest.mark.parametrize("odd", [0, 5])
def test_one_session_at_another_rate_leaves_a_latency_undecided(tmp_path: Path, recorded: Sessions, odd: int) -> None:
    rates = [20.0] * 6
    rates[odd] = 12.0
    result = compared(tmp_path, recorded("b", 6, seed=1, rates=rates), recorded("c", 6, slower=1.4, seed=2))
    latency = of(result, "ttft_p95")
    assert latency.verdict is MetricVerdict.INCONCLUSIVE
    assert latency.pairs_needed is None, "no more sessions would decide it"
    assert latency.reason is not None
    assert latency.reason.startswith("not measured under one load: open loop at ")
    assert "open loop at 12 requests/s (" in latency.reason
    assert "open loop at 20 requests/s (" in latency.reason
    assert of(result, "output_tok_s").verdict is MetricVerdict.REGRESSED, "all requests at once in every session"


def test_a_rate_that_prints_alike_is_another_rate(tmp_path: Path, recorded: Sessions) -> None:
    base, cand = (
        recorded(name, 6, seed=seed, rates=[rate] * 6) for name, seed, rate in (("b", 1, 20), ("c", 2, 20.04))
    )
    assert of(compared(tmp_path, base, cand), "ttft_p95").verdict is MetricVerdict.INCONCLUSIVE


def test_a_short_history_under_two_loads_names_the_loads(tmp_path: Path, recorded: Sessions) -> None:
    result = compared(tmp_path, recorded("b", 2, seed=1, rates=[12.0, 20.0]), recorded("c", 2, slower=1.4, seed=2))
    assert (of(result, "ttft_p95").reason or "").startswith("not measured under one load")
    assert "too few" in (of(result, "output_tok_s").reason or "")


def test_files_from_before_the_rate_was_a_field_agree_by_their_label(tmp_path: Path, recorded: Sessions) -> None:
    def older(sessions: list[Session]) -> list[Session]:
        return [
            session.model_copy(
                update={
                    "measurements": {
                        id: item.model_copy(update={"rate": None}) for id, item in session.measurements.items()
                    }
                }
            )
            for session in sessions
        ]

    base, cand = older(recorded("b", 8, seed=1)), older(recorded("c", 8, slower=1.4, seed=2))
    assert of(compared(tmp_path, base, cand), "ttft_p95").verdict is MetricVerdict.REGRESSED
    other = older(recorded("d", 8, seed=3, rates=[25.0] * 8))
    assert of(compared(tmp_path, base, other), "ttft_p95").verdict is MetricVerdict.INCONCLUSIVE


def test_a_budget_over_sessions_of_two_rates_is_undecided(tmp_path: Path, recorded: Sessions) -> None:
    budget = POLICY.model_copy(update={"metrics": (MetricPolicy(id="ttft_p95", max_value=0.5, line=10),)})
    base = recorded("b", 3, seed=1)
    assert compared(tmp_path, base, recorded("c", 6, seed=2), budget).exit_code == 0
    mixed = compared(tmp_path, base, recorded("c", 6, seed=2, rates=[20.0] * 5 + [12.0]), budget)
    assert (mixed.verdict, mixed.exit_code) == (GateVerdict.INCONCLUSIVE, 3)

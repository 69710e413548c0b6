"""Metrics of a run against values worked by hand."""

from __future__ import annotations

import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import RunResult
from inferdoc.engine.kv_manager import KVUse
from inferdoc.engine.request import Request
from inferdoc.engine.steplog import Step
from inferdoc.evidence import Slo
from inferdoc.probes.metrics import measure, overloaded, why_missing

CONFIG = EngineConfig(max_model_len=64, num_kv_blocks=16, max_num_seqs=2)


def finished(id: int, arrival: float, times: list[float]) -> Request:
    request = Request(id, [1, 2], len(times), arrival)
    request.tokens.extend([0] * len(times))
    request.token_times = times
    return request


def step(start: float, end: float, running: int, waiting: int) -> Step:
    return Step(start, end, 0.0, 0, running, 0, running, waiting, 0, KVUse(0, 0, 0, 0))


def test_throughput_counts_produced_tokens_over_the_run() -> None:
    run = RunResult(CONFIG, [finished(0, 0.0, [1.0, 2.0]), finished(1, 0.0, [4.0])], [], 4.0)
    assert measure(run, ["throughput"], [])["throughput"] == pytest.approx(3 / 4)


def test_live_requests_are_weighted_by_time() -> None:
    run = RunResult(CONFIG, [], [step(0.0, 3.0, 2, 0), step(3.0, 4.0, 1, 0)], 4.0)
    assert measure(run, ["live_requests"], [])["live_requests"] == pytest.approx((2 * 3 + 1) / 4)


def test_goodput_counts_requests_within_every_limit() -> None:
    slo = [Slo(metric="ttft_p95", limit=1.0, unit="s"), Slo(metric="tpot_p95", limit=0.5, unit="s")]
    requests = [
        finished(0, 0.0, [0.5, 0.9]),  # both met
        finished(1, 0.0, [0.5, 1.5]),  # TPOT 1.0: missed
        finished(2, 0.0, [2.0, 2.1]),  # TTFT 2.0: missed
        finished(3, 1.0, [1.5]),  # one token has no TPOT to miss
    ]
    assert measure(RunResult(CONFIG, requests, [], 4.0), ["goodput"], slo)["goodput"] == pytest.approx(2 / 4)


def test_longest_gap_is_over_all_requests() -> None:
    run = RunResult(CONFIG, [finished(0, 0.0, [0.1, 0.2, 1.0]), finished(1, 0.0, [0.1, 0.3])], [], 1.0)
    assert measure(run, ["itl_max"], [])["itl_max"] == pytest.approx(0.8)


def test_mean_time_per_token_weighs_tokens_and_not_requests() -> None:
    """Two gaps of one request took 0.9 s and one of the other 0.2 s; tokens that came together have no time between."""
    requests = [finished(0, 0.0, [0.1, 0.2, 1.0]), finished(1, 0.0, [0.1, 0.3]), finished(2, 0.0, [5.0])]
    assert measure(RunResult(CONFIG, requests, [], 5.0), ["tpot_mean"], [])["tpot_mean"] == pytest.approx(1.1 / 3)
    together = RunResult(CONFIG, [finished(0, 0.0, [0.1, 0.4, 0.4])], [], 1.0)
    assert measure(together, ["tpot_mean"], [])["tpot_mean"] == pytest.approx(0.15)
    assert measure(RunResult(CONFIG, requests[2:], [], 5.0), ["tpot_mean"], [])["tpot_mean"] is None


def test_percentiles_below_their_sample_size_are_missing_and_say_so() -> None:
    run = RunResult(CONFIG, [finished(i, 0.0, [1.0, 2.0]) for i in range(71)], [], 4.0)
    values = measure(run, ["ttft_p50", "ttft_p95"], [])
    assert values == {"ttft_p50": 1.0, "ttft_p95": None}
    assert why_missing("ttft_p95", 71) == "too few requests in a run (71; p95 needs 72)"


def queue_at_arrivals(waiting: list[int]) -> RunResult:
    requests = [finished(i, float(i), [i + 1.0]) for i in range(len(waiting))]
    return RunResult(CONFIG, requests, [step(float(t), t + 1.0, 2, w) for t, w in enumerate(waiting)], 99.0)


@pytest.mark.parametrize(
    ("waiting", "grows"),
    [
        (list(range(16)), True),
        ([4] * 16, False),
        ([0, 6, 3, 0, 0, 5, 2, 0, 0, 6, 4, 1, 0, 5, 2, 0], False),  # bursts that are worked off
        ([100 + 20 * i // 30 for i in range(60)], True),  # a large backlog that grows slowly
        ([0] * 16, False),
        ([0, 1, 2, 3, 4], False),  # too short to tell
    ],
)
def test_a_queue_that_grows_to_the_end_is_an_overload(waiting: list[int], grows: bool) -> None:
    assert overloaded(queue_at_arrivals(waiting)) is grows


def test_a_limit_on_gaps_binds_the_longest_gap() -> None:
    slo = [Slo(metric="itl_max", limit=0.5, unit="s")]
    requests = [finished(0, 0.0, [0.1, 0.2, 0.3]), finished(1, 0.0, [0.1, 0.2, 1.0])]
    assert measure(RunResult(CONFIG, requests, [], 2.0), ["goodput"], slo)["goodput"] == pytest.approx(1 / 2)

"""The metrics of a run against values worked out by hand from its time stamps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import RunResult
from inferdoc.engine.kv_manager import KVUse
from inferdoc.engine.request import Request
from inferdoc.engine.steplog import Step
from inferdoc.evidence import Slo
from inferdoc.gate.arms import ReadyArm
from inferdoc.gate.measuring import ArmRun, identical_share, needs_open_loop, run_values
from inferdoc.gate.registry import RUN_METRICS

CONFIG = EngineConfig(max_model_len=64, num_kv_blocks=8)
ARM = cast(
    ReadyArm,
    SimpleNamespace(
        context=SimpleNamespace(
            loaded=SimpleNamespace(weight_bytes_measured=1000),
            runner=SimpleNamespace(kv_bytes_per_token=16),
            kv_capacity_tokens=512,
        )
    ),
)


def request(id: int, arrival: float, times: list[float], cached: int = 0, output: list[int] | None = None) -> Request:
    made = Request(id, [1] * 10, len(times), arrival)
    made.tokens.extend(output or [7] * len(times))
    made.token_times = times
    made.num_cached = cached
    return made


def step(start: float, end: float, running: int, written: int) -> Step:
    use = KVUse(reserved=written, written=written, tail=0, external=0)
    return Step(start, end, 0.0, 0, running, 0, running, 0, 0, use)


def run(requests: list[Request], duration: float) -> RunResult:
    steps = [step(0.0, 1.0, 2, 20), step(1.0, duration, 1, 12)]
    return RunResult(CONFIG, requests, steps, duration)


@pytest.fixture
def measured() -> dict[str, float | None]:
    first = request(0, 0.0, [1.0, 2.0, 4.0], cached=5)
    second = request(1, 0.5, [1.0, 1.5])
    second.preemptions = 2
    loop = run([first, second], 4.0)
    ids = [id for id in RUN_METRICS if id != "outputs_identical"]
    slo = [Slo(metric="ttft_p95", limit=0.7, unit="s")]
    return run_values(ids, ArmRun(loop, loop), ARM, slo=slo, price_per_hour=3.6)


@pytest.mark.parametrize(
    ("id", "value"),
    [
        ("output_tok_s", 5 / 4),
        ("ttft_p50", 0.75),  # 1.0 and 0.5
        ("tpot_p50", 1.0),  # (4 - 1) / 2 and 0.5: between 1.5 and 0.5
        ("itl_p50", 1.0),  # 1, 2, 0.5
        ("itl_p90", 1.8),  # between 1 and 2, at 0.8 of the way
        ("itl_max", 2.0),
        ("e2e_p50", 2.5),  # 4.0 and 1.0
        ("goodput", 1 / 4),  # the second request alone is within 0.7 s
        ("live_requests", (2 * 1 + 1 * 3) / 4),
        ("hit_rate", 5 / 20),
        ("preemptions", 2.0),
        ("kv_tokens_peak", 20.0),
        ("error_rate", 0.0),
        ("output_tokens_total", 5.0),
        ("weight_bytes", 1000.0),
        ("kv_bytes_per_token", 16.0),
        ("kv_capacity_tokens", 512.0),
        ("cost_per_million_tokens", 800.0),  # 3.6 an hour is 0.001 a second: 0.004 for 5 tokens
    ],
)
def test_value(measured: dict[str, float | None], id: str, value: float) -> None:
    assert measured[id] == pytest.approx(value)


def test_every_metric_of_the_registry_is_measured(measured: dict[str, Any]) -> None:
    assert set(measured) == set(RUN_METRICS) - {"outputs_identical"}
    assert None not in measured.values()


def test_requests_of_one_token_have_no_tpot() -> None:
    loop = run([request(0, 0.0, [1.0])], 2.0)
    values = run_values(["tpot_p50", "itl_p50", "ttft_p50"], ArmRun(loop, loop), ARM, slo=[], price_per_hour=None)
    assert values == {"tpot_p50": None, "itl_p50": None, "ttft_p50": 1.0}


def test_a_request_that_was_cut_short_is_an_error() -> None:
    cut = request(0, 0.0, [1.0, 2.0])
    cut.tokens.pop()
    loop = run([cut, request(1, 0.0, [1.0])], 2.0)
    assert run_values(["error_rate"], ArmRun(loop, None), ARM, slo=[], price_per_hour=None) == {"error_rate": 0.5}


def test_identical_share_counts_requests_with_the_same_tokens() -> None:
    base = run([request(0, 0.0, [1.0, 2.0], output=[3, 4]), request(1, 0.0, [1.0], output=[5])], 2.0)
    other = run([request(0, 0.0, [1.0, 2.0], output=[3, 9]), request(1, 0.0, [1.0], output=[5])], 2.0)
    assert identical_share(base, base) == 1.0
    assert identical_share(base, other) == 0.5


def test_only_latencies_need_the_open_loop() -> None:
    assert needs_open_loop(["output_tok_s", "ttft_p50"])
    assert not needs_open_loop(["output_tok_s", "weight_bytes", "hit_rate"])

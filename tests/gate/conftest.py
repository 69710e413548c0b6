"""Hand-made stored runs: one card, one comparison of prefix caching, a few plain quantities of every kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from inferdoc.evidence import (
    Basis,
    Comparison,
    Environment,
    EnvironmentField,
    Evidence,
    Interval,
    Objective,
    PairedMetric,
    Quantity,
    Question,
    Run,
    Subject,
    Tool,
    Validity,
    Workload,
)

H100 = "NVIDIA H100 80GB HBM3"
CARD = {
    "gpu": H100,
    "gpu_form_factor": "SXM",
    "gpu_count": 1.0,
    "gpu_models": H100,
    "gpu_mig": "whole card",
    "driver": "570.1",
    "cuda": "12.8",
    "power_limit": 700.0,
    "clocks_locked": "no",
    "processor": "AMD EPYC 9454",
    "cores": 16.0,
    "threads": 16.0,
}
OF_A_CARD = tuple(name for name in CARD if name not in ("processor", "cores", "threads"))
CONFIG = {"max_num_seqs": 8, "block_size": 16, "enable_prefix_caching": False}


def field(value: str | float | None, state: str = "value") -> EnvironmentField:
    return EnvironmentField.model_validate({"state": state, "value": value, "source": "test"})


def fields(**changes: EnvironmentField) -> dict[str, EnvironmentField]:
    return {**{name: field(value) for name, value in CARD.items()}, **changes}


def cpu_fields(processor: str = "AMD EPYC 9454", **changes: EnvironmentField) -> dict[str, EnvironmentField]:
    none = {name: field(None, "not_applicable") for name in OF_A_CARD}
    return fields(**none, processor=field(processor), **changes)


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, method="exact")


def comparison(off: list[float], on: list[float], gain: tuple[float, float, float], load: str) -> Comparison:
    def estimate(part: str, values: list[float]) -> Quantity:
        return Quantity(
            id=f"prefix_caching.saturated.throughput.{part}",
            label=f"output tokens per second, {part}",
            value=median(values),
            unit="tokens/s",
            basis=Basis.MEASURED,
            interval=interval(min(values), max(values)),
            n=len(values),
            direction="higher",
        )

    return Comparison(
        id="prefix_caching.saturated",
        question=Question.PREFIX_REDUNDANCY,
        technique="prefix_caching",
        label="Prefix caching, saturated",
        changed="enable_prefix_caching: False -> True",
        off_config={},
        on_config={},
        load=load,
        requests=64,
        kv_tokens=4096,
        order=["off", "on", "on", "off"] * 4,
        pairs=8,
        metrics={
            "throughput": PairedMetric(
                metric="throughput",
                label="output tokens per second",
                unit="tokens/s",
                direction="higher",
                off=off,
                on=on,
                off_estimate=estimate("off", off),
                on_estimate=estimate("on", on),
                gain=Quantity(
                    id="prefix_caching.saturated.throughput.gain",
                    label="Prefix caching, saturated: gain in output tokens per second",
                    value=gain[0],
                    unit="ratio",
                    basis=Basis.MEASURED,
                    interval=interval(*gain[1:]),
                    n=8,
                    direction="higher",
                ),
            )
        },
        engine_limited=False,
    )


def plain(id: str, value: float | None, unit: str, **more: Any) -> Quantity:
    return Quantity(id=id, label=id, value=value, unit=unit, **{"basis": Basis.MEASURED, **more})


def evidence(
    *,
    run_id: str = "base",
    scale: float = 1.0,
    gain: tuple[float, float, float] = (1.42, 1.30, 1.52),
    load: str = "saturated",
    hit_rate: float | None = 0.64,
    weights: float = 1000.0,
    tpot: float = 0.004,
    environment: dict[str, EnvironmentField] | None = None,
    subject: dict[str, Any] | None = None,
    workload: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    tool: dict[str, Any] | None = None,
    validity: Validity | None = None,
    failure: str | None = None,
) -> Evidence:
    """A run whose throughput is `scale` times 400 tokens/s, with 1% between its repeats."""
    off = [400.0 * scale * share for share in (0.99, 1.0, 1.01, 1.0, 0.995, 1.005, 1.0, 0.99)]
    measured = comparison(off, [value * gain[0] for value in off], gain, load)
    quantities = [
        plain("fit.fits", 1.0, "yes or no", exact=True),
        plain("fit.weights_bytes", weights, "bytes", exact=True),
        plain("fit.longest_request_tokens", 880.0, "tokens", exact=True),
        plain("prefix.ideal_hit_rate", 0.66, "share", exact=True, basis=Basis.TRACE),
        plain("prefix.measured_hit_rate", hit_rate, "share", exact=True, reason=None if hit_rate else "not run"),
        plain("latency.tpot_b1", tpot, "s", direction="lower", interval=interval(0.98 * tpot, 1.02 * tpot), n=64),
    ]
    return Evidence(
        tool=Tool(**{"version": "0.1.0", "python": "3.11", "probes": "p1", **(tool or {})}),
        run=Run(
            **{
                "id": run_id,
                "started_at": "2026-03-02T10:14:07Z",
                "duration_s": 60.0,
                "command": "inferdoc diagnose",
                "seed": 0,
                "objective": Objective.THROUGHPUT,
                "budget_s": 300.0,
                "status": "complete",
                **(run or {}),
            }
        ),
        subject=Subject(
            **{
                "model": "Qwen3-8B",
                "revision": "abc",
                "architecture": "Qwen3ForCausalLM",
                "parameters": 8,
                "dtype": "bfloat16",
                "load_format": "auto",
                "engine": "inferdoc engine",
                "engine_config": CONFIG,
                "context_length": 4096,
                "real_outputs": True,
                **(subject or {}),
            }
        ),
        environment=Environment(fields=environment or fields(), fingerprint="e" * 64),
        workload=Workload(
            **{
                "source": "trace.jsonl",
                "format": "chat",
                "time_unit": "s",
                "requests": 64,
                "duration_s": 60.0,
                "rate_per_s": 1.0,
                "block_size": None,
                "content": "text",
                "slice_requests": 64,
                "fingerprint": "w" * 64,
                **(workload or {}),
            }
        ),
        validity=validity or Validity(status="valid"),
        quantities={quantity.id: quantity for quantity in quantities},
        comparisons={measured.id: measured.model_copy(update={"failure": failure})},
    )


class Runs:
    """Makes stored runs and the parts that tests change in them."""

    evidence = staticmethod(evidence)
    field = staticmethod(field)
    fields = staticmethod(fields)
    cpu_fields = staticmethod(cpu_fields)
    interval = staticmethod(interval)


@pytest.fixture
def runs() -> type[Runs]:
    return Runs


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run as ``<name>/evidence.json``; returns the folder."""

    def write(name: str, **changes: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        made = evidence(**{"run_id": name, **changes})
        (folder / "evidence.json").write_text(made.model_dump_json(by_alias=True), encoding="utf-8")
        return folder

    return write

"""Hand-made evidence for the rules: a run in which nothing was measured, to which a test adds what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from inferdoc.evidence import (
    Basis,
    Check,
    Comparison,
    Diagnosis,
    Environment,
    Evidence,
    Finding,
    Interval,
    PairedMetric,
    PlanStep,
    ProbeResult,
    Quantity,
    Question,
    Run,
    Slo,
    Subject,
    Tool,
    Validity,
    Workload,
)
from inferdoc.rules import Pack, diagnose, load_pack

METHOD = "Wilcoxon signed-rank, exact"


class EvidenceBuilder:
    """Evidence step by step; every method returns the builder."""

    def __init__(self) -> None:
        self.quantities: dict[str, Quantity] = {}
        self.comparisons: dict[str, Comparison] = {}
        self.slo: list[Slo] = []
        self.probes: list[ProbeResult] = []
        self.plan: list[PlanStep] = []
        self.objective = "throughput"
        self.length_scale = 1.0
        self.slice_requests = 300
        self.command = "inferdoc diagnose --trace t.jsonl --budget 3m"
        self.real_outputs = True
        self.validity = Validity(status="valid")
        self.run_status = "complete"

    def known(
        self,
        id: str,
        value: float,
        interval: tuple[float, float] | None = None,
        *,
        unit: str = "",
        basis: Basis = Basis.MEASURED,
        exact: bool = False,
        note: str | None = None,
    ) -> EvidenceBuilder:
        between = Interval(low=interval[0], high=interval[1], method=METHOD) if interval else None
        self.quantities[id] = Quantity(
            id=id, label=id, value=value, unit=unit, basis=basis, interval=between, exact=exact, note=note
        )
        return self

    def unknown(self, id: str, reason: str, note: str | None = None) -> EvidenceBuilder:
        self.quantities[id] = Quantity(
            id=id, label=id, value=None, unit="", basis=Basis.MEASURED, reason=reason, note=note
        )
        return self

    def fits(self, headroom: float = 2.0, fraction: float = 0.5) -> EvidenceBuilder:
        gib = 2.0**30
        self.known("fit.fits", 1, exact=True).known("fit.weights_fraction", fraction)
        self.known("fit.budget_bytes", 16 * gib).known("fit.weights_bytes", 16 * gib * fraction)
        self.known("fit.kv_headroom", headroom, basis=Basis.MODELLED).known("fit.devices_needed", 1, exact=True)
        return self.known("fit.kv_capacity_tokens", 40_000, exact=True)

    def does_not_fit(self, devices: float | None = 4) -> EvidenceBuilder:
        gib = 2.0**30
        self.known("fit.fits", 0, exact=True).known("fit.budget_bytes", 16 * gib).known("fit.weights_bytes", 50 * gib)
        if devices is not None:
            self.known("fit.devices_needed", devices, exact=True, basis=Basis.CONFIG)
        return self

    def compare(
        self,
        id: str,
        *,
        question: Question = Question.PREFIX_REDUNDANCY,
        arms: dict[str, tuple[float, float]] | None = None,
        engine_limited: bool | None = False,
        failure: str | None = None,
        overloaded: tuple[str, ...] = (),
        note: str | None = None,
        **gains: tuple[float, float, float] | float | None,
    ) -> EvidenceBuilder:
        """A comparison with a gain for each metric: (value, low, high), or a value without an interval, or unknown."""
        metrics = {}
        for metric, gain in gains.items():
            between = Interval(low=gain[1], high=gain[2], method=METHOD) if isinstance(gain, tuple) else None
            value = gain[0] if isinstance(gain, tuple) else gain
            off, on = (arms or {}).get(metric, (1.0, 2.0))
            common: dict[str, Any] = {"unit": "s", "basis": Basis.MEASURED}
            metrics[metric] = PairedMetric(
                metric=metric,
                label=metric,
                unit="s",
                direction="lower",
                off=[],
                on=[],
                off_estimate=Quantity(id="off", label=metric, value=off, **common),
                on_estimate=Quantity(id="on", label=metric, value=on, **common),
                gain=Quantity(
                    id="gain",
                    label=f"{metric} gain",
                    value=value,
                    unit="x",
                    basis=Basis.MEASURED,
                    interval=between,
                    n=6 if between else 3,
                    reason=None if value is not None else "no pairs",
                    note=note,
                ),
            )
        self.comparisons[id] = Comparison(
            id=id,
            question=question,
            technique=id.partition(".")[0],
            label=id,
            changed="field: off -> on",
            off_config={},
            on_config={},
            load="saturated",
            requests=self.slice_requests,
            kv_tokens=40_000,
            order=["off", "on", "on", "off"],
            pairs=6,
            metrics=metrics,
            engine_limited=engine_limited,
            failure=failure,
            overloaded=list(overloaded),
        )
        return self

    def objectives(self, **limits: float) -> EvidenceBuilder:
        self.slo += [Slo(metric=metric, limit=limit, unit="s") for metric, limit in limits.items()]
        return self

    def probe(self, question: Question, reason: str) -> EvidenceBuilder:
        self.probes.append(ProbeResult(question=question, status="not measured", reason=reason))
        return self

    def dropped(self, id: str, reason: str) -> EvidenceBuilder:
        step = PlanStep(id=id, question=Question.PREFIX_REDUNDANCY, label=id, pairs=6, estimated_s=9.0, dropped=reason)
        self.plan.append(step)
        return self

    def unhealthy(self, status: str, text: str) -> EvidenceBuilder:
        self.validity = Validity.model_validate(
            {"status": status, "checks": [Check(name="health", passed=False, text=text)]}
        )
        return self

    def build(self) -> Evidence:
        return Evidence(
            tool=Tool(version="0.1.0", python="3.11"),
            run=Run.model_validate(
                {
                    "id": "r",
                    "started_at": "2026-01-01T00:00:00Z",
                    "duration_s": 60.0,
                    "command": self.command,
                    "seed": 0,
                    "objective": self.objective,
                    "budget_s": 180.0,
                    "slo": self.slo,
                    "status": self.run_status,
                }
            ),
            subject=Subject(
                model="m",
                architecture="LlamaForCausalLM",
                parameters=1_000_000,
                dtype="float32",
                load_format="auto",
                engine="inferdoc",
                engine_config={},
                context_length=4096,
                real_outputs=self.real_outputs,
            ),
            environment=Environment(fields={}, fingerprint="e"),
            workload=Workload(
                source="t.jsonl",
                format="chat",
                time_unit=None,
                requests=300,
                duration_s=60.0,
                rate_per_s=5.0,
                block_size=None,
                content="text",
                length_scale=self.length_scale,
                slice_requests=self.slice_requests,
                fingerprint="w",
            ),
            validity=self.validity,
            plan=self.plan,
            probes=self.probes,
            quantities=self.quantities,
            comparisons=self.comparisons,
        )


@pytest.fixture
def make() -> EvidenceBuilder:
    return EvidenceBuilder()


@pytest.fixture(scope="session")
def pack() -> Pack:
    return load_pack()


class Judge:
    """Runs the built-in rules over a builder."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack

    def __call__(self, builder: EvidenceBuilder) -> Diagnosis:
        return diagnose(builder.build(), self.pack)

    def finding(self, builder: EvidenceBuilder, rule: str) -> Finding:
        return next(finding for finding in self(builder).findings if finding.rule_id == rule)


@pytest.fixture(scope="session")
def judge(pack: Pack) -> Judge:
    return Judge(pack)

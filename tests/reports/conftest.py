"""Hand-made evidence and diagnoses: a complete one with something of every kind, and one with next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferdoc.evidence import (
    Basis,
    Change,
    Check,
    Claim,
    Comparison,
    Conclusion,
    Diagnosis,
    Environment,
    EnvironmentField,
    Evidence,
    Expected,
    Fact,
    Finding,
    Interval,
    LeftOut,
    Line,
    Objective,
    Outputs,
    PairedMetric,
    PlanStep,
    ProbeResult,
    Quantity,
    Question,
    QuestionAnswer,
    Recommendation,
    RulePack,
    Run,
    Series,
    Slo,
    Subject,
    Tool,
    Truth,
    Validity,
    Verdict,
    Workload,
)
from inferdoc.gate.result import (
    Arm,
    Comparability,
    Confirmation,
    DesignRecord,
    DiagnosisChange,
    Exclusion,
    Family,
    FieldComparison,
    GateResult,
    GateVerdict,
    MetricResult,
    MetricVerdict,
    PolicyRecord,
)
from inferdoc.reports.html import render_html

WILCOXON = "Wilcoxon signed-rank, exact"
ABBA = ["off", "on", "on", "off"] * 3


def quantity(
    id: str, label: str, value: float | None, unit: str, span: tuple[float, float] | None = None, **more: Any
) -> Quantity:
    more.setdefault("basis", Basis.MEASURED)
    interval = Interval(low=span[0], high=span[1], method=WILCOXON) if span else None
    return Quantity(id=id, label=label, value=value, unit=unit, interval=interval, **more)


def paired(
    comparison: str,
    metric: str,
    label: str,
    unit: str,
    direction: str,
    off: float,
    on: float,
    gain: tuple[float, float, float] | None,
) -> PairedMetric:
    spread = (0.98, 1.01, 1.00, 0.99, 1.02, 1.00)
    prefix = f"{comparison}.{metric}"
    measured = (
        quantity(f"{prefix}.gain", f"{label}, gain", gain[0], "x", gain[1:], n=6, direction="higher")
        if gain
        else quantity(f"{prefix}.gain", f"{label}, gain", None, "x", reason="3 pairs, an interval needs 6")
    )
    return PairedMetric(
        metric=metric,
        label=label,
        unit=unit,
        direction=direction,
        off=[off * share for share in spread],
        on=[on * share for share in spread],
        off_estimate=quantity(f"{prefix}.off", f"{label}, off", off, unit, n=6),
        on_estimate=quantity(f"{prefix}.on", f"{label}, on", on, unit, n=6),
        gain=measured,
    )


def comparison(
    id: str, question: Question, technique: str, label: str, metrics: list[tuple[Any, ...]], **more: Any
) -> Comparison:
    return Comparison(
        id=id,
        question=question,
        technique=technique,
        label=label,
        changed=more.pop("changed", "enable_prefix_caching: False -> True"),
        off_config={"enable_prefix_caching": False},
        on_config={"enable_prefix_caching": True},
        load=more.pop("load", "saturated"),
        requests=64,
        kv_tokens=16384,
        order=ABBA,
        pairs=6,
        metrics={row[0]: paired(id, *row) for row in metrics},
        outputs=more.pop("outputs", Outputs(requests=64, identical=64)),
        roofline_fraction=more.pop("roofline_fraction", None),
        **more,
    )


def evidence() -> Evidence:
    p, o, k, t, d = (
        Question.PREFIX_REDUNDANCY,
        Question.OUTPUT_VARIANCE,
        Question.KV_FRAGMENTATION,
        Question.TOKEN_LATENCY,
        Question.DISAGGREGATION,
    )
    roofline = quantity("roofline", "share of the roofline", 0.31, "share", (0.29, 0.33), n=6)
    comparisons = [
        comparison(
            "prefix_caching.saturated",
            p,
            "prefix_caching",
            "Prefix caching, saturated",
            [
                ("throughput", "output tokens/s", "tokens/s", "higher", 412.0, 754.0, (1.83, 1.79, 1.88)),
                ("e2e_p50", "E2E p50", "s", "lower", 8.1, 4.4, (1.84, 1.78, 1.91)),
            ],
            roofline_fraction=roofline,
            engine_limited=True,
        ),
        comparison(
            "prefix_caching.open",
            p,
            "prefix_caching",
            "Prefix caching, open loop",
            [
                ("ttft_p50", "TTFT p50", "s", "lower", 0.412, 0.171, (2.41, 2.22, 2.63)),
                ("ttft_p95", "TTFT p95", "s", "lower", 1.310, 0.522, (2.51, 2.08, 2.97)),
                ("tpot_p50", "TPOT p50", "s", "lower", 0.0218, 0.0201, (1.08, 1.02, 1.13)),
            ],
            load="open loop at 0.70 of the off arm's saturation (3.1 requests/s)",
        ),
        comparison(
            "continuous_batching.saturated",
            o,
            "continuous_batching",
            "Continuous batching, saturated",
            [("throughput", "output tokens/s", "tokens/s", "higher", 318.0, 412.0, (1.30, 1.26, 1.33))],
            changed="batching: static -> continuous",
        ),
        comparison(
            "chunked_prefill.interference",
            d,
            "chunked_prefill",
            "Chunked prefill, long prefill beside running decodes",
            [
                ("itl_max", "longest ITL", "s", "lower", 0.141, 0.052, (2.71, 2.40, 3.05)),
                ("throughput", "output tokens/s", "tokens/s", "higher", 402.0, 373.0, (0.93, 0.91, 0.95)),
            ],
            changed="max_num_batched_tokens: 8192 -> 512",
            outputs=Outputs(requests=64, identical=63, first_difference="request 12, token 40"),
        ),
        comparison(
            "paged_attention.p25",
            k,
            "paged_attention",
            "Paged KV at 25% of the p99 demand",
            [
                ("live_requests", "live requests", "requests", "higher", 2.1, 7.8, (3.71, 3.6, 3.83)),
                ("throughput", "output tokens/s", "tokens/s", "higher", 151.0, 376.0, (2.49, 2.38, 2.6)),
            ],
            changed="kv_layout: contiguous -> paged",
        ),
        comparison(
            "paged_attention.real",
            k,
            "paged_attention",
            "Paged KV at the real budget",
            [("throughput", "output tokens/s", "tokens/s", "higher", 410.0, 412.0, (1.01, 0.98, 1.03))],
            changed="kv_layout: contiguous -> paged",
        ),
    ]
    exact = {"exact": True, "basis": Basis.CONFIG}
    quantities = [
        quantity("fit.weights_bytes", "weights", 4_810_752.0, "bytes", **exact),
        quantity("fit.kv_capacity_tokens", "KV capacity", 2_101_248.0, "tokens", exact=True),
        quantity("fit.kv_demand_p99_tokens", "KV demand, p99", 9_412.0, "tokens", basis=Basis.MODELLED),
        quantity("fit.kv_headroom", "KV capacity / p99 demand", 223.0, "x", basis=Basis.MODELLED),
        quantity(
            "prefix.ideal_hit_rate", "ideal prefix hit rate", 0.713, "share", basis=Basis.TRACE, exact=True, n=320
        ),
        quantity("prefix.measured_hit_rate", "measured prefix hit rate", 0.688, "share", n=64),
        quantity(
            "variance.output_cv", "output length, coefficient of variation", 1.12, "ratio", basis=Basis.TRACE, n=320
        ),
        quantity("latency.tpot_b1", "TPOT at batch 1", 0.00412, "s", (0.00405, 0.00421), n=64),
        quantity("latency.tpot_at_load", "TPOT p99 at load", None, "s", reason="too few requests (n=64, need 368)"),
        quantity("disagg.replicas_needed", "replicas that the traffic needs", 0.21, "ratio", basis=Basis.MODELLED),
    ]
    batches = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    measured = [0.0041, 0.0052, 0.0071, 0.0104, 0.0178, 0.0331]
    series = [
        Series(
            id="tpot_by_batch",
            question=t,
            title="Time per output token by batch size",
            kind="line",
            x_label="batch size",
            x_unit="requests",
            y_label="TPOT",
            y_unit="s",
            x_log=True,
            note="The bound is what the weights and the KV cache need at the measured bandwidth.",
            lines=[
                Line(
                    name="measured",
                    x=batches,
                    y=measured,
                    low=[value * 0.96 for value in measured],
                    high=[value * 1.05 for value in measured],
                ),
                Line(name="roofline bound", x=batches, y=[0.0013, 0.0014, 0.0017, 0.0022, None, 0.0052]),
            ],
        ),
        Series(
            id="output_lengths",
            question=o,
            title="Output lengths in the trace",
            kind="bar",
            x_label="output length, up to",
            x_unit="tokens",
            y_label="requests",
            y_unit="requests",
            lines=[
                Line(name="trace", x=[16.0 * (i + 1) for i in range(24)], y=[float(90 // (i + 1)) for i in range(24)])
            ],
        ),
        Series(
            id="kv_in_use",
            question=k,
            title="KV memory in use over the trace",
            kind="step",
            x_label="time",
            x_unit="s",
            y_label="KV in use",
            y_unit="tokens",
            lines=[
                Line(
                    name="full-length reservation",
                    x=[float(i) for i in range(60)],
                    y=[2048.0 * (i % 7) for i in range(60)],
                ),
                Line(name="paged", x=[float(i) for i in range(60)], y=[300.0 * (i % 11) for i in range(60)]),
            ],
        ),
    ]
    return Evidence(
        tool=Tool(version="0.1.0", python="3.11.2"),
        run=Run(
            id="3f9c2a",
            started_at="2026-03-02T10:14:07Z",
            duration_s=312.4,
            command="inferdoc diagnose --slo ttft_p95=500ms --budget 5m",
            seed=0,
            objective=Objective.LATENCY,
            budget_s=300.0,
            slo=[Slo(metric="ttft_p95", limit=0.5, unit="s"), Slo(metric="tpot_p95", limit=0.05, unit="s")],
            status="complete",
        ),
        subject=Subject(
            model="embedded",
            architecture="LlamaForCausalLM",
            parameters=2_405_376,
            dtype="float32",
            load_format="safetensors",
            engine="inferdoc engine 0.1.0",
            engine_config={"max_num_seqs": 16, "block_size": 16, "max_num_batched_tokens": 2048},
            context_length=2048,
            real_outputs=True,
        ),
        environment=Environment(
            fields={
                "gpu": EnvironmentField(state="not_applicable", source="runs on the CPU"),
                "processor": EnvironmentField(state="value", value="2-core CPU, host RAM", source="/proc/cpuinfo"),
                "memory_free": EnvironmentField(state="value", value=6.2e9, unit="B", source="/proc/meminfo"),
                "cuda": EnvironmentField(state="not_applicable", source="torch"),
                "clocks": EnvironmentField(state="unknown", source="/sys"),
                "temperature": EnvironmentField(state="error", source="/sys/class/thermal"),
            },
            fingerprint="a91be2",
        ),
        workload=Workload(
            source="bundled.jsonl.gz",
            format="chat",
            time_unit="s",
            requests=320,
            duration_s=104.2,
            rate_per_s=3.07,
            block_size=None,
            content="text",
            left_out=[LeftOut(reason="prompt beyond the context of the model", rows=3, first_line=41)],
            quantities={
                "input_tokens_p50": quantity(
                    "input_tokens_p50", "input tokens, p50", 312.0, "tokens", basis=Basis.TRACE
                ),
                "output_tokens_p99": quantity(
                    "output_tokens_p99",
                    "output tokens, p99",
                    None,
                    "tokens",
                    reason="p99 needs 368 requests, there are 320",
                ),
            },
            slice_requests=64,
            slice_window="10.2 s to 31.0 s of the trace",
            fingerprint="77d0c1",
            notes=["Arrival times are relative to the first request."],
        ),
        validity=Validity(
            status="degraded",
            checks=[
                Check(name="other processes", passed=False, text="load average 1.9 before the run, on 2 cores"),
                Check(name="failed requests", passed=True, text="0 of 768"),
                Check(name="throttling", passed=None, text="this CPU does not report its clocks"),
            ],
        ),
        plan=[
            PlanStep(id="pc", question=p, label="prefix caching, saturated", pairs=6, estimated_s=42.0, actual_s=44.1),
            PlanStep(
                id="cbo",
                question=o,
                label="continuous batching, open loop",
                pairs=6,
                estimated_s=96.0,
                dropped="needs 96 s, 31 s of the budget were left",
            ),
        ],
        probes=[
            ProbeResult(question=p, status="measured", seconds=88.2),
            ProbeResult(question=o, status="partial", reason="the open-loop runs did not fit the budget", seconds=51.0),
        ],
        quantities={item.id: item for item in quantities},
        comparisons={item.id: item for item in comparisons},
        series=series,
    )


def finding(
    rule_id: str, question: Question, technique: str, title: str, conclusion: Conclusion, text: str, **more: Any
) -> Finding:
    status = {
        Conclusion.RECOMMENDED: "failed",
        Conclusion.DOES_NOT_PAY: "passed",
        Conclusion.NOT_NEEDED: "not_applicable",
        Conclusion.INCONCLUSIVE: "unknown",
        Conclusion.NOT_MEASURED: "unknown",
    }[conclusion]
    return Finding(
        rule_id=rule_id,
        rule_version=1,
        question=question,
        technique=technique,
        title=title,
        conclusion=conclusion,
        status=status,
        severity="medium",
        confidence=more.pop("confidence", "high"),
        text=text,
        rule_source=f"rules/{question.value}.yaml:{more.pop('line', 12)}",
        **more,
    )


def diagnosis(of: Evidence) -> Diagnosis:
    def fact(
        id: str,
        relation: str = "shown",
        at: float | None = None,
        source: str | None = None,
        outcome: Truth | None = None,
    ) -> Fact:
        found = of.lookup(id)
        assert found is not None, id
        return Fact(quantity=found, relation=relation, threshold=at, threshold_source=source, outcome=outcome)

    least = "least gain worth a change (rules/techniques.yaml)"
    findings = [
        finding(
            "prefix_caching",
            Question.PREFIX_REDUNDANCY,
            "prefix_caching",
            "Prefix caching",
            Conclusion.RECOMMENDED,
            "71.3% of the prompt tokens repeat; caching gives 1.83x the output tokens/s and 2.41x better TTFT p50.",
            evidence=[
                fact("prefix_caching.saturated.throughput.gain", "at least", 1.05, least, Truth.YES),
                fact("prefix_caching.open.ttft_p50.gain", "at least", 1.05, least, Truth.YES),
                fact("prefix.ideal_hit_rate", "at least", 0.2, "vLLM documentation", Truth.YES),
            ],
            against=[fact("prefix_caching.open.tpot_p50.gain", "below", 1.0, "no loss in TPOT", Truth.NO)],
            refuted_by="A trace whose ideal hit rate is below 20%, or a KV cache too small for the shared prefixes.",
            marks=["engine-limited"],
        ),
        finding(
            "continuous_batching",
            Question.OUTPUT_VARIANCE,
            "continuous_batching",
            "Continuous batching",
            Conclusion.RECOMMENDED,
            "Output lengths vary (coefficient of variation 1.12): continuous batching gives 1.30x the output tokens/s.",
            evidence=[fact("continuous_batching.saturated.throughput.gain", "at least", 1.05, least, Truth.YES)],
            refuted_by="Outputs of equal length.",
        ),
        finding(
            "chunked_prefill",
            Question.DISAGGREGATION,
            "chunked_prefill",
            "Chunked prefill at 512 tokens",
            Conclusion.DOES_NOT_PAY,
            "It shortens the longest gap 2.71x, but costs 7% of the throughput and no objective for ITL was given.",
            evidence=[fact("chunked_prefill.interference.itl_max.gain", "at least", 1.05, least, Truth.YES)],
            against=[fact("chunked_prefill.interference.throughput.gain", "below", 1.0, "no loss allowed", Truth.YES)],
            refuted_by="An ITL objective below 141 ms.",
        ),
        finding(
            "max_num_seqs",
            Question.OUTPUT_VARIANCE,
            "continuous_batching",
            "A larger batch (max-num-seqs)",
            Conclusion.INCONCLUSIVE,
            "Needs another 96 s of measurement.",
            confidence="low",
            evidence=[fact("latency.tpot_at_load", "below", 0.05, "your objective", Truth.UNDECIDED)],
        ),
        finding(
            "paged_attention",
            Question.KV_FRAGMENTATION,
            "paged_attention",
            "PagedAttention",
            Conclusion.NOT_NEEDED,
            "The KV budget does not bind: capacity is 223 times the p99 demand. Below 9,412 tokens it starts to pay.",
            evidence=[
                fact("paged_attention.real.throughput.gain", "at least", 1.05, least, Truth.NO),
                fact("fit.kv_headroom"),
            ],
        ),
        finding(
            "quantization",
            Question.HARDWARE_FIT,
            "quantization",
            "INT8 weights",
            Conclusion.NOT_MEASURED,
            "not yet supported",
        ),
        finding(
            "speculative_draft",
            Question.TOKEN_LATENCY,
            "speculative_draft",
            "Speculation with a draft model",
            Conclusion.NOT_MEASURED,
            "not yet supported",
        ),
    ]

    def change(id: str, label: str, gain: tuple[float, float, float]) -> Expected:
        return Expected(metric=id, label=label, estimate=gain[0], low=gain[1], high=gain[2], basis=Basis.MEASURED)

    recommendations = [
        Recommendation(
            id="R1",
            rank=1,
            technique="prefix_caching",
            title="Switch prefix caching on",
            change=Change(knob="enable_prefix_caching", from_="off", to="on"),
            expected=[
                change("throughput", "output tokens/s", (1.83, 1.79, 1.88)),
                change("ttft_p50", "TTFT p50", (2.41, 2.22, 2.63)),
                change("ttft_p95", "TTFT p95", (2.51, 2.08, 2.97)),
            ],
            effort="low",
            risk="Cached blocks compete with running requests for KV memory.",
            quality_risk="none: outputs were identical",
            engine_flags={
                "vllm": "--enable-prefix-caching",
                "sglang": "on by default (--disable-radix-cache turns it off)",
            },
            verify_command="inferdoc diagnose --slo ttft_p95=500ms --budget 5m --only prefix_redundancy",
            refs=["https://docs.vllm.ai/en/latest/features/automatic_prefix_caching.html"],
            finding="prefix_caching",
        ),
        Recommendation(
            id="R2",
            rank=2,
            technique="continuous_batching",
            title="Batch continuously",
            change=Change(knob="batching", from_="static", to="continuous"),
            expected=[change("throughput", "output tokens/s", (1.30, 1.26, 1.33))],
            adds=change("throughput", "output tokens/s", (1.17, 1.12, 1.21)),
            effort="low",
            risk="none known",
            quality_risk="none: outputs were identical",
            engine_flags={"vllm": "always on", "sglang": "always on"},
            verify_command="inferdoc diagnose --budget 5m --only output_variance",
            refs=["https://www.usenix.org/conference/osdi22/presentation/yu"],
            finding="continuous_batching",
        ),
    ]
    answer = {
        Question.HARDWARE_FIT: (
            Conclusion.NOT_NEEDED,
            "It fits: weights take 0.08% of the budget and KV demand 0.4% of what is left.",
        ),
        Question.PREFIX_REDUNDANCY: (
            Conclusion.RECOMMENDED,
            "Yes: 71.3% of the prompt tokens repeat, and caching them pays.",
        ),
        Question.OUTPUT_VARIANCE: (Conclusion.RECOMMENDED, "Yes: continuous batching gives 1.30x the output tokens/s."),
        Question.KV_FRAGMENTATION: (Conclusion.NOT_NEEDED, "Not at this budget; paging pays below 9,412 KV tokens."),
        Question.TOKEN_LATENCY: (Conclusion.INCONCLUSIVE, "TPOT at load needs 368 requests for its p99; 64 were run."),
        Question.DISAGGREGATION: (Conclusion.DOES_NOT_PAY, "No: the traffic needs 0.21 of one replica."),
    }
    return Diagnosis(
        tool=of.tool,
        rule_pack=RulePack(
            version="1.0", sha256="c0ffee" * 10, files=[f"{question.value}.yaml" for question in Question]
        ),
        run=of.run,
        subject=of.subject,
        environment=of.environment,
        workload=of.workload,
        validity=of.validity,
        verdict=Verdict(
            headline="Repeated prompts are the limit: prefix caching gives 1.83x the throughput",
            bottleneck="prefill of repeated prompts",
            confidence="high",
            lines=[
                "Next: switch prefix caching on (output tokens/s 1.83x [1.79..1.88], measured here).",
                "TTFT p95 misses the objective of 500 ms without it; with it that is undecided.",
                "Could not be told: quantization and speculation are not yet supported.",
            ],
        ),
        answers=[QuestionAnswer(question=q, conclusion=c, text=text) for q, (c, text) in answer.items()],
        findings=findings,
        recommendations=recommendations,
        claims=[
            Claim(
                claim="Prefix caching cuts TTFT by up to 60%",
                source="framework, question 2",
                measured=of.lookup("prefix_caching.open.ttft_p50.gain"),
            ),
            Claim(
                claim="INT8 halves the memory of the weights",
                source="framework, question 1",
                measured=None,
                reason="not yet supported",
            ),
        ],
    )


def bare_evidence() -> Evidence:
    """What an interrupted run leaves: no comparison, no quantity, no field of the machine."""
    complete = evidence()
    return complete.model_copy(
        update={
            "run": complete.run.model_copy(update={"status": "partial", "slo": [], "errors": ["interrupted"]}),
            "environment": Environment(fields={}, fingerprint="none"),
            "workload": complete.workload.model_copy(
                update={
                    "duration_s": None,
                    "rate_per_s": None,
                    "time_unit": None,
                    "quantities": {},
                    "left_out": [],
                    "slice_requests": None,
                    "slice_window": None,
                    "length_scale": 1 / 32,
                }
            ),
            "validity": Validity(status="valid"),
            "plan": [],
            "probes": [],
            "quantities": {},
            "comparisons": {},
            "series": [],
        }
    )


def bare_diagnosis(of: Evidence) -> Diagnosis:
    return Diagnosis(
        tool=of.tool,
        rule_pack=RulePack(version="1.0", sha256="0" * 64, files=[]),
        run=of.run,
        subject=of.subject,
        environment=of.environment,
        workload=of.workload,
        validity=of.validity,
        verdict=Verdict(headline="Nothing could be told", bottleneck=None, confidence="low"),
        answers=[],
        findings=[],
        recommendations=[],
    )


def gate_metric(
    metric: str, label: str, unit: str, sides: tuple[float, float], verdict: str, line: int, **more: Any
) -> MetricResult:
    """One row whose eight repeats lie around `sides`; `change` holds the ratio with its interval."""
    spread = (0.99, 1.01, 1.0, 0.98, 1.02, 1.0, 1.01, 0.99)
    change: tuple[float, float, float] | None = more.pop("change", None)
    more.setdefault("role", "fail")
    more.setdefault("rule", "regression")
    more.setdefault("direction", "lower")
    return MetricResult(
        metric=metric,
        label=label,
        unit=unit,
        kind="exact" if more["rule"] == "exact" else "timing",
        baseline=sides[0],
        candidate=sides[1],
        baseline_values=[sides[0] * share for share in spread],
        candidate_values=[sides[1] * share for share in spread],
        n=8,
        ratio=change[0] if change else None,
        interval=Interval(low=change[1], high=change[2], method=WILCOXON) if change else None,
        verdict=MetricVerdict(verdict),
        policy_line=line,
        **more,
    )


def gate() -> GateResult:
    """A gate that fails, with a row of every verdict under every role that matters."""
    known, source = "value", "nvidia-smi"
    fields = [
        FieldComparison(
            field="engine.flags",
            group="may_vary",
            baseline=EnvironmentField(state="value", value="max_num_seqs=16", source="engine"),
            candidate=EnvironmentField(state="value", value="max_num_seqs=64", source="engine"),
            outcome="differs",
            refuses=False,
        ),
        FieldComparison(
            field="driver",
            group="warn",
            baseline=EnvironmentField(state=known, value="550.54", source=source),
            candidate=EnvironmentField(state=known, value="560.28", source=source),
            outcome="differs",
            refuses=False,
        ),
        FieldComparison(
            field="power_limit",
            group="warn",
            baseline=EnvironmentField(state="unknown", source=source),
            candidate=EnvironmentField(state=known, value=700.0, unit="W", source=source),
            outcome="unknown",
            refuses=False,
        ),
    ]
    results = [
        gate_metric(
            "e2e_p50",
            "end-to-end latency, p50",
            "s",
            (4.41, 4.43),
            "pass",
            41,
            change=(1.004, 0.992, 1.017),
            p=0.31,
            p_adjusted=0.93,
            limit=0.05,
            min_detectable=0.021,
        ),
        gate_metric(
            "output_tok_s",
            "output tokens per second",
            "tok/s",
            (3410.0, 3076.0),
            "regressed",
            14,
            direction="higher",
            change=(0.902, 0.888, 0.919),
            p=0.0039,
            p_adjusted=0.031,
            limit=0.05,
            floor=20.0,
            min_detectable=0.03,
            confirmation=Confirmation(pairs=5, ratio=0.909, p=0.031, confirmed=True),
        ),
        gate_metric(
            "ttft_p95",
            "TTFT, p95",
            "s",
            (0.412, 0.433),
            "inconclusive",
            20,
            change=(1.051, 0.985, 1.121),
            p=0.11,
            p_adjusted=0.44,
            limit=0.08,
            floor=0.01,
            min_detectable=0.091,
            pairs_needed=14,
        ),
        gate_metric(
            "itl_p99",
            "gap between tokens (ITL), p99",
            "s",
            (0.0182, 0.0171),
            "improved",
            26,
            change=(0.941, 0.92, 0.965),
            p=0.99,
            p_adjusted=1.0,
            limit=0.1,
            floor=0.001,
            min_detectable=0.034,
        ),
        gate_metric(
            "error_rate",
            "requests that did not complete",
            "share",
            (0.0, 0.0125),
            "broken",
            31,
            rule="budget",
            max_value=0.0005,
        ),
        gate_metric(
            "output_tokens_total",
            "output tokens of a run",
            "tokens",
            (12288.0, 12280.0),
            "regressed",
            35,
            rule="exact",
            direction=None,
            reason="8 tokens fewer in each of 8 pairs",
        ),
        gate_metric(
            "tpot_p50",
            "TPOT, p50",
            "s",
            (0.0211, 0.0236),
            "regressed",
            45,
            role="warn",
            change=(1.119, 1.101, 1.14),
            p=0.0039,
            p_adjusted=0.0078,
            limit=0.05,
            min_detectable=0.025,
        ),
        gate_metric(
            "preemptions",
            "preemptions in a run",
            "count",
            (0.0, 3.0),
            "regressed",
            50,
            role="info",
            limit=0.05,
            reason="there were none in the baseline",
        ),
        gate_metric(
            "hit_rate",
            "prompt tokens served from the prefix cache",
            "share",
            (0.688, 0.671),
            "advisory",
            55,
            direction="higher",
            change=(0.975, 0.96, 0.99),
        ),
    ]
    baseline_fact = Fact(
        quantity=quantity("prefix_caching.saturated.throughput.gain", "throughput, gain", 1.83, "x", (1.79, 1.88), n=8),
        relation="at least",
        threshold=1.05,
        threshold_source="least gain worth a change (rules/techniques.yaml)",
        outcome=Truth.YES,
    )
    candidate_fact = baseline_fact.model_copy(
        update={
            "quantity": quantity(
                "prefix_caching.saturated.throughput.gain", "throughput, gain", 1.01, "x", (0.98, 1.03), n=8
            ),
            "outcome": Truth.NO,
        }
    )
    changes = [
        DiagnosisChange(
            question=Question.OUTPUT_VARIANCE,
            technique="continuous_batching",
            title="Continuous batching",
            kind="no longer known",
            before="recommended",
            after="not measured",
            text="Continuous batching was recommended (1.30x [1.26..1.33]); the candidate's run did not measure it.",
            outcome="warn",
        ),
        DiagnosisChange(
            question=Question.PREFIX_REDUNDANCY,
            technique="prefix_caching",
            title="Prefix caching",
            kind="worse",
            before="recommended",
            after="does not pay",
            before_evidence=[baseline_fact],
            after_evidence=[candidate_fact],
            text="Prefix caching stopped paying: 1.83x [1.79..1.88] before, 1.01x [0.98..1.03] now.",
            outcome="fail",
        ),
    ]
    return GateResult(
        tool=Tool(version="0.1.0", python="3.11.2"),
        started_at="2026-03-02T10:14:07Z",
        duration_s=214.0,
        command="inferdoc gate run --policy inferdoc-gate.toml",
        policy=PolicyRecord(path="inferdoc-gate.toml", sha256="9f" * 32),
        subject="embedded on bundled.jsonl.gz",
        device="2-core CPU, host RAM",
        baseline=Arm(name="baseline", model="embedded", settings={"max_num_seqs": 16}),
        candidate=Arm(name="candidate", model="embedded", settings={"max_num_seqs": 64}, notes=["built from HEAD"]),
        comparability=Comparability(status="comparable", fields=fields, did_not_vary=["source.commit"]),
        design=DesignRecord(
            mode="paired",
            pairs=8,
            planned_pairs=8,
            max_pairs=12,
            confirm_pairs=5,
            order=["baseline", "candidate", "candidate", "baseline"] * 4,
            warmup_runs=4,
            exclusions=[Exclusion(pair=3, cause="clock gap of 9% between the arms")],
            requests=24,
            load="open loop at 0.70 of the baseline's saturation (3.1 requests/s)",
        ),
        family=Family(method="Holm over 5 metrics", alpha=0.05, alpha_of_look=0.025, look=1, size=5),
        results=results,
        geometric_mean=1.034,
        diagnosis_changes=changes,
        checks=[
            Check(name="other processes", passed=False, text="load average 1.9 before the run, on 2 cores"),
            Check(name="failed requests", passed=True, text="0 of 768"),
        ],
        verdict=GateVerdict.REGRESSED,
        exit_code=1,
        headline="Output tokens per second fell by 9.8%, beyond the limit of 5%; 2 other limits are not kept.",
        next_step="Look at max_num_seqs, the one declared difference; prefix caching stopped paying with it.",
        notes=["The trace was cut to 24 requests."],
    )


def unlike_gate() -> GateResult:
    """A gate that compared nothing: another card."""
    card = {"source": "nvidia-smi", "state": "value"}
    return gate().model_copy(
        update={
            "comparability": Comparability(
                status="not comparable",
                fields=[
                    FieldComparison(
                        field="gpu.model",
                        group="must_match",
                        baseline=EnvironmentField(value="H100 NVL", **card),
                        candidate=EnvironmentField(value="H100 PCIe", **card),
                        outcome="differs",
                        refuses=True,
                    )
                ],
                reasons=["gpu.model differs: H100 NVL / H100 PCIe; record a baseline on this card"],
            ),
            "policy": None,
            "family": None,
            "results": [],
            "diagnosis_changes": [],
            "checks": [],
            "notes": [],
            "geometric_mean": None,
            "design": DesignRecord(mode="stored"),
            "verdict": GateVerdict.NOT_COMPARABLE,
            "exit_code": 4,
            "headline": "The two were measured on different cards.",
            "next_step": "Run inferdoc gate record on this card.",
        }
    )


@pytest.fixture
def gated() -> GateResult:
    return gate()


@pytest.fixture
def unlike() -> GateResult:
    return unlike_gate()


@pytest.fixture(params=["gated", "unlike"])
def any_gate(request: pytest.FixtureRequest) -> GateResult:
    return request.getfixturevalue(request.param)


@pytest.fixture
def complete() -> tuple[Evidence, Diagnosis]:
    made = evidence()
    return made, diagnosis(made)


@pytest.fixture
def bare() -> tuple[Evidence, Diagnosis]:
    made = bare_evidence()
    return made, bare_diagnosis(made)


@pytest.fixture(params=["complete", "bare"])
def any_case(request: pytest.FixtureRequest) -> tuple[Evidence, Diagnosis]:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def complete_page() -> str:
    """The complete case as a page, rendered once for the tests that only read it."""
    made = evidence()
    return render_html(made, diagnosis(made))


@pytest.fixture(scope="session")
def bare_page() -> str:
    made = bare_evidence()
    return render_html(made, bare_diagnosis(made))


@pytest.fixture(params=["complete_page", "bare_page"])
def any_page(request: pytest.FixtureRequest) -> str:
    page: str = request.getfixturevalue(request.param)
    return page


@pytest.fixture
def make_series() -> Callable[..., Series]:
    """A one-line series of the given values."""

    def make(values: list[float | None], kind: str = "line", unit: str = "s", x_log: bool = False) -> Series:
        line = Line(name="measured", x=[float(i + 1) for i in range(len(values))], y=values)
        labels = {"x_label": "batch size", "x_unit": "requests", "y_label": "TPOT", "y_unit": unit}
        return Series(
            id="s", question=Question.TOKEN_LATENCY, title="TPOT", kind=kind, x_log=x_log, lines=[line], **labels
        )

    return make

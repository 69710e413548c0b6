"""What may be compared: every field in its group, four states, and a reason that says how to mend it."""

from __future__ import annotations

from typing import Any

import pytest

from inferdoc.errors import PolicyError
from inferdoc.evidence import Objective, Slo
from inferdoc.gate.comparability import FIELDS, compare_all, compare_fields
from inferdoc.gate.policy import ComparablePolicy
from inferdoc.gate.result import Comparability, FieldComparison
from inferdoc.gate.sessions import Session, session_of

DEFAULT = ComparablePolicy()


def compared(
    runs: Any, policy: ComparablePolicy = DEFAULT, declared: set[str] | None = None, **cand: Any
) -> Comparability:
    return compare_fields(session_of(runs.evidence(), None), session(runs, **cand), policy, declared or set())


def session(runs: Any, **changes: Any) -> Session:
    return session_of(runs.evidence(**changes), None)


def listed(result: Comparability, name: str) -> FieldComparison:
    return next(item for item in result.fields if item.field == name)


def test_the_defaults_name_only_fields_that_there_are() -> None:
    for group in (DEFAULT.must_match, DEFAULT.may_vary, DEFAULT.warn):
        assert set(group) <= set(FIELDS)


def test_the_same_run_is_comparable_and_says_what_did_not_vary(runs: Any) -> None:
    result = compared(runs, environment=runs.fields(source_commit=runs.field("c0ffee1")))
    assert (result.status, result.reasons) == ("comparable", [])
    assert result.did_not_vary == ["engine.version", "engine.flags"]
    assert listed(result, "source.commit").outcome == "unknown", "the baseline has no commit, which refuses nothing"


@pytest.mark.parametrize(
    ("change", "name", "before", "after"),
    [
        ({"environment": {"gpu": "NVIDIA H200"}}, "gpu.model", "NVIDIA H100 80GB HBM3", "NVIDIA H200"),
        ({"environment": {"gpu_form_factor": "PCIe"}}, "gpu.form_factor", "SXM", "PCIe"),
        ({"environment": {"gpu_count": 2.0}}, "gpu.count", "1", "2"),
        ({"environment": {"gpu_mig": "1g.10gb"}}, "gpu.mig", "whole card", "1g.10gb"),
        ({"subject": {"revision": "def"}}, "model.revision", "abc", "def"),
        ({"subject": {"dtype": "float16"}}, "model.dtype", "bfloat16", "float16"),
        ({"workload": {"fingerprint": "x"}}, "workload.fingerprint", "w" * 64, "x"),
        ({"workload": {"slice_requests": 32}}, "workload.slice", "64 requests", "32 requests"),
        ({"workload": {"length_scale": 0.5}}, "workload.length_scale", "1", "0.5"),
        ({"workload": {"replicas": 2}}, "workload.replicas", "1", "2"),
        ({"run": {"seed": 1}}, "run.seed", "0", "1"),
        ({"run": {"objective": Objective.LATENCY}}, "run.objective", "throughput", "latency"),
        ({"run": {"slo": [Slo(metric="ttft_p95", limit=0.5, unit="s")]}}, "run.slo", "none", "ttft_p95 <= 0.500 s"),
        ({"tool": {"probes": "p2"}}, "probe.version", "p1", "p2"),
    ],
)
def test_another_machine_model_or_workload_is_refused_with_both_values(
    runs: Any, change: dict[str, Any], name: str, before: str, after: str
) -> None:
    if "environment" in change:
        change = {"environment": runs.fields(**{key: runs.field(v) for key, v in change["environment"].items()})}
    result = compared(runs, **change)
    assert result.status == "not comparable"
    (reason,) = result.reasons
    assert reason.startswith(f"{name} differs: {before} (baseline), {after} (candidate); ")
    assert f'"{name}" under [comparable] may_vary' in reason
    assert (listed(result, name).outcome, listed(result, name).refuses) == ("differs", True)


def test_what_may_vary_and_what_only_warns_is_listed_and_refuses_nothing(runs: Any) -> None:
    config = {"max_num_seqs": 16, "block_size": 16, "enable_fusion": True}
    result = compared(runs, subject={"engine_config": config}, environment=runs.fields(driver=runs.field("580.0")))
    assert result.status == "comparable"
    flags = listed(result, "engine.flags")
    assert flags.baseline.value == '{"enable_prefix_caching": false, "max_num_seqs": 8}', "what is the same is left out"
    assert flags.candidate.value == '{"enable_fusion": true, "max_num_seqs": 16}'
    assert (listed(result, "driver").group, listed(result, "driver").outcome) == ("warn", "differs")
    assert "engine.flags" not in result.did_not_vary


@pytest.mark.parametrize("state", ["unknown", "error"])
def test_what_is_not_known_refuses_unless_the_policy_lets_it(runs: Any, state: str) -> None:
    unknown = {"environment": runs.fields(gpu_mig=runs.field(None, state))}
    strict = compared(runs, **unknown)
    assert strict.status == "not comparable"
    assert 'unknown = "warn"' in strict.reasons[0]
    lenient = compared(runs, ComparablePolicy(unknown="warn"), **unknown)
    assert lenient.status == "comparable"
    assert listed(lenient, "gpu.mig").outcome == "unknown"


def test_a_field_that_the_evidence_never_recorded_is_unknown(runs: Any) -> None:
    without = {name: item for name, item in runs.fields().items() if name != "gpu_form_factor"}
    result = compared(runs, environment=without)
    assert result.reasons[0].startswith(
        "gpu.form_factor is not known on both sides: SXM (baseline), not known (not rec"
    )


def test_on_a_cpu_the_processor_is_the_device(runs: Any) -> None:
    base = session(runs, environment=runs.cpu_fields())
    assert compare_fields(base, base, DEFAULT).status == "comparable"
    other = session(runs, environment=runs.cpu_fields("Intel Xeon"))
    result = compare_fields(base, other, DEFAULT)
    assert result.status == "not comparable"
    assert result.reasons[0].startswith("host.cpu (the device here) differs: AMD EPYC 9454, 16 cores, 16 threads")
    fewer = session(runs, environment=runs.cpu_fields(threads=runs.field(1.0)))
    assert compare_fields(base, fewer, DEFAULT).status == "not comparable"
    declared = compare_fields(base, other, DEFAULT, {"host.cpu"})
    assert declared.status == "comparable"


def test_beside_a_card_the_processor_only_warns(runs: Any) -> None:
    result = compared(runs, environment=runs.fields(processor=runs.field("Intel Xeon")))
    assert result.status == "comparable"
    assert listed(result, "host.cpu").outcome == "differs"


def test_a_card_is_not_comparable_with_a_cpu(runs: Any) -> None:
    result = compared(runs, environment=runs.cpu_fields())
    assert result.status == "not comparable"
    assert "not applicable (test) (candidate)" in result.reasons[0]


def test_mixed_gpus_are_refused_even_where_both_sides_are_alike(runs: Any) -> None:
    mixed = runs.fields(gpu_count=runs.field(2.0), gpu_models=runs.field("NVIDIA H100 NVL, NVIDIA H100 PCIe"))
    both = session(runs, environment=mixed)
    result = compare_fields(both, both, DEFAULT)
    assert result.status == "not comparable"
    assert len(result.reasons) == 2
    assert "unlike GPUs (NVIDIA H100 NVL, NVIDIA H100 PCIe)" in result.reasons[0]


def test_what_the_arms_declare_may_differ_and_is_reported_when_it_does_not(runs: Any) -> None:
    differs = compared(runs, declared={"model.dtype"}, subject={"dtype": "float16"})
    assert differs.status == "comparable"
    assert listed(differs, "model.dtype").group == "may_vary"
    assert "model.dtype" in compared(runs, declared={"model.dtype"}).did_not_vary


def test_a_field_that_there_is_not_is_an_error_with_the_nearest(runs: Any) -> None:
    with pytest.raises(PolicyError, match=r"no field 'gpu.modell' to compare; did you mean gpu.model\?"):
        compared(runs, ComparablePolicy(must_match=("gpu.modell",)))


def test_of_a_history_every_session_must_be_comparable(runs: Any) -> None:
    alike = [session(runs, run_id=name) for name in "abc"]
    assert compare_all((alike[:2], alike[2:]), DEFAULT).status == "comparable"
    odd = session(runs, run_id="odd", subject={"dtype": "float16"})
    result = compare_all((alike, [odd, session(runs, run_id="new")]), DEFAULT)
    assert result.status == "not comparable"
    assert result.reasons[0].startswith("run odd of 2026-03-02T10:14:07Z: model.dtype differs")

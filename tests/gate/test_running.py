"""Real gates of the embedded model against itself: small slices, one thread, the whole way from policy to exit code."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferdoc.engine.engine import RunResult
from inferdoc.errors import InputError, InvalidRunError, PolicyError
from inferdoc.evidence import Conclusion
from inferdoc.gate import pairing as pairing_module
from inferdoc.gate import running
from inferdoc.gate.arms import Bench, ReadyArm
from inferdoc.gate.loading import load_policy
from inferdoc.gate.result import GateResult, GateVerdict, MetricVerdict
from inferdoc.gate.running import run_gate
from inferdoc.models import embedded_path
from inferdoc.progress import Progress

FIVE = """
[design]
pairs = 5
max_pairs = 5
warmup = 1
"""
THROUGHPUT = """
[[metric]]
id = "output_tok_s"
max_regression = "{limit}"
"""
SAME_WORK = """
[[metric]]
id = "output_tokens_total"
[[metric]]
id = "outputs_identical"
min_value = 1.0
"""
Gate = Callable[[str], GateResult]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Run a gate of the policy's text, on eight requests where it does not say how many."""

    def run(text: str) -> GateResult:
        path = tmp_path / "inferdoc-gate.toml"
        workload = "" if "[workload]" in text else "[workload]\nrequests = 8\n"
        path.write_text(f"schema = 1\n{workload}{text}")
        return run_gate(load_policy(path), tmp_path, Progress(quiet=True), "inferdoc gate run")

    return run


@pytest.fixture
def slow_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of the candidate takes 30% longer."""
    serve = ReadyArm.serve

    def slowed(arm: ReadyArm, arrivals: list[float] | None) -> RunResult:
        execute = arm.context.runner.execute

        def slow(batch: Any) -> list[int]:
            began = time.perf_counter()
            sampled = execute(batch)
            until = began + 1.3 * (time.perf_counter() - began)
            while time.perf_counter() < until:
                pass
            return sampled

        if arm.plan.name == "candidate":
            with monkeypatch.context() as patch:
                patch.setattr(arm.context.runner, "execute", slow)
                return serve(arm, arrivals)
        return serve(arm, arrivals)

    monkeypatch.setattr(ReadyArm, "serve", slowed)


def test_a_planted_slowdown_of_30_percent_fails_and_names_the_metric(gate: Gate, slow_candidate: None) -> None:
    # Of eight pairs one or two may be disturbed by what else the machine does; of five none.
    design = "\n[design]\npairs = 8\nmax_pairs = 12\nconfirm = 8\n"
    result = gate(design + THROUGHPUT.format(limit="10%") + SAME_WORK)
    assert (result.verdict, result.exit_code) == (GateVerdict.REGRESSED, 1), result.results[0]
    throughput, tokens, same = result.results
    assert throughput.verdict is MetricVerdict.REGRESSED
    assert throughput.confirmation is not None
    assert throughput.confirmation.confirmed
    assert throughput.ratio is not None
    assert 0.4 < throughput.ratio < 1 / 1.15  # more than a third only where other work takes turns with the waiting
    assert throughput.policy_line == 11  # where it is named
    assert "Output tokens per second" in result.headline
    assert tokens.verdict is MetricVerdict.PASS
    assert same.verdict is MetricVerdict.PASS
    abba = ["baseline", "candidate", "candidate", "baseline"]
    assert result.design.order == (abba * 6)[: 2 * result.design.pairs]


def test_an_arm_against_itself_never_fails(gate: Gate) -> None:
    result = gate(FIVE + THROUGHPUT.format(limit="20%") + SAME_WORK)
    assert result.exit_code in (0, 3)
    assert result.results[1].verdict is MetricVerdict.PASS
    assert result.comparability.status == "comparable"
    assert result.diagnosis_changes == []


def test_a_technique_turned_off_is_a_changed_diagnosis(gate: Gate) -> None:
    arms = "[arm.baseline]\nenable_prefix_caching = true\n[arm.candidate]\nenable_prefix_caching = false\n"
    fails = '[diagnosis]\non_diagnosis_change = "fail"\n'
    design = FIVE.replace("pairs = 5", "pairs = 6").replace("max_pairs = 5", "max_pairs = 6")
    text = design + arms + fails + THROUGHPUT.format(limit="60%").replace("max_reg", 'role = "info"\nmax_reg')
    result = gate("[workload]\nrequests = 16\n" + text + SAME_WORK)
    (change,) = result.diagnosis_changes
    assert (change.technique, change.kind, change.before, change.after) == ("prefix_caching", "turned off", "on", "off")
    gains = [fact.quantity for fact in change.before_evidence if fact.quantity.id.endswith(".throughput.gain")]
    assert gains
    assert gains[0].n == 6
    # What the rules drew decides the outcome: on a disturbed machine six pairs may leave it open.
    expected = {Conclusion.RECOMMENDED: "fail", Conclusion.INCONCLUSIVE: "inconclusive"}
    conclusion = next(c for c in Conclusion if c.value in change.text)
    assert change.outcome == expected.get(conclusion, "info")
    assert result.exit_code == {"fail": 1, "inconclusive": 3}.get(change.outcome, result.exit_code)


def test_another_model_is_loaded_beside_or_instead(gate: Gate) -> None:
    draft = embedded_path().parent / "draft"
    weights = '[[metric]]\nid = "weight_bytes"\nmax_regression = "1%"\n'
    arms = f'[arm.candidate]\nmodel = "{draft}"\n'
    for restart in ("none", "each_arm"):
        design = FIVE + f'restart = "{restart}"\nconfirm = 0\n'
        result = gate(design + arms + weights)
        assert result.exit_code in (0, 3)
        smaller = result.results[0]
        assert smaller.verdict is MetricVerdict.PASS
        target_bytes, draft_bytes = (
            (folder / "model.safetensors").stat().st_size for folder in (embedded_path(), draft)
        )
        assert smaller.ratio == pytest.approx(draft_bytes / target_bytes, rel=0.02)
        assert {field.field for field in result.comparability.fields} >= {"model.revision"}
        assert result.candidate.model != result.baseline.model


def test_each_run_loads_its_arm_again_and_warms_it_up(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    load, serve = Bench._load, ReadyArm.serve

    def loading(bench: Bench, name: Any) -> ReadyArm:
        events.append(f"load {name}")
        return load(bench, name)

    def serving(arm: ReadyArm, arrivals: list[float] | None) -> RunResult:
        events.append(f"run {arm.plan.name}")
        return serve(arm, arrivals)

    monkeypatch.setattr(Bench, "_load", loading)
    monkeypatch.setattr(ReadyArm, "serve", serving)
    arms = "[arm.candidate]\nmax_num_seqs = 4\n"
    result = gate(FIVE + 'restart = "each_arm"\nconfirm = 0\n' + arms + THROUGHPUT.format(limit="60%"))
    assert result.exit_code in (0, 3), result.headline
    one = {name: [f"load {name}", f"run {name}", f"run {name}"] for name in ("baseline", "candidate")}
    abba = [*one["baseline"], *one["candidate"], *one["candidate"], *one["baseline"]]
    assert events[-30:] == [*abba, *abba, *one["baseline"], *one["candidate"]][-30:]


def test_two_arms_built_into_one_place_are_refused(gate: Gate) -> None:
    arms = '[arm.baseline]\nmodel = "m"\ncommand = "true"\n[arm.candidate]\ncommand = "true"\n'
    with pytest.raises(PolicyError, match=r"toml:13: both arms name the model 'm'"):
        gate(FIVE + arms + THROUGHPUT.format(limit="10%"))


def test_a_technique_turned_off_beside_other_settings_is_told_and_undecided(gate: Gate) -> None:
    arms = "[arm.baseline]\nenable_prefix_caching = true\n[arm.candidate]\nenable_prefix_caching = false\n"
    other = "enable_chunked_prefill = false\n"
    fails = '[diagnosis]\non_diagnosis_change = "fail"\n'
    result = gate(FIVE + "confirm = 0\n" + arms + other + fails + SAME_WORK)
    assert [(change.technique, change.kind, change.outcome) for change in result.diagnosis_changes] == [
        ("chunked_prefill", "turned off", "inconclusive"),
        ("prefix_caching", "turned off", "inconclusive"),
    ]
    assert result.exit_code == 3


def test_a_diagnosis_that_is_interrupted_is_no_pass(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "collect_evidence", interrupted)
    result = gate(FIVE + '[diagnosis]\nbudget = "1m"\n' + SAME_WORK)
    assert (result.verdict, result.exit_code) == (GateVerdict.INTERRUPTED, 130)
    assert result.design.pairs == 5
    assert [entry.verdict for entry in result.results] == [MetricVerdict.PASS] * 2


def test_a_diagnosis_that_fails_is_an_invalid_measurement(gate: Gate) -> None:
    result = gate(FIVE + '[diagnosis]\nbudget = "1s"\n' + SAME_WORK)
    assert result.exit_code == 5
    assert "the baseline failed: its diagnosis could not be made: --budget 1s is too small" in result.headline


def test_an_arm_that_crashes_while_loading_is_an_invalid_measurement(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Bench._load

    def crash(bench: Bench, name: Any) -> ReadyArm:
        if name == "candidate":
            raise RuntimeError("CUDA driver error")
        return load(bench, name)

    monkeypatch.setattr(Bench, "_load", crash)
    result = gate(FIVE + THROUGHPUT.format(limit="10%"))
    assert (result.verdict, result.exit_code) == (GateVerdict.INVALID, 5)
    assert "the candidate failed: RuntimeError: CUDA driver error" in result.headline


def test_an_arm_that_crashes_is_an_invalid_measurement_with_the_end_of_its_log(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve = ReadyArm.serve

    def crash(arm: ReadyArm, arrivals: list[float] | None) -> RunResult:
        if arm.plan.name == "candidate":
            raise RuntimeError("illegal memory access at 0xdead")
        return serve(arm, arrivals)

    monkeypatch.setattr(ReadyArm, "serve", crash)
    result = gate(FIVE + THROUGHPUT.format(limit="10%"))
    assert (result.verdict, result.exit_code) == (GateVerdict.INVALID, 5)
    assert "the candidate failed" in result.headline
    assert "illegal memory access at 0xdead" in result.headline
    assert "illegal memory access" in (tmp_path / "crash.log").read_text()


def test_out_of_memory_is_an_invalid_measurement(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(arm: ReadyArm, arrivals: list[float] | None) -> RunResult:
        raise MemoryError

    monkeypatch.setattr(ReadyArm, "serve", exhaust)
    result = gate(FIVE + THROUGHPUT.format(limit="10%"))
    assert result.exit_code == 5
    assert "out of memory" in result.headline


def test_a_command_that_fails_ends_with_the_end_of_its_log(gate: Gate, tmp_path: Path) -> None:
    arm = '[arm.candidate]\ncommand = "echo building $INFERDOC_ARM; echo no such checkpoint >&2; exit 3"\n'
    with pytest.raises(InvalidRunError, match="ended with 3") as failed:
        gate(FIVE + arm + THROUGHPUT.format(limit="10%"))
    assert "inferdoc-gate.toml:10" in str(failed.value)
    assert "building candidate" in str(failed.value)
    assert "no such checkpoint" in str(failed.value)
    assert "no such checkpoint" in (tmp_path / "candidate.log").read_text()


def test_a_command_may_build_the_model(gate: Gate, tmp_path: Path) -> None:
    arm = f'[arm.candidate]\ncommand = "cp -r {embedded_path()} $INFERDOC_ARM_DIR/built"\nmodel = "candidate/built"\n'
    result = gate(FIVE + "confirm = 0\n" + arm + THROUGHPUT.format(limit="60%") + SAME_WORK)
    assert result.candidate.model == "built"
    assert result.results[-1].verdict is MetricVerdict.PASS
    assert (tmp_path / "candidate" / "built" / "config.json").exists()


def test_an_interruption_keeps_the_pairs_that_were_run(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = ReadyArm.serve
    calls = itertools.count(1)

    def interrupted(arm: ReadyArm, arrivals: list[float] | None) -> RunResult:
        if next(calls) == 2 + 2 * 2 + 1:  # a warm-up of each arm, two pairs, one run of the third
            raise KeyboardInterrupt
        return serve(arm, arrivals)

    monkeypatch.setattr(ReadyArm, "serve", interrupted)
    result = gate(FIVE + THROUGHPUT.format(limit="10%"))
    assert (result.verdict, result.exit_code) == (GateVerdict.INTERRUPTED, 130)
    assert result.design.pairs == 2
    assert len(result.results[0].candidate_values) == 2
    assert result.results[0].verdict is MetricVerdict.INCONCLUSIVE


def test_an_interruption_before_the_first_pair_has_nothing_to_tell(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arm: ReadyArm, arrivals: list[float] | None) -> RunResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(ReadyArm, "serve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gate(FIVE + THROUGHPUT.format(limit="10%"))


@pytest.mark.parametrize(("disturbed", "code"), [({2}, {0, 3}), ({1, 2}, {5})])
def test_disturbed_pairs_are_left_out_and_more_than_a_quarter_of_them_invalidate(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, disturbed: set[int], code: set[int]
) -> None:
    calls = itertools.count(1)
    monkeypatch.setattr(
        pairing_module, "cause", lambda *readings: "throttled: thermal limit" if next(calls) in disturbed else None
    )
    result = gate(FIVE.replace("warmup = 1", "warmup = 1\nconfirm = 0") + THROUGHPUT.format(limit="60%"))
    assert result.exit_code in code
    assert [exclusion.pair for exclusion in result.design.exclusions] == sorted(disturbed)
    assert len(result.design.order) == 2 * (5 - len(disturbed))
    if code == {5}:
        assert "thermal limit" in result.headline


def test_too_few_requests_for_a_percentile_are_refused_before_a_run(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.PairedRun, "check_noise", lambda self: pytest.fail("it was about to run"))
    with pytest.raises(PolicyError, match=r"inferdoc-gate.toml:10: ttft_p95 needs 200 requests in one repeat"):
        gate(FIVE + '[[metric]]\nid = "ttft_p95"\nmax_regression = "10%"\n')


def test_evidence_ids_and_stored_modes_are_for_compare(gate: Gate) -> None:
    with pytest.raises(PolicyError, match=r"toml:10: prefix\.measured_hit_rate is not measured by runs"):
        gate(FIVE + '[[metric]]\nid = "prefix.measured_hit_rate"\nmax_regression = "10%"\n')
    with pytest.raises(InputError, match="gate compare"):
        gate('[baseline]\nmode = "history"\n' + THROUGHPUT.format(limit="10%"))


@pytest.mark.parametrize(
    ("arm", "text"),
    [
        ('model = "nowhere/at/all"', "nowhere/at/all"),
        ("max_num_seqs = 64\nmax_num_batched_tokens = 32", "max-num-batched-tokens 32"),
        ('enable_prefix_caching = true\nreservation = "per-request"', "enable_prefix_caching needs"),
        ("max_model_len = 1000000", "max-model-len 1000000"),
    ],
)
def test_an_arm_that_cannot_run_names_its_place_in_the_policy(gate: Gate, arm: str, text: str) -> None:
    with pytest.raises(PolicyError, match=r"arm\.candidate") as refused:
        gate(f"[arm.candidate]\n{arm}\n" + FIVE + THROUGHPUT.format(limit="10%"))
    assert "inferdoc-gate.toml:" in str(refused.value)
    assert text in str(refused.value)

"""``gate compare``: budgets can fail, differences without pairs never, nothing unlike or unmeasured passes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from inferdoc.errors import InputError, InvalidRunError, NotComparableError, PolicyError
from inferdoc.evidence import Check, Validity
from inferdoc.gate.baselines import BaselineFile, baseline_path, read_baseline
from inferdoc.gate.comparing import compare_stored
from inferdoc.gate.policy import BaselinePolicy, DiagnosisPolicy, ExitPolicy, MetricPolicy, Policy
from inferdoc.gate.result import GateResult, GateVerdict, MetricResult, MetricVerdict
from inferdoc.gate.sessions import Session, session_of
from inferdoc.gate.stored_judging import fewest_sessions
from inferdoc.reports.gate_formatting import design_words

OFF, GAIN = "prefix_caching.saturated.throughput.off", "prefix_caching.saturated.throughput.gain"
Store = Callable[..., Path]


def policy(*metrics: dict[str, Any], **sections: Any) -> Policy:
    """A policy whose metrics stand on lines 10, 11, ..."""
    made = [MetricPolicy(**{"line": 10 + index, **metric}) for index, metric in enumerate(metrics)]
    return Policy(path="gate.toml", sha256="0", metrics=tuple(made), **sections)


def stored(store: Store, asked: Policy, cand: dict[str, Any] | None = None, **base: Any) -> GateResult:
    return compare_stored(store("base", **base), store("cand", **(cand or {})), asked)


def of(result: GateResult, metric: str, rule: str = "regression") -> MetricResult:
    (found,) = [item for item in result.results if (item.metric, item.rule) == (metric, rule)]
    return found


def outcome(result: GateResult) -> tuple[GateVerdict, int]:
    return result.verdict, result.exit_code


def test_a_stored_difference_never_fails_by_itself(store: Store) -> None:
    asked = policy({"id": OFF, "max_regression": 0.05}, {"id": "latency.tpot_b1", "role": "info"})
    result = stored(store, asked, {"scale": 0.7})
    assert outcome(result) == (GateVerdict.PASSED, 0)
    shown = of(result, OFF)
    assert shown.verdict is MetricVerdict.ADVISORY
    assert (shown.baseline, shown.candidate) == (400.0, pytest.approx(280.0))
    assert shown.ratio == pytest.approx(0.7)
    assert (shown.limit, shown.policy_line) == (0.05, 10)
    assert shown.reason is not None
    assert "beyond the limit" in shown.reason
    assert "gate run" in result.next_step
    assert any("advisory" in note for note in result.notes)


@pytest.mark.parametrize(("scale", "floor", "beyond"), [(0.97, None, False), (0.7, None, True), (0.7, 200.0, False)])
def test_what_is_within_limit_or_floor_is_not_called_beyond(
    store: Store, scale: float, floor: float | None, beyond: bool
) -> None:
    result = stored(store, policy({"id": OFF, "max_regression": 0.05, "floor": floor}), {"scale": scale})
    assert ("beyond" in (of(result, OFF).reason or "")) is beyond


@pytest.mark.parametrize(("tpot", "beyond"), [(0.0052, True), (0.0028, False)])
def test_of_a_latency_more_is_worse(store: Store, tpot: float, beyond: bool) -> None:
    result = stored(store, policy({"id": "latency.tpot_b1", "max_regression": 0.05}), {"tpot": tpot})
    assert ("beyond" in (of(result, "latency.tpot_b1").reason or "")) is beyond
    assert result.exit_code == 0


def test_without_a_policy_everything_with_a_direction_is_shown(store: Store) -> None:
    result = stored(store, Policy(), {"scale": 0.7})
    assert outcome(result) == (GateVerdict.PASSED, 0)
    assert {item.metric for item in result.results} == {
        "fit.weights_bytes",
        "prefix.measured_hit_rate",
        "latency.tpot_b1",
        OFF,
        OFF.replace(".off", ".on"),
        GAIN,
    }
    assert {item.role for item in result.results} == {"info"}
    # Throughput off and on fell to 0.7; the other four are equal.
    assert result.geometric_mean == pytest.approx((1 / 0.7) ** (2 / 6))
    assert result.policy is None


@pytest.mark.parametrize(
    ("metric", "cand", "verdict", "code"),
    [
        ({"id": OFF, "min_value": 350.0}, {"scale": 0.7}, MetricVerdict.BROKEN, 1),
        ({"id": OFF, "min_value": 350.0}, {}, MetricVerdict.PASS, 0),
        ({"id": OFF, "min_value": 400.0}, {}, MetricVerdict.INCONCLUSIVE, 3),
        ({"id": GAIN, "min_value": 1.2, "units": {"min_value": "x"}}, {}, MetricVerdict.PASS, 0),
        ({"id": GAIN, "min_value": 1.2}, {"gain": (1.1, 1.0, 1.15)}, MetricVerdict.BROKEN, 1),
        ({"id": GAIN, "min_value": 1.2}, {"gain": (1.21, 1.1, 1.3)}, MetricVerdict.INCONCLUSIVE, 3),
        ({"id": "fit.weights_bytes", "max_value": 1000.0}, {"weights": 1001.0}, MetricVerdict.BROKEN, 1),
        ({"id": "fit.weights_bytes", "max_value": 1000.0}, {}, MetricVerdict.PASS, 0),
        ({"id": "fit.longest_request_tokens", "max_value": 100.0, "role": "warn"}, {}, MetricVerdict.BROKEN, 0),
    ],
)
def test_a_budget_fails_by_the_candidate_alone(
    store: Store, metric: dict[str, Any], cand: dict[str, Any], verdict: MetricVerdict, code: int
) -> None:
    result = stored(store, policy(metric), cand)
    assert of(result, metric["id"], "budget").verdict is verdict
    assert result.exit_code == code


def test_a_budget_without_a_value_says_why_and_is_not_kept(store: Store) -> None:
    result = stored(store, policy({"id": "prefix.measured_hit_rate", "min_value": 0.5}), {"hit_rate": None})
    assert of(result, "prefix.measured_hit_rate", "budget").reason == "not run"
    assert outcome(result) == (GateVerdict.NOT_COMPARABLE, 4), "nothing was compared"


@pytest.mark.parametrize(("weights", "verdict", "code"), [(1000.0, "pass", 0), (999.0, "regressed", 1)])
def test_exact_counts_decide_without_pairs(store: Store, weights: float, verdict: str, code: int) -> None:
    result = stored(store, policy({"id": "fit.weights_bytes", "kind": "exact"}), {"weights": weights})
    assert of(result, "fit.weights_bytes", "exact").verdict.value == verdict
    assert result.exit_code == code


def test_a_value_that_is_missing_on_a_side_is_inconclusive_with_its_reason(store: Store) -> None:
    metrics = ({"id": "prefix.measured_hit_rate", "max_regression": 0.05}, {"id": OFF, "max_regression": 0.05})
    result = stored(store, policy(*metrics), {"hit_rate": None})
    missing = of(result, "prefix.measured_hit_rate")
    assert (missing.verdict, missing.reason) == (MetricVerdict.INCONCLUSIVE, "candidate: not run")
    assert outcome(result) == (GateVerdict.INCONCLUSIVE, 3)


def test_nothing_compared_is_never_a_pass_even_where_inconclusive_exits_0(store: Store) -> None:
    asked = policy({"id": "prefix.measured_hit_rate", "max_regression": 0.05}, exit=ExitPolicy(inconclusive=0))
    assert outcome(stored(store, asked, {"hit_rate": None})) == (GateVerdict.NOT_COMPARABLE, 4)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (
            {"id": "prefix.measured_hit_rat"},
            "no measurement 'prefix.measured_hit_rat'; there is prefix.measured_hit_rate",
        ),
        ({"id": "output_tok_s"}, f"no measurement 'output_tok_s'; there is {OFF}"),
        ({"id": OFF, "kind": "exact"}, "measured with noise"),
        ({"id": "fit.longest_request_tokens", "max_regression": 0.05}, "neither more nor less"),
        ({"id": OFF, "max_regression": 0.05, "floor": 0.01, "units": {"floor": "s"}}, "written in s, but the evidence"),
    ],
)
def test_a_metric_that_does_not_fit_is_an_error_at_its_line(store: Store, metric: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        stored(store, policy({"id": "latency.tpot_b1"}, metric))
    assert str(caught.value).startswith("gate.toml:11: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("side", ["base", "cand"])
def test_a_metric_that_a_side_has_lost_is_an_error(store: Store, side: str) -> None:
    base, cand = store("base"), store("cand")
    file = {"base": base, "cand": cand}[side] / "evidence.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["comparisons"]["prefix_caching.saturated"]["metrics"]["throughput"]
    file.write_text(json.dumps(content), encoding="utf-8")
    name = {"base": "baseline", "cand": "candidate"}[side]
    with pytest.raises(PolicyError, match=f"gate.toml:10: the {name} has no measurement '{OFF}'"):
        compare_stored(base, cand, policy({"id": OFF, "max_regression": 0.05}))
    shown = compare_stored(base, cand, Policy())
    assert OFF not in {item.metric for item in shown.results}
    assert any("alone, so not compared" in note and OFF in note for note in shown.notes)


def test_another_gpu_is_not_comparable(store: Store, runs: Any) -> None:
    other = {"environment": runs.fields(gpu=runs.field("NVIDIA H200"), gpu_models=runs.field("NVIDIA H200"))}
    result = stored(store, policy({"id": OFF, "max_regression": 0.05}), other)
    assert outcome(result) == (GateVerdict.NOT_COMPARABLE, 4)
    assert (result.results, result.comparability.status) == ([], "not comparable")
    assert "gpu.model differs: NVIDIA H100 80GB HBM3 (baseline), NVIDIA H200 (candidate)" in result.headline


def test_mixed_gpus_are_not_comparable(store: Store, runs: Any) -> None:
    mixed = runs.fields(gpu_count=runs.field(2.0), gpu_models=runs.field("NVIDIA H100 NVL, NVIDIA H100 PCIe"))
    result = stored(store, policy({"id": OFF}), {"environment": mixed}, environment=mixed)
    assert outcome(result) == (GateVerdict.NOT_COMPARABLE, 4)


def test_another_major_schema_is_bad_input(store: Store) -> None:
    base, cand = store("base"), store("cand")
    content = json.loads((cand / "evidence.json").read_text(encoding="utf-8"))
    content["schema"]["version"] = "2.0"
    (cand / "evidence.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError, match=r"schema inferdoc.evidence 2.0; this version reads 1\.x"):
        compare_stored(base, cand, Policy())


def test_an_invalid_run_has_its_own_exit_code(store: Store) -> None:
    invalid = Validity(status="invalid", checks=[Check(name="clocks", passed=False, text="throttled")])
    result = stored(store, policy({"id": OFF, "max_regression": 0.05}), {"validity": invalid})
    assert outcome(result) == (GateVerdict.INVALID, 5)
    assert result.checks == invalid.checks


def test_different_loads_are_not_compared_but_different_rates_are(store: Store) -> None:
    asked = policy({"id": OFF, "max_regression": 0.05}, {"id": "latency.tpot_b1"})
    rates = stored(store, asked, {"load": "open loop at 0.70 (2 r/s)"}, load="open loop at 0.70 (3 r/s)")
    assert of(rates, OFF).verdict is MetricVerdict.ADVISORY
    assert "at a rate of its own" in (of(rates, OFF).reason or "")
    other = compare_stored(store("b2", load="open loop at 0.70 (3 r/s)"), store("c2", load="saturated"), asked)
    assert of(other, OFF).verdict is MetricVerdict.INCONCLUSIVE
    assert other.exit_code == 3


# --- the diagnosis


@pytest.mark.parametrize(("on_change", "code"), [("fail", 1), ("warn", 0), ("ignore", 0)])
def test_a_technique_that_stopped_paying_fails_by_policy(store: Store, on_change: Any, code: int) -> None:
    asked = policy({"id": OFF}, diagnosis=DiagnosisPolicy(on_diagnosis_change=on_change))
    result = stored(store, asked, {"gain": (0.99, 0.97, 1.02)})
    assert result.exit_code == code
    told = [change.technique for change in result.diagnosis_changes if change.kind == "worse"]
    assert told == ([] if on_change == "ignore" else ["prefix_caching"])


def test_a_baseline_without_a_diagnosis_never_passes_a_policy_that_gates_it(
    store: Store, tmp_path: Path, runs: Any
) -> None:
    base = write(tmp_path / "base.json", [session_of(runs.evidence(), None)])
    with pytest.raises(PolicyError, match=r"base\.json holds no diagnosis"):
        compare_stored(base, store("cand"), policy({"id": OFF}, diagnosis=DiagnosisPolicy(on_diagnosis_change="fail")))
    lenient = compare_stored(base, store("cand2"), policy({"id": OFF}))
    assert any("holds no diagnosis" in note for note in lenient.notes)


# --- baselines and histories


def write(path: Path, sessions: Sequence[Session]) -> Path:
    path.write_text(BaselineFile(sessions=list(sessions)).model_dump_json(by_alias=True), encoding="utf-8")
    return path


def history(runs: Any, name: str, count: int, *, scale: float, seed: int) -> list[Session]:
    """Sessions whose throughput spreads by 2%, log-normally."""
    draw = random.Random(seed)
    scales = [scale * draw.lognormvariate(0, 0.02) for _ in range(count)]
    return [session_of(runs.evidence(run_id=f"{name}{i}", scale=s), None) for i, s in enumerate(scales)]


def without(session: Session) -> Session:
    """The session as if it had not measured the throughput."""
    kept = {id: item for id, item in session.measurements.items() if id != OFF}
    return session.model_copy(update={"measurements": kept})


HISTORY = BaselinePolicy(mode="history")
GATED = {"id": OFF, "max_regression": 0.05}


def test_a_history_that_got_12_percent_slower_fails(tmp_path: Path, runs: Any) -> None:
    base = write(tmp_path / "base.json", history(runs, "b", 8, scale=1.0, seed=1))
    cand = write(tmp_path / "cand.json", history(runs, "c", 8, scale=1 / 1.12, seed=2))
    result = compare_stored(base, cand, policy(GATED, baseline=HISTORY))
    assert outcome(result) == (GateVerdict.REGRESSED, 1)
    worse = of(result, OFF)
    assert worse.verdict is MetricVerdict.REGRESSED
    assert worse.ratio == pytest.approx(1 / 1.12, rel=0.03)
    assert worse.p is not None
    assert worse.p <= 0.05
    assert (len(worse.baseline_values), len(worse.candidate_values)) == (8, 8)
    assert result.family is not None
    assert result.family.size == 1
    assert (result.baseline.sessions, result.candidate.sessions, result.design.mode) == (8, 8, "history")


def test_a_history_without_a_change_passes(tmp_path: Path, runs: Any) -> None:
    base = write(tmp_path / "base.json", history(runs, "b", 10, scale=1.0, seed=3))
    cand = write(tmp_path / "cand.json", history(runs, "c", 10, scale=1.0, seed=4))
    result = compare_stored(base, cand, policy(GATED, baseline=HISTORY))
    assert outcome(result) == (GateVerdict.PASSED, 0)
    # The same files without the mode are one session against one: shown, not tested.
    assert of(compare_stored(base, cand, policy(GATED)), OFF).verdict is MetricVerdict.ADVISORY


def test_too_short_a_history_is_inconclusive_and_says_how_many_sessions_decide(tmp_path: Path, runs: Any) -> None:
    base = write(tmp_path / "base.json", history(runs, "b", 2, scale=1.0, seed=1))
    cand = write(tmp_path / "cand.json", history(runs, "c", 2, scale=1 / 1.12, seed=2))
    result = compare_stored(base, cand, policy(GATED, baseline=HISTORY))
    assert outcome(result) == (GateVerdict.INCONCLUSIVE, 3)
    short = of(result, OFF)
    assert short.pairs_needed is not None
    assert short.pairs_needed >= 3, "C(4, 2) = 6 orders can't reach 5%; C(6, 3) = 20 can"
    assert "too few" in (short.reason or "")
    assert f"some {short.pairs_needed} a side would decide {OFF}" in result.next_step


@pytest.mark.parametrize(("alpha", "sessions"), [(0.05, 3), (0.0125, 5), (0.001, 7)])
def test_the_fewest_sessions_are_those_of_the_table(alpha: float, sessions: int) -> None:
    """Smallest n a side that a U-test can decide at alpha, as in the specification."""
    assert fewest_sessions(alpha) == sessions


def test_a_history_may_not_hold_the_same_run_on_both_sides(tmp_path: Path, runs: Any) -> None:
    sessions = history(runs, "b", 4, scale=1.0, seed=1)
    base = write(tmp_path / "base.json", sessions)
    cand = write(tmp_path / "cand.json", sessions[2:])
    with pytest.raises(InputError, match=r"run b2 of .* is in .*base\.json too"):
        compare_stored(base, cand, policy(GATED, baseline=HISTORY))


def test_one_unlike_session_in_a_history_makes_it_not_comparable(tmp_path: Path, runs: Any) -> None:
    odd = session_of(runs.evidence(run_id="odd", subject={"dtype": "float16"}), None)
    base = write(tmp_path / "base.json", [odd, *history(runs, "b", 4, scale=1.0, seed=1)])
    cand = write(tmp_path / "cand.json", history(runs, "c", 4, scale=1.0, seed=2))
    result = compare_stored(base, cand, policy(GATED, baseline=HISTORY))
    assert outcome(result) == (GateVerdict.NOT_COMPARABLE, 4)


def test_a_metric_that_the_newest_session_has_lost_is_an_error(tmp_path: Path, runs: Any) -> None:
    """Six sessions of the candidate, the two newest without it: the four older ones would keep the budget."""
    base = write(tmp_path / "base.json", history(runs, "b", 6, scale=1.0, seed=1))
    sessions = history(runs, "c", 6, scale=1.0, seed=2)
    for asked in (policy({"id": OFF, "min_value": 350.0}), policy(GATED), policy({"id": OFF, "role": "info"})):
        asked = asked.model_copy(update={"baseline": HISTORY})
        cand = write(tmp_path / "cand.json", [*sessions[:4], *map(without, sessions[4:])])
        with pytest.raises(PolicyError) as caught:
            compare_stored(base, cand, asked)
        assert str(caught.value).startswith(
            f"gate.toml:10: the candidate has no measurement '{OFF}' in its newest session (run c5 of "
        )
        assert f"there is {OFF}" not in str(caught.value)
    swapped = [*map(without, sessions[4:]), *sessions[:4]]
    with pytest.raises(PolicyError, match=r"the baseline has no measurement .* in its newest session \(run b5"):
        compare_stored(
            write(
                base, [*history(runs, "b", 5, scale=1.0, seed=1), without(history(runs, "b", 6, scale=1, seed=1)[5])]
            ),
            write(tmp_path / "cand.json", swapped),
            policy(GATED, baseline=HISTORY),
        )


@pytest.mark.parametrize("metric", [GATED, {"id": OFF, "min_value": 350.0}])
def test_a_metric_that_an_older_session_lacks_does_not_pass(tmp_path: Path, runs: Any, metric: dict[str, Any]) -> None:
    base = write(tmp_path / "base.json", history(runs, "b", 10, scale=1.0, seed=3))
    sessions = history(runs, "c", 10, scale=1.0, seed=4)
    asked = policy(metric, baseline=HISTORY)
    assert compare_stored(base, write(tmp_path / "whole.json", sessions), asked).exit_code == 0
    cand = write(tmp_path / "cand.json", [*map(without, sessions[:2]), *sessions[2:]])
    result = compare_stored(base, cand, asked)
    assert outcome(result) == (GateVerdict.INCONCLUSIVE, 3)
    (lacking,) = result.results
    assert lacking.verdict is MetricVerdict.INCONCLUSIVE
    assert lacking.reason in ("2 of 20 sessions without a value", "2 of 10 repeats without a value")


@pytest.mark.parametrize("metric", [GATED, {"id": OFF, "min_value": 380.0}])
def test_what_the_other_sessions_show_to_be_worse_still_fails(
    tmp_path: Path, runs: Any, metric: dict[str, Any]
) -> None:
    base = write(tmp_path / "base.json", history(runs, "b", 8, scale=1.0, seed=1))
    sessions = history(runs, "c", 8, scale=1 / 1.2, seed=2)
    cand = write(tmp_path / "cand.json", [without(sessions[0]), *sessions[1:]])
    assert compare_stored(base, cand, policy(metric, baseline=HISTORY)).exit_code == 1


def test_a_baseline_may_have_begun_before_the_metric(tmp_path: Path, runs: Any) -> None:
    sessions = history(runs, "b", 12, scale=1.0, seed=3)
    base = write(tmp_path / "base.json", [*map(without, sessions[:2]), *sessions[2:]])
    cand = write(tmp_path / "cand.json", history(runs, "c", 10, scale=1.0, seed=4))
    assert compare_stored(base, cand, policy(GATED, baseline=HISTORY)).exit_code == 0


def test_a_history_tells_its_sessions(tmp_path: Path, runs: Any) -> None:
    base = write(tmp_path / "base.json", history(runs, "b", 8, scale=1.0, seed=1))
    cand = write(tmp_path / "cand.json", history(runs, "c", 6, scale=1.0, seed=2))
    result = compare_stored(base, cand, policy(GATED, baseline=HISTORY))
    assert (result.design.pairs, result.baseline.sessions, result.candidate.sessions) == (6, 8, 6)
    assert design_words(result.design).startswith("6 sessions of the candidate;")


@pytest.mark.parametrize("mode", ["stored", "paired", "history"])
def test_a_run_is_not_compared_with_itself(store: Store, tmp_path: Path, mode: Any) -> None:
    asked = policy(GATED, baseline=BaselinePolicy(mode=mode))
    run = store("same")
    with pytest.raises(InputError, match=r"run same of .* is in .*same too: a run compared with itself shows nothing"):
        compare_stored(run, run, asked)


def test_json_that_is_nested_too_deeply_is_bad_input(store: Store, tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000 + "]" * 100_000, encoding="utf-8")
    for sides in ((deep, store("cand")), (store("base"), deep)):
        with pytest.raises(InputError, match=r"deep\.json: nested too deeply"):
            compare_stored(*sides, Policy())


# --- no baseline yet


def at(tmp_path: Path, asked: Policy) -> Policy:
    """The policy as a file in `tmp_path`, which keeps its baseline in ``base.json`` beside it."""
    kept = asked.baseline.model_copy(update={"path": "base.json"})
    return asked.model_copy(update={"path": str(tmp_path / "gate.toml"), "baseline": kept})


RECORD = BaselinePolicy(missing="record")
HOLDS, BROKEN = {"id": OFF, "min_value": 350.0}, {"id": OFF, "min_value": 500.0}


def test_a_missing_baseline_is_exit_4_or_is_recorded_by_policy(store: Store, tmp_path: Path) -> None:
    cand, place = store("cand"), tmp_path / "base.json"
    with pytest.raises(NotComparableError, match=r"base\.json: there is no baseline\. Record one with"):
        compare_stored(None, cand, at(tmp_path, policy(GATED)))
    recording = at(tmp_path, policy(GATED, HOLDS, baseline=RECORD))
    result = compare_stored(None, cand, recording)
    assert outcome(result) == (GateVerdict.RECORDED, 0)
    assert [(item.rule, item.verdict) for item in result.results] == [("budget", MetricVerdict.PASS)]
    (session,) = read_baseline(place).sessions
    assert session.run_id == "cand"
    assert session.diagnosis is not None
    assert outcome(compare_stored(None, store("next"), recording)) == (GateVerdict.PASSED, 0)


def test_the_policy_knows_the_place_of_the_baseline(store: Store, tmp_path: Path) -> None:
    cand = store("cand")
    asked = policy(GATED, baseline=RECORD).model_copy(update={"path": str(tmp_path / "ci" / "gate.toml")})
    assert compare_stored(None, cand, asked).verdict is GateVerdict.RECORDED
    made = read_baseline(tmp_path / "ci" / f".inferdoc/baselines/{'w' * 12}/{'e' * 12}.json").sessions[0]
    assert baseline_path(asked, made).exists()


@pytest.mark.parametrize("missing", ["error", "record"])
@pytest.mark.parametrize("name", ["bsae.json", "bsae", "bsae/evidence.json"])
def test_a_baseline_that_is_named_and_not_there_is_bad_input(
    store: Store, tmp_path: Path, missing: Any, name: str
) -> None:
    asked = policy(GATED, baseline=BaselinePolicy(missing=missing))
    with pytest.raises(InputError, match=r"bsae.* cannot be read"):
        compare_stored(tmp_path / name, store("cand"), asked)
    assert [path.name for path in tmp_path.iterdir()] == ["cand"]


@pytest.mark.parametrize("missing", ["error", "record"])
def test_a_broken_budget_needs_no_baseline_and_nothing_is_recorded(store: Store, tmp_path: Path, missing: Any) -> None:
    asked = at(tmp_path, policy(GATED, BROKEN, baseline=BaselinePolicy(missing=missing)))
    result = compare_stored(None, store("cand"), asked)
    assert outcome(result) == (GateVerdict.REGRESSED, 1)
    (broken,) = result.results
    assert (broken.rule, broken.verdict, broken.policy_line) == ("budget", MetricVerdict.BROKEN, 11)
    assert "there is no baseline" in result.comparability.reasons[0]
    assert (result.baseline.sessions, result.candidate.sessions) == (0, 1)
    assert GateResult.model_validate_json(result.model_dump_json(by_alias=True)) == result
    assert not (tmp_path / "base.json").exists()


def test_a_budget_that_only_warns_lets_the_run_be_recorded(store: Store, tmp_path: Path) -> None:
    asked = at(tmp_path, policy({**BROKEN, "role": "warn"}, baseline=RECORD))
    assert outcome(compare_stored(None, store("cand"), asked)) == (GateVerdict.RECORDED, 0)


@pytest.mark.parametrize(
    ("metric", "cand"),
    [
        ({"id": OFF, "min_value": 400.0}, {}),  # between its repeats
        ({"id": "prefix.measured_hit_rate", "min_value": 0.5}, {"hit_rate": None}),  # not measured
    ],
)
def test_a_budget_that_is_not_known_to_hold_records_nothing(
    store: Store, tmp_path: Path, metric: dict[str, Any], cand: dict[str, Any]
) -> None:
    run = store("cand", **cand)
    result = compare_stored(None, run, at(tmp_path, policy(metric, baseline=RECORD)))
    assert result.exit_code in (3, 4)
    assert not (tmp_path / "base.json").exists()
    with pytest.raises(NotComparableError):
        compare_stored(None, run, at(tmp_path, policy(metric)))


@pytest.mark.parametrize("missing", ["error", "record"])
def test_ids_are_checked_without_a_baseline_too(store: Store, tmp_path: Path, missing: Any) -> None:
    asked = at(tmp_path, policy(GATED, {"id": "prefix.mistyped"}, baseline=BaselinePolicy(missing=missing)))
    with pytest.raises(PolicyError, match=r"gate\.toml:11: the candidate has no measurement 'prefix\.mistyped'"):
        compare_stored(None, store("cand"), asked)
    assert not (tmp_path / "base.json").exists()


def test_a_run_without_a_diagnosis_is_no_baseline_for_a_policy_that_gates_it(tmp_path: Path, runs: Any) -> None:
    cand = write(tmp_path / "cand.json", [session_of(runs.evidence(), None)])
    gates = DiagnosisPolicy(on_diagnosis_change="fail", line=30)
    with pytest.raises(PolicyError, match=r"gate\.toml:30: .*cand\.json holds no diagnosis"):
        compare_stored(None, cand, at(tmp_path, policy(GATED, baseline=RECORD, diagnosis=gates)))
    assert not (tmp_path / "base.json").exists()


def test_a_run_that_is_not_clean_is_not_recorded_in_passing(store: Store, tmp_path: Path) -> None:
    recording = at(tmp_path, policy(GATED, baseline=RECORD))
    with pytest.raises(InvalidRunError, match="the run is partial"):
        compare_stored(None, store("partial", run={"status": "partial"}), recording)
    invalid = Validity(status="invalid", checks=[Check(name="clocks", passed=False, text="throttled")])
    result = compare_stored(None, store("invalid", validity=invalid), recording)
    assert outcome(result) == (GateVerdict.INVALID, 5)
    assert not (tmp_path / "base.json").exists()


def test_the_result_is_a_gate_json(store: Store) -> None:
    result = stored(store, policy(GATED), {"scale": 0.9})
    again = GateResult.model_validate_json(result.model_dump_json(by_alias=True))
    assert again == result
    assert (again.device, again.subject) == ("NVIDIA H100 80GB HBM3", "Qwen3-8B on trace.jsonl")
    assert again.policy is not None
    assert again.policy.path == "gate.toml"
    assert Path(again.candidate.source or "").name == "cand"

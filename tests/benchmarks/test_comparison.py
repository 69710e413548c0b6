"""Ratios of pairs, first divergences, and bars, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
import time
from dataclasses import make_dataclass

import engine_vs_peers
import pytest
from engine_vs_peers import Entrant, Pairing, compare, describe, draw_prompts, judge, measure, parse, report
from peers.comparison import Ratio, first_divergences
from peers.process import Job, WorkerError
from peers.registry import CPU_WORK, GPU_WORK, OURS, PEERS, TINY_WORK, Peer
from peers.results import write_json
from transformers_worker import known_fields

from inferdoc.engine.config import EngineConfig

STATIC, CONTINUOUS, LLAMACPP = (PEERS[n] for n in ("transformers-static", "transformers-continuous", "llamacpp"))
DEFAULT, COMPILED = OURS["default"], OURS["compiled"]
OTHER = ((1, 9),)


def test_a_constant_ratio_is_found_with_an_interval_of_no_width():
    theirs = [10.0, 12.0, 9.0, 11.0, 10.5, 13.0]
    ratio = Ratio.of([1.5 * rate for rate in theirs], theirs)
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert ratio.pairs == 6


def test_six_pairs_span_the_extremes_and_fewer_give_no_interval():
    """With six pairs the 95% interval runs from the smallest to the largest one (2 of 64 sign patterns lie outside)."""
    ours = [1.0, 2.0, 1.1, 1.2, 1.3, 1.4]
    six = Ratio.of(ours, [1.0] * 6)
    assert (six.low, six.high) == pytest.approx((1.0, 2.0))
    five = Ratio.of(ours[:5], [1.0] * 5)
    assert five.low is None
    assert five.high is None
    assert "no interval: 5 of at least 6 pairs" in str(five)


def test_first_divergences_name_the_position_and_a_missing_token_differs():
    ours = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1]]
    theirs = [[1, 2, 3], [4, 0, 6], [7, 8], [1, 1, 1]]
    assert first_divergences(ours, theirs) == {1: 1, 2: 2, 3: 2}


def entrant(peer, rates, tokens=((1, 2),), first=0) -> Entrant:
    """Two tokens a job, one job a round from `first` on."""
    rows = [list(row) for row in tokens]
    return Entrant(peer, jobs={first + i: Job(2 / rate, rows) for i, rate in enumerate(rates)})


def test_a_ratio_pairs_the_jobs_of_one_round():
    """Both run in rounds 2 and 3 only; paired by position the ratios would be 1 and 2."""
    pairing = Pairing.of(entrant(DEFAULT, [10.0, 20.0, 40.0]), entrant(STATIC, [10.0, 10.0], first=1))
    assert pairing is not None
    assert pairing.ratio.pairs == 2
    assert pairing.ratio.estimate == pytest.approx(8**0.5)  # 2 and 4
    assert Pairing.of(entrant(DEFAULT, [10.0]), entrant(STATIC, [10.0], first=1)) is None


def test_the_earliest_divergence_of_all_rounds_is_kept():
    ours = Entrant(DEFAULT, jobs={0: Job(1.0, [[1, 2, 3]]), 1: Job(1.0, [[1, 2, 3]])})
    theirs = Entrant(STATIC, jobs={0: Job(1.0, [[1, 2, 9]]), 1: Job(1.0, [[1, 9, 3]])})
    pairing = Pairing.of(ours, theirs)
    assert pairing is not None
    assert pairing.describe(1) | {"ratio": None} == {
        "ratio": None,
        "identical_requests": 0,
        "first_divergences": {0: 1},
    }


def test_the_bar_is_judged_against_the_fastest_peer_and_says_which_settings_met_it():
    ours = [entrant(DEFAULT, [20.0] * 6), entrant(COMPILED, [30.0] * 6)]
    bars = judge(ours, [entrant(CONTINUOUS, [10.0] * 6), entrant(STATIC, [25.0] * 6)], CPU_WORK)
    assert [bars["settings"][name]["best_peer"] for name in ("default", "compiled")] == ["transformers-static"] * 2
    assert bars["settings"]["default"]["ratio"]["estimate"] == pytest.approx(20 / 25)
    assert bars["settings"]["compiled"]["ratio"]["estimate"] == pytest.approx(30 / 25)
    assert bars["bar"] == {"at_least": 1.0, "met_by": ["compiled"]}
    assert judge(ours, [entrant(STATIC, [29.0] * 6)], CPU_WORK)["goal"] == {"at_least": 1.2, "met_by": []}
    assert bars["identical_tokens"]["met_by"] == ["default", "compiled"]


def test_other_tokens_miss_the_bar_only_where_the_weights_are_the_same():
    def identical(peer, work):
        ours = [entrant(DEFAULT, [1.0]), entrant(COMPILED, [1.0], OTHER)]
        return judge(ours, [entrant(peer, [1.0], OTHER)], work)["identical_tokens"]

    assert identical(LLAMACPP, CPU_WORK) is None, "nothing to compare with"
    assert identical(STATIC, CPU_WORK) == {"met_by": ["compiled"]}
    assert identical(STATIC, GPU_WORK) is None


def test_on_a_card_the_bar_is_about_continuous_batching_whoever_is_best():
    ours = [entrant(DEFAULT, [30.0])]
    bars = judge(ours, [entrant(STATIC, [60.0]), entrant(CONTINUOUS, [20.0])], GPU_WORK)
    assert (bars["settings"]["default"]["best_peer"], bars["settings"]["default"]["against"]) == (
        STATIC.name,
        CONTINUOUS.name,
    )
    assert bars["bar"] == {"at_least": 1.5, "met_by": ["default"]}
    assert judge(ours, [entrant(STATIC, [60.0])], GPU_WORK)["bar"] is None


class Fake:
    """A worker that takes `seconds` for each job, on a clock of its own, and fails in the job numbered `fails`."""

    def __init__(self, log, clock, name, seconds, fails=None) -> None:
        self.log, self.clock, self.name, self.seconds, self.fails = log, clock, name, seconds, fails
        self.facts = {"version": "0"}
        self.jobs = 0
        self.ended = False

    def run(self) -> Job:
        assert not self.ended
        self.jobs += 1
        if self.jobs == self.fails:
            self.ended = True
            raise WorkerError("out of memory")
        self.log.append(self.name)
        self.clock[0] += self.seconds
        return Job(self.seconds, [[1, 2]])

    def close(self) -> None:
        self.ended = True


SECONDS = {"default": 2.0, "compiled": 1.0, STATIC.name: 4.0, CONTINUOUS.name: 8.0}


@pytest.fixture
def run_compare(monkeypatch):
    """`compare` with fakes: the log of jobs, both lists of entrants, and what was there after each round."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def run(peers, rounds, limit_s=math.inf, **fails):
        log, made, saved = [], {}, []

        def start(peer):
            if fails.get(peer.name) == 0:
                raise WorkerError("not installed")
            made[peer.name] = Fake(log, clock, peer.name, SECONDS[peer.name], fails.get(peer.name))
            return made[peer.name]

        try:
            ours, others = compare(
                start,
                [DEFAULT, COMPILED],
                peers,
                lambda worker: worker.run(),
                rounds,
                limit_s=limit_s,
                after_round=lambda ours, others: saved.append(describe(ours, others, CPU_WORK)),
            )
        finally:
            assert all(worker.ended for worker in made.values()), "no worker outlives the comparison"
        return log, ours, others, saved

    return run


def test_each_runs_once_a_round_in_an_order_that_turns_and_reverses(run_compare):
    log, ours, (static,), _ = run_compare([STATIC], rounds=6)
    d, c, s = "default", "compiled", STATIC.name
    assert log[:3] == [d, c, s], "a warm-up each"
    assert [log[at : at + 3] for at in range(3, 21, 3)] == [
        [d, c, s],
        [s, c, d],
        [c, s, d],
        [d, s, c],
        [s, d, c],
        [c, d, s],
    ]
    for each, ratio in zip(ours, (2.0, 4.0), strict=True):
        pairing = Pairing.of(each, static)
        assert pairing is not None
        assert (pairing.ratio.estimate, pairing.ratio.pairs) == (pytest.approx(ratio), 6)


def test_a_missing_peer_is_reported_with_its_reason_and_the_others_go_on(run_compare):
    _, ours, (missing, other), _ = run_compare([STATIC, CONTINUOUS], rounds=2, **{STATIC.name: 0})
    described = describe(ours, [missing, other], CPU_WORK)
    assert described["peers"][STATIC.name]["status"] == "not available"
    assert described["peers"][STATIC.name]["against"] == {"default": None, "compiled": None}
    assert described["bars"]["settings"]["default"]["best_peer"] == CONTINUOUS.name
    assert "not available: not installed" in report(described | {"work": {"requests": 32}, "partial": False})


def test_an_engine_that_fails_later_keeps_its_rounds_and_its_reason(run_compare):
    _, ours, (failing, other), _ = run_compare([STATIC, CONTINUOUS], rounds=3, **{STATIC.name: 3, "compiled": 2})
    described = describe(ours, [failing, other], CPU_WORK)
    peer, engine = described["peers"][STATIC.name], described["engine"]
    assert (peer["status"], peer["reason"]) == ("failed", "failed after 1 rounds: out of memory")
    assert list(peer["tokens_per_s"]) == ["1"]
    assert peer["against"]["default"]["ratio"]["pairs"] == 1
    assert peer["against"]["compiled"] is None
    assert engine["compiled"]["reason"] == "failed after 0 rounds: out of memory"
    assert len(engine["default"]["tokens_per_s"]) == len(other.jobs) == 3


def test_a_failure_of_ours_with_all_settings_is_an_error(run_compare):
    with pytest.raises(WorkerError, match="as diagnose runs it: failed after 0 rounds: out of memory"):
        run_compare([STATIC], rounds=2, default=2, compiled=0)


def test_the_limit_holds_from_the_start(run_compare):
    """The warm-ups take 2, 1 and 4 s; the fourth engine is not loaded at 7 s."""
    log, ours, others, _ = run_compare([STATIC, CONTINUOUS], rounds=2, limit_s=6.5)
    assert log == ["default", "compiled", STATIC.name]
    described = describe(ours, others, CPU_WORK)
    assert [described["peers"][p.name]["reason"] for p in (STATIC, CONTINUOUS)] == ["no time left"] * 2
    assert described["engine"]["default"]["reason"] == "no time left"
    assert described["bars"]["bar"] is None


def test_no_job_begins_that_would_end_past_the_limit(run_compare):
    """Warm-ups end at 7 s, the first round at 14 s; in the second, reversed, the 4 s of the peer no longer fit."""
    log, ours, (static,), _ = run_compare([STATIC], rounds=2, limit_s=17.5)
    assert log[6:] == ["compiled", "default"]
    assert (len(ours[0].jobs), len(static.jobs)) == (2, 1)
    assert describe(ours, [static], CPU_WORK)["peers"][STATIC.name]["status"] == "measured"


def test_what_there_is_is_given_out_after_every_round(run_compare):
    _, _, _, saved = run_compare([STATIC], rounds=3)
    assert [len(each["engine"]["default"]["tokens_per_s"]) for each in saved] == [0, 1, 2, 3]
    assert saved[0]["bars"]["bar"] is None
    assert saved[1]["bars"]["bar"]["met_by"] == ["default", "compiled"]


def test_a_comparison_that_is_ended_leaves_a_partial_result(tmp_path, monkeypatch):
    """Fake workers; the second round is cut off as a time limit from outside does it."""
    jobs = []

    class Cut(Fake):
        def run(self, prompts, new_tokens) -> Job:
            jobs.append(self.name)
            if len(jobs) > 6:
                raise SystemExit(143)
            return Job(1.0, [[1] * new_tokens for _ in prompts])

    monkeypatch.setattr(Peer, "start", lambda self, model, work: Cut(jobs, [0.0], self.name, 1.0))
    monkeypatch.setattr(engine_vs_peers, "FOLDER", tmp_path)
    file = tmp_path / "result.json"
    with pytest.raises(SystemExit):
        measure(TINY_WORK, [STATIC], rounds=3, save=lambda result: write_json(file, result))
    result = json.loads(file.read_text())
    assert result["partial"] is True
    assert result["peers"][STATIC.name]["against"]["default"]["ratio"]["pairs"] == 1
    assert "partial: it was ended" in report(result)
    assert list(tmp_path.glob(".*")) == []


def test_ours_runs_as_diagnose_would_run_it(tmp_path):
    settings = OURS["default"].settings(tmp_path, CPU_WORK)["engine"]
    config = EngineConfig(**settings)
    assert (config.batching, config.compile, config.pack_weights, config.enforce_eager) == (
        "continuous",
        False,
        False,
        True,
    )
    assert config.max_num_batched_tokens == 256  # of diagnose on a CPU
    compiled = EngineConfig(**OURS["compiled"].settings(tmp_path, CPU_WORK)["engine"])
    assert set(config.difference(compiled)) >= {"batching", "compile", "pack_weights", "max_num_batched_tokens"}
    assert config.kv_tokens == compiled.kv_tokens


@pytest.mark.parametrize(("name", "other"), [("page_size", "block_size"), ("block_size", "page_size")])
def test_continuous_batching_gets_the_page_size_under_the_name_of_its_version(tmp_path, name, other):
    given = PEERS["transformers-continuous"].settings(tmp_path, CPU_WORK)["continuous"]
    config = make_dataclass("Config", [name, "num_blocks", "max_batch_tokens", "allow_block_sharing"])
    known = known_fields(config, given)
    assert known[name] == 32
    assert other not in known
    assert config(**known).max_batch_tokens == 2048


def test_every_run_has_the_same_prompts():
    prompts = draw_prompts(CPU_WORK)
    assert prompts == draw_prompts(CPU_WORK)
    assert [len(prompt) for prompt in prompts] == [128] * 32
    assert len({tuple(prompt) for prompt in prompts}) == 32


def test_an_unknown_peer_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        parse(["--peers", "vllm,tgi"])
    assert "--peers tgi: choose of" in capsys.readouterr().err


def test_quick_is_two_rounds_within_its_time_and_names_can_be_given_all_the_same():
    options = parse(["--quick"])
    assert (options.rounds, options.limit) == (2, 240.0)
    assert "transformers-continuous" not in options.peers
    assert parse([]).peers == list(PEERS)
    assert parse(["--quick", "--peers", "transformers-continuous"]).peers == ["transformers-continuous"]

"""Ratios of pairs, first divergences, and bars, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from engine_vs_peers import Comparison, compare, draw_prompts, judge, parse, report
from peers.comparison import Ratio, first_divergences
from peers.process import Job, WorkerError
from peers.registry import CPU_WORK, GPU_WORK, OURS, PEERS

STATIC, CONTINUOUS, LLAMACPP = (PEERS[n] for n in ("transformers-static", "transformers-continuous", "llamacpp"))


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


def comparison(peer, ours, theirs, tokens=((1, 2),)) -> Comparison:
    made = Comparison(peer)
    for a, b in zip(ours, theirs, strict=True):
        made.add(Job(2 / a, [[1, 2]]), Job(2 / b, [list(row) for row in tokens]))
    return made


def test_the_bar_is_judged_against_the_fastest_peer():
    slower = comparison(CONTINUOUS, [30.0] * 6, [10.0] * 6)
    faster = comparison(STATIC, [30.0] * 6, [27.0] * 6)
    bars = judge([slower, faster], CPU_WORK)
    assert bars["best_peer"] == "transformers-static"
    assert bars["ratio"]["estimate"] == pytest.approx(30 / 27)
    assert bars["bar"]["met"]
    assert not bars["goal"]["met"]
    assert bars["identical_tokens"]


def test_other_tokens_miss_the_bar_only_where_the_weights_are_the_same():
    other = ((1, 9),)
    assert judge([comparison(LLAMACPP, [1.0], [1.0], other)], CPU_WORK)["identical_tokens"]
    assert judge([comparison(STATIC, [1.0], [1.0], other)], CPU_WORK)["identical_tokens"] is False
    assert judge([comparison(STATIC, [1.0], [1.0], other)], GPU_WORK)["identical_tokens"] is None


def test_on_a_card_the_bar_is_about_continuous_batching_whoever_is_best():
    bars = judge([comparison(STATIC, [30.0], [60.0]), comparison(CONTINUOUS, [30.0], [20.0])], GPU_WORK)
    assert (bars["best_peer"], bars["against"]) == (STATIC.name, CONTINUOUS.name)
    assert bars["bar"] == {"at_least": 1.5, "met": True}
    assert judge([comparison(STATIC, [30.0], [60.0])], GPU_WORK)["bar"] is None


class Fake:
    """A worker that takes `seconds` for each job, and fails in the job numbered `fails`."""

    def __init__(self, log, name, seconds, fails=None) -> None:
        self.log, self.name, self.seconds, self.fails = log, name, seconds, fails
        self.facts = {"version": "0"}
        self.jobs = 0
        self.ended = False

    def run(self) -> Job:
        self.jobs += 1
        if self.jobs == self.fails:
            self.ended = True
            raise WorkerError("out of memory")
        self.log.append(self.name)
        return Job(self.seconds, [[1, 2]])

    def close(self) -> None:
        self.ended = True


def run_compare(peers, pairs, **fails):
    log, made = [], {}

    def start(peer):
        if fails.get(peer.name) == 0:
            raise WorkerError("not installed")
        made[peer.name] = Fake(log, peer.name, 1.0 if peer is OURS else 2.0, fails.get(peer.name))
        return made[peer.name]

    facts, comparisons = compare(start, peers, lambda worker: worker.run(), pairs)
    assert facts == {"version": "0"}
    assert all(worker.ended for worker in made.values()), "no worker outlives the comparison"
    return log, comparisons


def test_pairs_are_interleaved_and_change_sides():
    log, (one,) = run_compare([STATIC], pairs=4)
    ours, theirs = OURS.name, STATIC.name
    assert log[:2] == [ours, theirs], "a warm-up each"
    assert log[2:] == [ours, theirs, theirs, ours, ours, theirs, theirs, ours]
    assert one.ratio is not None
    assert one.ratio.estimate == pytest.approx(2.0)


def test_a_missing_peer_is_reported_with_its_reason_and_the_others_go_on():
    _, (missing, other) = run_compare([STATIC, CONTINUOUS], pairs=2, **{STATIC.name: 0})
    assert missing.describe(32)["status"] == "not available"
    assert missing.reason == "not installed"
    assert other.ratio is not None
    bars = judge([missing, other], CPU_WORK)
    assert bars["best_peer"] == CONTINUOUS.name
    entry = {"peers": {c.peer.name: c.describe(1) for c in (missing, other)}, "work": {"requests": 1}, "bars": bars}
    assert "not available: not installed" in report(entry)


def test_a_peer_that_fails_later_keeps_its_pairs_and_its_reason():
    _, (failing, other) = run_compare([STATIC, CONTINUOUS], pairs=3, **{STATIC.name: 3})
    described = failing.describe(32)
    assert described["status"] == "failed"
    assert described["reason"] == "failed after 1 pairs: out of memory"
    assert len(failing.ours) == len(failing.theirs) == 1
    assert len(other.ours) == 3


def test_our_own_failure_is_an_error():
    with pytest.raises(WorkerError, match="out of memory"):
        run_compare([STATIC], pairs=2, **{OURS.name: 2})


def test_every_run_has_the_same_prompts():
    prompts = draw_prompts(CPU_WORK)
    assert prompts == draw_prompts(CPU_WORK)
    assert [len(prompt) for prompt in prompts] == [128] * 32
    assert len({tuple(prompt) for prompt in prompts}) == 32


def test_an_unknown_peer_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        parse(["--peers", "vllm,tgi"])
    assert "--peers tgi: choose of" in capsys.readouterr().err


def test_quick_is_two_pairs_within_its_time_and_names_can_be_given_all_the_same():
    options = parse(["--quick"])
    assert (options.pairs, options.limit) == (2, 240.0)
    assert "transformers-continuous" not in options.peers
    assert parse([]).peers == list(PEERS)
    assert parse(["--quick", "--peers", "transformers-continuous"]).peers == ["transformers-continuous"]

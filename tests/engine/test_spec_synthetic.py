"""Acceptance at given rates: the rates come out, and what is emitted is what the docstring says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from scipy import stats

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine, RunResult
from inferdoc.engine.request import Request
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.drafter import make_drafter
from inferdoc.engine.spec_decode.proposal import DraftCounts
from inferdoc.errors import InputError
from inferdoc.simulator import ModelledRunner, StepTimes, VirtualClock, modelled_drafter

RATES = (0.8, 0.5, 0.9)
CONFIG = EngineConfig(
    max_model_len=128,
    num_kv_blocks=64,
    block_size=8,
    max_num_seqs=4,
    speculative_config=SpeculativeConfig(method="synthetic", num_speculative_tokens=3, acceptance=RATES),
)


def requests(count: int = 40) -> list[Request]:
    return [Request(number, [number, 3, 1], 100) for number in range(count)]


def run(hash_model, config: EngineConfig, served: list[Request], outputs=None):
    clock = hash_model.Clock()
    runner = hash_model.Runner(clock, lambda batch: 1.0)
    engine = Engine(runner, config, clock, drafter=make_drafter(config, outputs=outputs))
    runner.before_step = lambda batch: engine.scheduler.check_integrity()
    return engine.run(served)


def test_rates_come_out_place_by_place_and_outputs_are_those_of_plain_decoding(hash_model):
    plain = requests()
    run(hash_model, replace(CONFIG, speculative_config=None), plain)
    served = requests()
    result = run(hash_model, CONFIG, served, {request.id: request.output for request in plain})
    assert [request.output for request in served] == [request.output for request in plain]
    counts = sum((step.drafts for step in result.steps if step.drafts), DraftCounts())
    for accepted, rejected, rate in zip(counts.accepted, counts.rejected, RATES, strict=True):
        assert accepted + rejected > 200
        assert stats.binomtest(accepted, accepted + rejected, rate).pvalue > 0.01
    assert counts.conditional_rates() == pytest.approx(RATES, abs=0.06)


def test_the_same_coins_fall_in_another_batch(hash_model):
    alone, together = requests(6), requests(6)
    run(hash_model, replace(CONFIG, max_num_seqs=1), alone, {r.id: hash_model.expected(r.prompt, 100) for r in alone})
    run(hash_model, CONFIG, together, {r.id: hash_model.expected(r.prompt, 100) for r in together})
    assert [(r.drafted, r.accepted) for r in alone] == [(r.drafted, r.accepted) for r in together]


def test_without_outputs_the_prompt_s_tokens_are_emitted_and_the_cache_holds_what_is_emitted(hash_model):
    """The hash model fails where the K/V of a token are another's. All are accepted: but for the model's own tokens
    the output is the prompt in turn."""
    config = replace(
        CONFIG,
        enable_prefix_caching=True,
        speculative_config=replace(CONFIG.speculative_config, acceptance=(1.0, 1.0, 1.0)),
    )
    served = requests(8)
    result = run(hash_model, config, served)
    for request in served:
        assert all(request.output[i] == request.prompt[i % 3] for i in range(1, 96) if i % 4)
    again = [Request(8 + r.id, r.tokens[:60].tolist(), 20) for r in served]
    run(hash_model, config, again)
    assert sum(step.drafted for step in result.steps) > 500


def test_modelled_steps_count_drafts_as_queries_and_accept_as_told():
    """100 tokens after the first: 25 steps of 4 tokens; each with 3 more queries, one row, its whole context."""
    times = StepTimes(base=0.01, token=0.001, row=0.002, context=1e-5, relative_error=0.0)
    config = replace(CONFIG, speculative_config=replace(CONFIG.speculative_config, acceptance=(1.0, 1.0, 1.0)))
    clock = VirtualClock()
    result = Engine(ModelledRunner(times, clock), config, clock).run([Request(0, [1] * 10, 101)])
    prompt = 0.01 + 0.001 * 10 + 1e-5 * 10
    steps = sum(0.01 + 0.001 * 3 + 0.002 + 1e-5 * (10 + 4 * i + 4) for i in range(25))
    assert len(result.steps) == 26
    assert result.duration_s == pytest.approx(prompt + steps)
    assert StepTimes.fit(result.steps).relative_error < 1e-6


def modelled(speculative: SpeculativeConfig, **known) -> tuple[Request, RunResult]:
    """A request of 10 and 21 tokens on steps of 12 ms and 1 ms a further query; with what is known of its drafts."""
    times = StepTimes(base=0.01, token=0.001, row=0.002, context=0.0, relative_error=0.0)
    config = replace(CONFIG, speculative_config=speculative)
    clock, request = VirtualClock(), Request(0, [0] * 10, 21)
    drafter = modelled_drafter(config, clock, **known)
    return request, Engine(ModelledRunner(times, clock), config, clock, drafter=drafter).run([request])


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_predicted_drafts_of_which_nothing_is_known_are_all_rejected(method):
    request, result = modelled(SpeculativeConfig(method=method, num_speculative_tokens=3))
    assert request.accepted == 0
    # 17 steps check three, the last three 2, 1 and 0.
    assert request.drafted == 17 * 3 + 2 + 1
    assert result.duration_s == pytest.approx(0.02 + 20 * 0.012 + 54 * 0.001)


def test_predicted_drafts_of_known_acceptance_and_price():
    """All accepted: five steps of four tokens, each after three tokens of 2 ms from the drafter."""
    speculative = SpeculativeConfig(method="draft", num_speculative_tokens=3)
    request, result = modelled(speculative, acceptance=(1.0, 1.0, 1.0), seconds=0.002)
    assert (request.drafted, request.accepted) == (15, 15)
    assert result.duration_s == pytest.approx(0.02 + 5 * (0.012 + 0.003 + 0.006))
    assert [step.draft_s for step in result.steps[1:]] == pytest.approx([0.006] * 5)
    request, _ = modelled(speculative, acceptance=(1.0,))
    assert request.accepted * 3 == pytest.approx(request.drafted, abs=3)


def test_predictions_without_speculation_draft_nothing():
    assert modelled(None)[0].drafted == 0


def test_rates_and_places_must_be_as_many():
    with pytest.raises(InputError, match="as many acceptance rates"):
        SpeculativeConfig(method="synthetic", num_speculative_tokens=2, acceptance=(0.5,))


def test_coins_of_different_places_are_independent(hash_model):
    """All eight outcomes of three places, each with its probability."""
    drafter = make_drafter(CONFIG)
    seen: Counter[int] = Counter()
    for request in requests(4000):
        seen[drafter._accepted(request, 3)] += 1
    chances = [0.2, 0.8 * 0.5, 0.8 * 0.5 * 0.1, 0.8 * 0.5 * 0.9]
    assert stats.chisquare([seen[i] for i in range(4)], [4000 * chance for chance in chances]).pvalue > 0.01

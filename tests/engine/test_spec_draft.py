"""The draft model: its K/V are always those of the request's own tokens, and what it draws is what it says."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import Alone, tiny_model

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.sampling import DRAFT, SamplingParams
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.draft import DraftModel
from inferdoc.engine.spec_decode.drafter import make_drafter, refuse_pair
from inferdoc.errors import InputError

LONGEST, KV_TOKENS, VOCABULARY = 24, 64, 30
BASE = EngineConfig(
    max_model_len=LONGEST,
    num_kv_blocks=16,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=32,
    speculative_config=SpeculativeConfig(method="draft", num_speculative_tokens=3),
)


def tiny(seed: int, noise: float = 0.0, vocabulary: int = VOCABULARY) -> torch.nn.Module:
    return tiny_model(vocabulary=vocabulary, seed=seed, noise=noise)


@pytest.fixture(scope="module")
def models() -> SimpleNamespace:
    """`same` drafts as the target does; `near` is right now and then."""
    return SimpleNamespace(
        target=ModelRunner(tiny(1), KV_TOKENS),
        alone=Alone(tiny(1)),
        same=(ModelRunner(tiny(1), KV_TOKENS), Alone(tiny(1))),
        near=(ModelRunner(tiny(1, noise=0.02), KV_TOKENS), Alone(tiny(1, noise=0.02))),
    )


@st.composite
def loads(draw):
    block_size = draw(st.sampled_from([1, 2, 4]))
    config = replace(
        BASE,
        block_size=block_size,
        num_kv_blocks=draw(st.integers(-(-LONGEST // block_size), KV_TOKENS // block_size)),
        max_num_batched_tokens=draw(st.sampled_from([5, 8, 32])),
        batching=draw(st.sampled_from(["continuous", "prefill-first", "static"])),
        enable_prefix_caching=draw(st.booleans()),
        speculative_config=replace(BASE.speculative_config, num_speculative_tokens=draw(st.integers(1, 4))),
    )
    requests = []
    for number in range(draw(st.integers(1, 6))):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST - 1))
        requests.append(Request(number, prompt, draw(st.integers(1, LONGEST - len(prompt)))))
    return config, requests, draw(st.sampled_from([24, 40, 64]))


def poison(runner: ModelRunner, kv_tokens: int = KV_TOKENS) -> None:
    runner.resize(kv_tokens)
    for module, _ in runner.layers:
        module.inferdoc_layer.keys.fill_(torch.nan)
        module.inferdoc_layer.values.fill_(torch.nan)


def watched(runner: ModelRunner, fresh: Alone, config: EngineConfig) -> tuple[DraftModel, SimpleNamespace]:
    """A draft model that compares all its logits with those of the tokens alone, and counts."""
    drafter = make_drafter(config, draft_runner=runner, vocabulary=VOCABULARY)
    count = SimpleNamespace(rows=0, caught_up=0)
    logits = ModelRunner.logits

    def compare(batch):
        found = logits(runner, batch)
        for row, values in zip(batch.rows, found, strict=True):
            torch.testing.assert_close(values, fresh.logits(row.request.tokens[: row.end]), rtol=0, atol=1e-9)
            count.rows += 1
            count.caught_up += row.num_tokens > 1
        return found

    drafter.runner = SimpleNamespace(logits=compare, execute=runner.execute)
    return drafter, count


@pytest.mark.parametrize("kind", ["same", "near"])
def test_trap_21_drafts_come_from_the_right_k_v_under_any_load(models, kind):
    """Full acceptance leaves a token to catch up with, rejection K/V to rewind; small pools leave some undrafted."""
    runner, fresh = getattr(models, kind)
    total = SimpleNamespace(rows=0, caught_up=0, drafted=0, accepted=0)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(load=loads())
    def check(load):
        config, requests, kv_tokens = load
        poison(models.target)
        poison(runner, kv_tokens)
        drafter, count = watched(runner, fresh, config)
        engine = Engine(models.target, config, drafter=drafter)
        propose = drafter.propose

        def propose_and_check(running):
            propose(running)
            drafter.kv.check_integrity([shadow.request for shadow in drafter._shadows.values()])
            engine.scheduler.check_integrity()

        drafter.propose = propose_and_check
        engine.run(requests)
        for request in requests:
            assert request.output == models.alone.generate(request.prompt, request.output_length)
            total.drafted += request.drafted
            total.accepted += request.accepted
        drafter.propose([])
        assert drafter.kv.pool.num_free == drafter.config.num_kv_blocks
        total.rows += count.rows
        total.caught_up += count.caught_up

    check()
    assert total.rows > 500
    assert total.caught_up > 50
    assert total.accepted > 100
    assert (total.accepted == total.drafted) == (kind == "same")


def test_probabilities_are_those_of_the_draft_model_and_tokens_are_drawn_from_them(models):
    """By plain Python from fresh logits: softmax at the temperature, ranked, cut at top-p, inverted at the number."""
    runner, fresh = models.near
    poison(models.target)
    poison(runner)
    drafter, _ = watched(runner, fresh, BASE)
    engine = Engine(models.target, BASE, drafter=drafter)
    params = SamplingParams(temperature=0.9, top_p=0.8, seed=3)
    sampled = [Request(number, [number, 1, 2], 18, sampling=params) for number in range(3)]
    greedy = Request(3, [3, 1, 2], 18)
    propose, seen = drafter.propose, []

    def propose_and_check(running):
        propose(running)
        assert greedy.draft is None or greedy.draft.probabilities is None
        for request in sampled:
            if request.draft is None:
                continue
            tokens = request.tokens.tolist()
            for token, q in zip(request.draft.tokens, request.draft.probabilities.tolist(), strict=True):
                weights = [math.exp(value / 0.9) for value in fresh.logits(tokens).tolist()]
                ranking = sorted(range(VOCABULARY), key=lambda each: -weights[each])
                kept: list[int] = []
                for each in ranking:
                    if kept and sum(weights[i] for i in kept) / sum(weights) >= 0.8:
                        break
                    kept.append(each)
                mass = sum(weights[i] for i in kept)
                assert q == pytest.approx([weights[i] / mass if i in kept else 0 for i in range(VOCABULARY)], abs=1e-9)
                left = params.uniform(request.id, len(tokens), DRAFT)
                for each in kept:
                    left -= weights[each] / mass
                    if left < 0:
                        break
                assert token == each
                tokens.append(token)
                seen.append(token)

    drafter.propose = propose_and_check
    engine.run([*sampled, greedy])
    assert len(seen) > 50
    assert greedy.output == models.alone.generate(greedy.prompt, 18)
    accepted = sum(request.accepted for request in sampled)
    assert 0 < accepted < sum(request.drafted for request in sampled)


def test_prompts_are_computed_along_with_the_target_s(models):
    """Chunk by chunk; the first round of drafting has one token to compute, not a prompt."""
    runner, _ = models.same
    poison(models.target)
    poison(runner)
    config = replace(BASE, max_num_batched_tokens=8)
    drafter = make_drafter(config, draft_runner=runner, vocabulary=VOCABULARY)
    followed, drafted = [], []

    def execute(batch):
        followed.append([row.num_tokens for row in batch.rows])
        return runner.execute(batch)

    def logits(batch):
        drafted.append([row.num_tokens for row in batch.rows])
        return runner.logits(batch)

    drafter.runner = SimpleNamespace(execute=execute, logits=logits)
    request = Request(0, [1] * 18, 6)
    result = Engine(models.target, config, drafter=drafter).run([request])
    assert followed == [[8], [8], [2]]
    # Five tokens after the first: three drafted and the target's own, then the last, which is never drafted.
    assert drafted == [[1], [1], [1]]
    assert [step.drafted for step in result.steps] == [0, 0, 0, 3, 0]


def test_a_request_that_comes_back_from_a_preemption_takes_its_drafts_back(models):
    """It was drafted for, got other tokens, is too near its end for drafts, and is computed anew."""
    runner, _ = models.same
    poison(runner)
    drafter = make_drafter(BASE, draft_runner=runner, vocabulary=VOCABULARY)
    request = Request(0, [1, 2, 3], 6)
    drafter.follow(Batch([Row(request, 3, samples=True)], BASE.block_size))
    request.tokens.append(4)
    request.steady = Row(request, 1, samples=True)
    drafter.propose([request])
    drafted = request.draft.tokens
    request.tokens.extend([drafted[0], (drafted[1] + 1) % VOCABULARY, 7, 8])
    request.draft = request.steady = None
    drafter.propose([request])
    drafter.follow(Batch([Row(request, 8, samples=True)], BASE.block_size))
    shadow = drafter._shadows[request].request
    assert shadow.tokens == request.tokens
    assert shadow.num_computed == 8
    drafter.kv.check_integrity([shadow])


def test_a_draft_with_more_logits_than_the_target_never_proposes_what_the_target_lacks(models):
    wide = ModelRunner(tiny(4, vocabulary=VOCABULARY + 20), KV_TOKENS)
    poison(models.target)
    for params in (None, SamplingParams(temperature=5.0)):
        drafter = make_drafter(BASE, draft_runner=wide, vocabulary=VOCABULARY)
        requests = [Request(number, [number], 20, sampling=params) for number in range(4)]
        Engine(models.target, BASE, drafter=drafter).run(requests)
        assert sum(request.drafted for request in requests) > 40
        assert max(max(request.output) for request in requests) < VOCABULARY


def test_what_cannot_draft_is_refused(models):
    with pytest.raises(InputError, match="needs that model"):
        Engine(models.target, BASE)
    runner = ModelRunner(tiny(1), 20)
    with pytest.raises(InputError, match="one sequence of max_model_len 24"):
        make_drafter(BASE, draft_runner=runner, vocabulary=VOCABULARY)


def test_another_vocabulary_is_refused_with_the_overlap():
    target = {token: number for number, token in enumerate("abcdefgh")}
    refuse_pair(target, dict(target), 100, 100)
    other = {token: number for number, token in enumerate("abcdxyzw")}
    with pytest.raises(InputError, match=r"4 of the target's 8 tokens .* \(50\.0%; the draft has 8\)"):
        refuse_pair(target, other, 100, 10)
    with pytest.raises(InputError, match="another vocabulary"):
        refuse_pair(target, {**target, "i": 8}, 100, 10)


def test_a_draft_larger_than_its_target_is_refused():
    with pytest.raises(InputError, match="1,000 parameters and the target 999"):
        refuse_pair({"a": 0}, {"a": 0}, 999, 1000)

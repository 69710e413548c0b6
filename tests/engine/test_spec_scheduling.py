"""What drafts may take: tokens of the budget, free blocks, never another request's place; and how they are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.spec_decode.acceptance import estimate_alpha, expected_tokens, speedup
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.proposal import Draft, DraftCounts
from inferdoc.errors import InputError

CONFIG = EngineConfig(
    max_model_len=64,
    num_kv_blocks=64,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=32,
    speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=4),
)


@pytest.fixture
def right(hash_model):
    """Always right, four at a time."""
    return hash_model.Adversary(hash_model.truth, lambda request, position: True, lambda request: 4)


@pytest.fixture
def wrong(hash_model):
    return hash_model.Adversary(hash_model.truth, lambda request, position: False, lambda request: 4)


def rows(run) -> list[list[tuple[int, int]]]:
    return [[(id, tokens) for id, tokens, _ in batch] for batch in run.runner.batches]


def test_four_right_drafts_are_five_tokens_a_step_up_to_the_last(serve, right):
    """1 + 5 + 5 + 2: the last step has two tokens left to emit, so it checks one."""
    request = Request(0, [1, 2, 3], 13)
    run = serve(CONFIG, [request], drafter=right)
    assert rows(run) == [[(0, 3)], [(0, 5)], [(0, 5)], [(0, 2)]]
    assert (request.drafted, request.accepted) == (9, 9)
    assert request.token_times == [1.0] + [2.0] * 5 + [3.0] * 5 + [4.0] * 2
    assert request.tpot_s == pytest.approx(3.0 / 12)
    checked = [step.drafts for step in run.steps]
    assert checked[0] is None
    assert checked[1] == DraftCounts((1,) * 4, (1,) * 4, (0,) * 4)
    assert checked[3] == DraftCounts((1,), (1,), (0,))
    assert [(step.prefill_tokens, step.decode_rows, step.drafted) for step in run.steps] == [
        (3, 0, 0),
        (0, 1, 4),
        (0, 1, 4),
        (0, 1, 1),
    ]
    assert [step.context_tokens for step in run.steps] == [3, 8, 13, 15]


def test_lookahead_stops_at_the_longest_sequence_and_at_a_pool_that_holds_just_that(serve, right, wrong):
    """16 tokens at most, of which the last one's K/V are never there: four blocks of 4, however they are reserved."""
    for drafter in (right, wrong):
        for reservation in ("paged", "peak-forecast", "max-model-len", "per-request"):
            config = replace(CONFIG, max_model_len=16, num_kv_blocks=4, reservation=reservation)
            run = serve(config, [Request(0, [1, 2, 3], 13)], drafter=drafter)
            assert max(step.context_tokens for step in run.steps) == 15


def test_drafts_shrink_to_the_free_blocks_and_preempt_nobody(serve, wrong):
    """Two requests of 8 tokens in five blocks: the fifth goes to the first one's drafts, the other's find none."""
    config = replace(CONFIG, num_kv_blocks=5)
    requests = [Request(0, [1] * 6, 3), Request(1, [2] * 6, 3)]
    run = serve(config, requests, drafter=wrong)
    assert not any(request.preemptions for request in requests)
    assert rows(run)[1] == [(0, 2), (1, 2)]
    many = [Request(number, [number] * 5, 12) for number in range(3)]
    plain = [Request(number, [number] * 5, 12) for number in range(3)]
    config = replace(CONFIG, num_kv_blocks=8)
    serve(config, many, drafter=wrong)
    serve(replace(config, speculative_config=None), plain)
    assert [r.preemptions for r in many] == [r.preemptions for r in plain] != [0, 0, 0]


def test_rejected_drafts_give_their_blocks_back_at_once(hash_model, wrong):
    """In the step the drafts' blocks are held; after it those of the computed tokens, as in plain decoding."""
    clock = hash_model.Clock()
    runner = hash_model.Runner(clock, lambda batch: 1.0)
    engine = Engine(runner, CONFIG, clock, drafter=wrong)
    request = Request(0, [1] * 4, 8)
    held: list[int] = []
    runner.before_step = lambda batch: held.append(len(request.block_ids))
    engine.scheduler.add(request)
    for computed in (4, 5, 6, 7, 8):
        before = request.block_ids
        engine.step(0.0)
        assert request.num_computed == computed
        assert len(request.block_ids) == -(-computed // 4)
        assert computed == 4 or request.block_ids is not before, "tables are remembered by their list"
    assert held == [1, 3, 3, 3, 3]
    assert [step.kv.written for step in engine.steps] == [4, 9, 10, 11, 11]


def test_the_forecast_of_the_peak_knows_that_drafts_let_one_request_get_ahead(serve, hash_model):
    """In step, A has 5 tokens when B leaves, and 20 slots hold the peak. With drafts A is through before B is."""
    drafter = hash_model.Adversary(hash_model.truth, lambda request, position: request.id == 0, lambda request: 4)
    config = replace(CONFIG, reservation="peak-forecast", block_size=1, num_kv_blocks=21)
    for speculative, most in ((None, 2), (CONFIG.speculative_config, 1)):
        requests = [Request(0, [1], 20), Request(1, [2], 6)]
        run = serve(replace(config, speculative_config=speculative), requests, drafter=drafter if speculative else None)
        assert max(step.running for step in run.steps) == most
        assert not any(request.preemptions for request in requests)


def test_the_token_budget_covers_drafts_and_leaves_one_token_for_each_place(serve, wrong):
    config = replace(CONFIG, max_num_batched_tokens=10)  # 4 places, so 6 drafted tokens
    requests = [Request(number, [number], 20) for number in range(3)] + [Request(3, [3] * 30, 4, arrival_s=2.0)]
    run = serve(config, requests, drafter=wrong)
    # Three decodes with 4 + 2 + 0 drafts leave one token of ten for the prompt that came.
    assert rows(run)[2] == [(0, 5), (1, 3), (2, 1), (3, 1)]
    assert requests[3].token_times, "the prompt is not starved"
    assert max(sum(tokens for _, tokens in batch) for batch in rows(run)) == 10


def test_a_budget_without_room_for_drafts_is_refused():
    with pytest.raises(InputError, match="has none left for drafts"):
        replace(CONFIG, max_num_batched_tokens=4)


def test_preemption_drops_drafts(serve, right):
    """Checked at each step: a waiting request has none; after it came back it is drafted for again."""
    dropped = []

    def before_step(engine, batch):
        dropped.extend(r.id for r in engine.scheduler.waiting if r.preemptions)
        assert all(request.draft is None for request in engine.scheduler.waiting)

    requests = [Request(number, [number] * 5, 16) for number in range(4)]
    serve(replace(CONFIG, num_kv_blocks=8), requests, drafter=right, before_step=before_step)
    assert dropped
    assert all(request.accepted for request in requests)


def test_prefill_first_keeps_the_drafts_of_those_that_wait(serve, right):
    requests = [Request(0, [1, 2, 3], 12), Request(1, [5] * 40, 2, arrival_s=2.0)]
    drafts = []

    def before_step(engine, batch):
        drafts.append(requests[0].draft)

    config = replace(CONFIG, batching="prefill-first", max_num_batched_tokens=24)
    run = serve(config, requests, drafter=right, before_step=before_step)
    assert rows(run) == [[(0, 3)], [(0, 5)], [(1, 24)], [(1, 16)], [(0, 5), (1, 1)], [(0, 1)]]
    assert drafts[2] is drafts[3] is not None


def test_padding_of_a_static_batch_has_no_drafts(serve, wrong):
    requests = [Request(0, [1, 2], 2), Request(1, [3, 4], 9)]
    run = serve(replace(CONFIG, batching="static"), requests, drafter=wrong)
    assert rows(run)[3] == [(0, 1), (1, 5)]
    assert sum(step.padded_rows for step in run.steps) == 7


def test_an_arm_without_speculation_differs_in_one_field():
    assert CONFIG.difference(replace(CONFIG, speculative_config=None)) == ["speculative_config"]


def test_shortened_drafts():
    draft = Draft([4, 5, 6], torch.eye(3, dtype=torch.float64), accepted=2)
    assert draft.first(3) is draft
    assert draft.first(0) is None
    short = draft.first(1)
    assert (short.tokens, short.accepted, short.probabilities.tolist()) == ([4], 1, [[1.0, 0.0, 0.0]])


def test_counts_by_place():
    """Drafts of 3, 3, 2 and 1 tokens, of which 3, 1, 2 and 0 stood."""
    counts = DraftCounts.of([(3, 3), (3, 1)]) + DraftCounts.of([(2, 2), (1, 0)])
    assert counts == DraftCounts(drafted=(4, 3, 2), accepted=(3, 2, 1), rejected=(1, 1, 0))
    assert counts.conditional_rates() == [3 / 4, 2 / 3, 1.0]
    assert DraftCounts.of([]) + counts == counts


def test_alpha_is_the_likeliest_and_vllm_s_rate_lies_below():
    """A grid search over the likelihood of drafts of 5: alpha^j (1 - alpha) for j < 5 stood, alpha^5 for all."""
    stood = [5, 0, 2, 5, 1, 4, 5, 3]
    accepted, rejected = sum(stood), sum(j < 5 for j in stood)

    def likelihood(alpha: float) -> float:
        product = 1.0
        for j in stood:
            product *= alpha**j * (1 - alpha if j < 5 else 1)
        return product

    best = max((i / 10_000 for i in range(10_001)), key=likelihood)
    assert estimate_alpha(accepted, rejected) == pytest.approx(best, abs=1e-4)
    assert estimate_alpha(0, 0) is None
    assert (expected_tokens(0.8, 5) - 1) / 5 == pytest.approx(0.54, abs=0.005)


def test_expected_tokens_and_speedup():
    """By the sum over outcomes; at alpha = c = 1/2 a draft of one token neither gains nor loses."""
    for alpha, k in ((0.0, 3), (0.3, 1), (0.8, 4), (1.0, 5)):
        outcomes = [(j + 1) * alpha**j * (1 - alpha) for j in range(k)] + [(k + 1) * alpha**k]
        assert expected_tokens(alpha, k) == pytest.approx(sum(outcomes))
    assert speedup(0.5, 1, 0.5) == 1.0
    assert speedup(1.0, 4, 0.0) == 5.0
    assert speedup(0.6, 1, 0.1) == pytest.approx(1.6 / 1.1)
    assert speedup(0.6, 1, 0.1, verify_ratio=1.4) == pytest.approx(1.6 / 1.5)


class Recorder:
    """In place of CUDA graphs: repeats the work."""

    def capture(self, work):
        work()
        return work

    def free_bytes(self):
        return None


def test_steps_without_drafts_are_replayed_and_those_with_drafts_are_launched(hash_model):
    torch.manual_seed(1)
    shape = AutoConfig.for_model(
        "llama", vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    runner = ModelRunner(AutoModelForCausalLM.from_config(shape).double().eval(), 256, new_capturer=Recorder)
    config = replace(CONFIG, enforce_eager=False)
    drafter = hash_model.Adversary(
        lambda request, count: [0] * count, lambda request, position: True, lambda request: len(request.tokens) % 3
    )
    outputs = []
    for arm in (config, replace(config, speculative_config=None), replace(config, enforce_eager=True)):
        drafting = drafter if arm.speculative_config else None
        requests = [Request(number, [number, 5, 6], 20) for number in range(2)]
        result = Engine(runner, arm, drafter=drafting).run(requests)
        outputs.append([request.output for request in requests])
        decodes = [step for step in result.steps if not step.prefill_tokens]
        if arm.enforce_eager:
            assert all(step.bucket is None for step in decodes)
        else:
            assert all((step.bucket is None) == bool(step.drafted) for step in decodes)
            assert any(step.bucket for step in decodes)
            assert any("not replayed" in note for note in runner.notes) == (drafting is not None)
    assert outputs[0] == outputs[1] == outputs[2]

"""Memory: the largest step, the peak that it takes, and terms that add up to the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from inferdoc.devices import find_device
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.memory import (
    LargestStep,
    MemoryProfile,
    MemoryTerms,
    Reading,
    available_for_kv,
    foreign_note,
    profile,
)
from inferdoc.engine.runner import ModelRunner

GIB, MIB = 2**30, 2**20
STEP = LargestStep(tokens=64, context=100, sequences=4, decode_context=50, block_size=16)
PROFILE = MemoryProfile(activation_peak=3 * GIB, logits=GIB, outside_framework=2 * GIB, step=STEP)


def shapes(step: LargestStep) -> list[tuple[int, int, bool]]:
    """(tokens, K/V after the step, samples) of each row."""
    return [(row.num_tokens, row.end, row.samples) for row in step.batch(vocabulary=32, blocks=4).rows]


def test_the_largest_step_is_a_prompts_end_beside_decodes_and_all_rows_sample() -> None:
    assert shapes(STEP) == [(61, 100, True)] + [(1, 50, True)] * 3


def test_prompts_shorter_than_the_budget_come_together() -> None:
    step = replace(STEP, tokens=250)
    assert shapes(step) == [(100, 100, True), (100, 100, True), (49, 100, True), (1, 50, True)]


@pytest.mark.parametrize(("tokens", "sequences"), [(1, 1), (1, 4), (3, 4), (64, 64), (500, 2)])
def test_the_largest_step_stays_within_its_limits(tokens: int, sequences: int) -> None:
    rows = shapes(replace(STEP, tokens=tokens, sequences=sequences))
    assert sum(count for count, _, _ in rows) == min(tokens, 100 * sequences)
    assert len(rows) == min(tokens, sequences)
    assert all(count >= 1 for count, _, _ in rows)


def test_the_sequences_of_the_largest_step_fit_a_pool_of_few_blocks() -> None:
    batch = STEP.batch(vocabulary=32, blocks=4)
    assert {block for row in batch.rows for block in row.request.block_ids} == {0, 1, 2, 3}
    assert all(len(row.request.block_ids) * 16 >= row.end for row in batch.rows)


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    return ModelRunner(LlamaForCausalLM(config).eval(), 64)


def run_profile(runner: ModelRunner, step: LargestStep) -> MemoryProfile:
    runner.configure(EngineConfig(max_model_len=256, num_kv_blocks=4, max_num_seqs=64))
    device = find_device("cpu")
    return profile(runner, step, device=device, before_load=Reading.now(device), weight_bytes=0, vocabulary=4096)


def test_the_profile_holds_the_logits_of_every_row_that_can_sample(runner: ModelRunner) -> None:
    one, many = (run_profile(runner, replace(STEP, sequences=rows)) for rows in (1, 64))
    assert (one.logits, many.logits) == (4096 * 4, 64 * 4096 * 4)
    assert one.activation_peak is not None
    assert many.activation_peak is not None
    assert many.activation_peak >= many.logits
    assert many.activation_peak - one.activation_peak > 40 * 4096 * 4  # logits are the difference, for most of it
    assert one.outside_framework is not None


def test_the_profile_holds_the_logits_of_every_drafted_token_that_is_checked(runner: ModelRunner) -> None:
    plain = replace(STEP, sequences=8)
    (none, some), row = (run_profile(runner, replace(plain, drafted=k)) for k in (0, 12)), 4096 * 4
    assert (none.logits, some.logits) == (8 * row, 8 * 13 * row)
    assert none.activation_peak is not None
    assert some.activation_peak is not None
    assert some.activation_peak - none.activation_peak > 60 * row


def test_the_step_that_checks_drafts_has_a_full_batch_of_whole_drafts() -> None:
    checks = replace(STEP, drafted=5).checks(vocabulary=32, blocks=4)
    assert checks is not None
    assert [(row.num_tokens, row.drafted, row.end) for row in checks.rows] == [(6, 5, 50)] * 4
    assert all(list(row.draft.tokens) == row.request.tokens[45:50].tolist() for row in checks.rows if row.draft)
    assert STEP.checks(vocabulary=32, blocks=4) is None


def test_terms_and_remainder_add_up_to_the_budget() -> None:
    terms = MemoryTerms(budget=80 * GIB, weights=16 * GIB, profile=PROFILE, graphs=GIB, kv_pool=50 * GIB)
    parts = (terms.weights, PROFILE.activation_peak, terms.graphs, PROFILE.outside_framework, terms.kv_pool, terms.left)
    assert sum(part or 0 for part in parts) == 80 * GIB
    assert terms.left == 8 * GIB


def test_a_term_that_is_not_known_counts_as_nothing() -> None:
    unknown = MemoryProfile(None, GIB, None, STEP)
    assert MemoryTerms(budget=9, weights=4, profile=unknown, graphs=None, kv_pool=3).left == 2


def available(budget: int, free: int | None, *, on_card: bool = False, graphs: int | None = None) -> int:
    now = Reading(free, 0)
    return available_for_kv(
        budget=budget, weights=10 * GIB, profile=PROFILE, graphs=graphs, now=now, held=GIB, on_card=on_card
    )


def test_the_pool_takes_what_the_budget_leaves() -> None:
    assert available(40 * GIB, free=100 * GIB) == (40 - 10 - 3 - 2) * GIB
    assert available(40 * GIB, free=100 * GIB, graphs=GIB) == (40 - 10 - 3 - 2 - 1) * GIB
    assert available(40 * GIB, free=None) == 25 * GIB


def test_the_pool_takes_no_more_than_is_free_whatever_the_budget() -> None:
    # 12 GiB free and the small pool's 1 GiB, of which the next step's activations take 3
    assert available(400 * GIB, free=12 * GIB) == 10 * GIB


def test_a_card_keeps_some_of_the_budget_for_its_allocator() -> None:
    assert available(100 * GIB, free=200 * GIB, on_card=True) == 85 * GIB - 2 * GIB


def test_there_is_never_less_than_nothing() -> None:
    assert available(5 * GIB, free=100 * GIB) == 0


@pytest.mark.parametrize(
    ("free", "own", "way"),
    [(20 * GIB, 40 * GIB, None), (19 * GIB, 40 * GIB, "shrank by 1.00"), (22 * GIB, 40 * GIB, "grew by 2.00")],
)
def test_memory_that_another_process_takes_or_gives_back_is_said(free: int, own: int, way: str | None) -> None:
    note = foreign_note(Reading(50 * GIB, 10 * GIB), Reading(free, own), budget=40 * GIB)
    assert (note is None) if way is None else (note is not None and way in note and "another process" in note)


def test_a_small_change_of_free_memory_is_not_worth_a_word() -> None:
    assert foreign_note(Reading(50 * GIB, 0), Reading(50 * GIB - 200 * MIB, 0), budget=GIB) is None
    assert foreign_note(Reading(None, 0), Reading(GIB, 0), budget=GIB) is None

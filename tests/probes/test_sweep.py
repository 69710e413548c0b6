"""The sweep fits whatever pool there is, and times what it says."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine, WallClock
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch
from inferdoc.errors import InputError
from inferdoc.probes.sweep import _over_plain, measure_sweep, rounds


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    return ModelRunner(LlamaForCausalLM(config).eval(), 8192)


@pytest.mark.parametrize(
    ("tokens", "seqs", "length", "sizes"),
    [
        (8192, 8, 1024, [1, 2, 4, 8]),
        (8192, 6, 1024, [1, 2, 4, 6]),
        (912, 32, 896, [1, 2, 4]),  # no more than four sequences of 128 tokens and their output
        (2048, 64, 2048, [1, 2, 4, 8]),
        (64, 8, 64, [1]),
    ],
)
def test_the_largest_batch_that_the_pool_holds_is_timed(
    runner: ModelRunner, tokens: int, seqs: int, length: int, sizes: list[int]
) -> None:
    config = EngineConfig(
        max_model_len=length, num_kv_blocks=tokens // 16, max_num_seqs=seqs, max_num_batched_tokens=256
    )
    sweep = measure_sweep(runner, config, context=128, vocabulary=64, seed=0)
    assert [point.batch for point in sweep.decode] == sizes
    assert all(point.seconds and min(point.seconds) > 0 for point in sweep.decode)
    assert all(point.context <= 128 + 100 for point in sweep.decode)


def test_no_room_at_all_is_an_error_that_mends(runner: ModelRunner) -> None:
    config = EngineConfig(max_model_len=4, num_kv_blocks=1, max_num_seqs=1, block_size=4)
    with pytest.raises(InputError, match="raise --max-model-len or --memory"):
        measure_sweep(runner, config, context=128, vocabulary=64, seed=0)


@pytest.mark.parametrize("context", range(120, 136))
def test_drafts_are_checked_wherever_the_last_block_ends(runner: ModelRunner, context: int) -> None:
    """The sequence ends in each place of a block, also where its next token has no block yet."""
    config = EngineConfig(max_model_len=512, num_kv_blocks=128, max_num_seqs=2, max_num_batched_tokens=256)
    sweep = measure_sweep(runner, config, context=context, vocabulary=64, seed=0)
    assert sorted(sweep.verify) == [(batch, k) for batch in (1, 2) for k in (1, 2, 4, 8)]
    assert all(len(ratios) >= 3 and min(ratios) > 0 for ratios in sweep.verify.values())


def test_a_check_computes_all_rows_of_logits_and_leaves_the_sequences_as_they_were(runner: ModelRunner) -> None:
    """Two rows with 3 drafts: 8 rows of logits. What was computed is computed again, to the same K/V."""
    config = EngineConfig(max_model_len=64, num_kv_blocks=32, max_num_seqs=2, max_num_batched_tokens=64)
    engine = Engine(runner, config, WallClock())
    requests = [Request(i, [i + 1] * 20, 8) for i in range(2)]
    for each in requests:
        engine.scheduler.add(each)
    while any(len(each.output) < 4 for each in requests):
        engine.step(0.0)
    before = [(each.num_computed, list(each.tokens)) for each in requests]
    keys = [pages.keys.clone() for pages in runner._pages]
    checked: list[tuple[int, list[int]]] = []
    inner = runner.verify

    def verify(batch: Batch) -> list[list[int]]:
        checked.append((runner._logits(runner._arrays.build(batch)).shape[0], batch.starts))
        return inner(batch)

    runner.verify = verify  # type: ignore[method-assign]
    try:
        bare, ratios = _over_plain(runner, requests, [3], config.block_size)
    finally:
        del runner.verify  # type: ignore[method-assign]
    assert set(map(str, checked)) == {str((8, [count - 4 for count, _ in before]))}
    assert [(each.num_computed, list(each.tokens)) for each in requests] == before
    assert all(
        torch.allclose(a, pages.keys, atol=1e-5, equal_nan=True) for a, pages in zip(keys, runner._pages, strict=True)
    )
    assert len(bare) == len(ratios[3]) >= 3


def test_rounds_time_every_step_in_turn_after_a_warm_up() -> None:
    calls: list[str] = []
    first, second = rounds([lambda: calls.append("a"), lambda: calls.append("b")])
    assert calls == ["a", "b"] * (1 + len(first))
    assert len(first) == len(second) == 9

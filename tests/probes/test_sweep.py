"""The sweep fits whatever pool there is, and times what it says."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.runner import ModelRunner
from inferdoc.errors import InputError
from inferdoc.probes.sweep import measure_sweep


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
    assert sorted(sweep.verify) == [1, 2, 4, 8]

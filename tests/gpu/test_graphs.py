"""Captured decode steps against the same steps launched one by one: the tokens must be the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch


@pytest.fixture
def eager(backend) -> EngineConfig:
    return EngineConfig(
        max_model_len=512, num_kv_blocks=256, max_num_seqs=12, max_num_batched_tokens=64, attention_backend=backend
    )


class Watched(ModelRunner):
    """Notes the rows of each step and the bucket of the graph that computed it."""

    def __init__(self, model: torch.nn.Module, kv_tokens: int) -> None:
        super().__init__(model, kv_tokens)
        self.seen: list[tuple[int, int | None]] = []

    def execute(self, batch: Batch) -> list[int]:
        tokens = super().execute(batch)
        self.seen.append((len(batch.rows), self.last_bucket))
        return tokens


def generate(runner: ModelRunner, config: EngineConfig, lengths: list[tuple[int, int]]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    requests = [
        Request(i, torch.randint(512, (prompt,), generator=generator).tolist(), output)
        for i, (prompt, output) in enumerate(lengths)
    ]
    Engine(runner, config).run(requests)
    return [request.output for request in requests]


LOAD = [(5, 40), (90, 12), (33, 25), (200, 30), (1, 50), (64, 8), (16, 33), (17, 19), (48, 21)]


def test_graphs_and_eager_give_the_same_tokens(small_model, eager):
    runner = ModelRunner(small_model, eager.kv_tokens)
    expected = generate(runner, eager, LOAD)
    assert len({tuple(output[:8]) for output in expected}) == len(expected), "outputs must vary"
    graphs = replace(eager, enforce_eager=False)
    assert generate(runner, graphs, LOAD) == expected
    assert runner.notes == []
    assert runner.last_bucket is not None, "the last step was a decode: a graph computed it"


@pytest.mark.parametrize("rows", [1, 3, 5, 9, 12])
def test_trap_7_padded_rows_change_nothing_and_write_nothing(small_model, eager, rows):
    """The pool is full of NaN: a padding row that read or wrote a request's pages would show."""
    runner = Watched(small_model, eager.kv_tokens)
    load = [(7 + i, 12) for i in range(rows)]
    expected = generate(runner, eager, load)
    graphs = replace(eager, enforce_eager=False)
    runner.configure(graphs)
    runner.seen.clear()
    for pages in runner._pages:
        pages.keys[: eager.kv_tokens] = float("nan")
        pages.values[: eager.kv_tokens] = float("nan")
    assert generate(runner, graphs, load) == expected
    replayed = [(count, bucket) for count, bucket in runner.seen if bucket is not None]
    assert max(count for count, _ in replayed) == rows
    assert any(bucket > count for count, bucket in replayed) or rows == 1, "some step was padded"
    owned = sum(-(-(prompt + output) // eager.block_size) for prompt, output in load)
    written = int((~runner._pages[0].keys[: eager.kv_tokens].isnan()).any(dim=(1, 2)).sum())
    assert written <= owned * eager.block_size


def test_trap_9_captured_on_short_sequences_replayed_on_long_ones(small_model, eager):
    """Nothing that grows may be fixed in the graph: capture, decode at length 8, then at 400 with the same graphs."""
    runner = ModelRunner(small_model, eager.kv_tokens)
    graphs = replace(eager, enforce_eager=False)
    assert generate(runner, graphs, [(2, 6)]) == generate(runner, eager, [(2, 6)])
    long = [(400, 60), (3, 60)]
    assert generate(runner, graphs, long) == generate(runner, eager, long)


def test_fused_layers_give_the_same_tokens(small_model, eager):
    runner = ModelRunner(small_model, eager.kv_tokens)
    expected = generate(runner, eager, LOAD)
    fused = replace(eager, enforce_eager=False, enable_fusion=True)
    ours = generate(runner, fused, LOAD)
    assert runner.notes == []
    different = [a == b for a, b in zip(ours, expected, strict=True)].count(False)
    assert different <= 1, "float32 rounds otherwise in a merged product; more than a rare tie is a defect"


def test_the_two_arms_of_a_comparison_keep_their_graphs(small_model, eager):
    runner = ModelRunner(small_model, eager.kv_tokens)
    one, two = replace(eager, enforce_eager=False), replace(eager, enforce_eager=False, max_num_seqs=6)
    first, second = generate(runner, one, LOAD), generate(runner, two, LOAD)
    kept = dict(runner._kept)
    assert generate(runner, one, LOAD) == first
    assert generate(runner, two, LOAD) == second
    assert dict(runner._kept) == kept, "nothing was captured again"


def test_a_model_that_asks_the_card_for_a_number_falls_back_to_eager_launches(small_model, eager):
    """A capture does not allow that. torch 2.11 left its memory pool open, and empty_cache() failed ever after."""

    def ask(module: torch.nn.Module, arguments: object, output: object) -> None:
        small_model.lm_head.weight.sum().item()

    runner = ModelRunner(small_model, eager.kv_tokens)
    expected = generate(runner, eager, LOAD)
    stream = torch.cuda.current_stream()
    graphs = replace(eager, enforce_eager=False)
    handle = small_model.model.layers[1].register_forward_hook(ask)
    runner.configure(graphs)
    (note,) = runner.notes
    assert "CUDA graphs were left out" in note
    assert "operation not permitted when stream is capturing" in note, "the cause, not what followed from it"
    assert torch.cuda.current_stream() == stream
    torch.cuda.empty_cache()
    assert generate(runner, graphs, LOAD) == expected
    assert runner.last_bucket is None
    handle.remove()
    again = ModelRunner(small_model, eager.kv_tokens)
    assert generate(again, graphs, LOAD) == expected
    assert again.notes == []

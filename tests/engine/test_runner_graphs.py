"""Decode steps replayed as graphs, on a stand-in for CUDA graphs that bakes what a real one bakes.

The stand-in records every operator that the captured work dispatches, with its Python arguments as they were, and runs
the same list again on the same persistent tensors. As on CUDA, an operator that would have to read a value back to
Python is refused.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine import graphs
from inferdoc.engine.batch import StepInput
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.graphs import DecodeLayout, buckets
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.sampling import SamplingParams
from inferdoc.engine.scheduler import Batch, Row

EAGER = EngineConfig(max_model_len=64, num_kv_blocks=48, block_size=4, max_num_seqs=7, max_num_batched_tokens=64)
GRAPHS = replace(EAGER, enforce_eager=False)
PROMPTS = [[5, 17, 33, 2, 61, 8, 90, *tail] for tail in ([1], [9, 4, 7], [], [3] * 9, [9, 4, 7])] + [[44], [7] * 4]
LENGTH = 30


class Tape(TorchDispatchMode):
    """The operators that ran while it was on, to be run again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out

    def launch(self, kernel: Callable[..., Any], *args: Any) -> Any:
        """A kernel that is no operator: one entry of the tape, whatever it does inside."""
        with _disable_current_modes():
            out = kernel(*args)
        self.calls.append((kernel, args, {}, out))
        return out

    def replay(self) -> None:
        values: dict[int, torch.Tensor] = {}
        for func, args, kwargs, out in self.calls:
            args, kwargs = tree_map_only(torch.Tensor, lambda t: values.get(id(t), t), (args, kwargs))
            for then, now in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                values[id(then)] = now


class TapeCapturer:
    """Counts captures, in order of size of the logits' rows; may be told to fail at one of them."""

    def __init__(self, log: list[Tape], fail_at: int | None) -> None:
        self.log = log
        self.fail_at = fail_at
        self.free = 10_000

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.fail_at is not None and len(self.log) >= self.fail_at:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        with Tape() as tape:
            work()
        self.log.append(tape)
        self.free -= 100
        return tape.replay

    def free_bytes(self) -> int:
        return self.free


def build(dtype: torch.dtype = torch.float64, name: str = "llama", **changes: Any) -> torch.nn.Module:
    """Weights N(0, 0.25), so that outputs vary: with the usual small ones every model repeats one token."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        name,
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        **changes,
    )
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
    return model


def taped(model: torch.nn.Module, fail_at: int | None = None) -> SimpleNamespace:
    log: list[Tape] = []
    runner = ModelRunner(model, EAGER.kv_tokens, new_capturer=lambda: TapeCapturer(log, fail_at))
    return SimpleNamespace(runner=runner, log=log)


@pytest.fixture
def tiny() -> SimpleNamespace:
    return taped(build())


def poison(runner: ModelRunner) -> None:
    """NaN wherever nothing is stored, the scrap block included."""
    for module, _ in runner.layers:
        module.inferdoc_layer.keys.fill_(torch.nan)
        module.inferdoc_layer.values.fill_(torch.nan)


def serve(runner: ModelRunner, config: EngineConfig, **settings: Any) -> SimpleNamespace:
    """All prompts at once on poisoned pages, with the bucket of each step."""
    engine = Engine(runner, config)
    poison(runner)
    used: list[int | None] = []
    rows: list[int] = []
    execute = runner.execute

    def watched(batch: Batch) -> list[int]:
        tokens = execute(batch)
        used.append(runner.last_bucket)
        rows.append(len(batch.rows))
        return tokens

    engine.runner = SimpleNamespace(execute=watched)
    requests = [Request(i, prompt, LENGTH - 3 * i, **settings) for i, prompt in enumerate(PROMPTS)]
    engine.run(requests)
    return SimpleNamespace(outputs=[r.output for r in requests], requests=requests, buckets=used, rows=rows)


def decode_batch(positions: list[int], *, block_size: int = 4, first_block: int = 0) -> Batch:
    """One decode row for each request, with its own blocks."""
    rows = []
    block = first_block
    for i, position in enumerate(positions):
        request = Request(i, [(7 * i + p) % 97 for p in range(position + 1)], 5)
        request.block_ids = list(range(block, block + position // block_size + 1))
        block += len(request.block_ids)
        request.num_computed = position
        rows.append(Row(request, 1, samples=True))
    return Batch(rows, block_size)


def fill(runner: ModelRunner, batch: Batch) -> None:
    """Random K/V in the places that the batch's rows have behind them, NaN elsewhere."""
    poison(runner)
    generator = torch.Generator().manual_seed(3)
    for module, _ in runner.layers:
        pages = module.inferdoc_layer
        for row in batch.rows:
            for p in range(row.start):
                slot = row.request.block_ids[p // batch.block_size] * batch.block_size + p % batch.block_size
                pages.keys[slot] = torch.randn(pages.keys.shape[1:], generator=generator, dtype=pages.keys.dtype)
                pages.values[slot] = torch.randn(pages.values.shape[1:], generator=generator, dtype=pages.keys.dtype)


def test_buckets():
    assert buckets(1) == [1]
    assert buckets(7) == [1, 2, 4, 7]
    assert buckets(8) == [1, 2, 4, 8]
    assert buckets(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert buckets(100) == [*buckets(64), 80, 96, 100]
    assert buckets(256) == [*buckets(64), *range(80, 257, 16)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_blocks": 18},
        {"num_kv_blocks": 18, "enable_prefix_caching": True, "max_num_batched_tokens": 9},
        {"batching": "static"},
        {"batching": "prefill-first"},
        {"reservation": "max-model-len", "max_num_seqs": 3},
        {"block_size": 16, "num_kv_blocks": 11},
    ],
    ids=lambda changes: ", ".join(f"{k}={v}" for k, v in changes.items()) or "plain",
)
def test_a_whole_run_gives_the_tokens_of_eager_launches(tiny, changes):
    expected = serve(tiny.runner, replace(EAGER, **changes))
    assert set(expected.buckets) == {None}
    run = serve(tiny.runner, replace(GRAPHS, **changes))
    assert not tiny.runner.notes
    assert run.outputs == expected.outputs
    assert len({tuple(output) for output in run.outputs}) >= 5, "outputs must vary"
    replayed = [(n, b) for n, b in zip(run.rows, run.buckets, strict=True) if b is not None]
    assert len(replayed) > len(run.rows) / 2
    assert all(
        bucket == min(size for size in buckets(7 if "max_num_seqs" not in changes else 3) if size >= rows)
        for rows, bucket in replayed
    )
    if changes.get("num_kv_blocks") == 18:
        assert sum(request.preemptions for request in run.requests) >= 1
        assert None in run.buckets[5:], "steps that recompute are mixed"
    if changes.get("enable_prefix_caching"):
        assert sum(request.num_cached for request in run.requests) > 0


def test_sampled_tokens_equal_those_of_eager_launches(tiny):
    settings = {"sampling": SamplingParams(temperature=1.0, top_k=20, seed=5)}
    expected = serve(tiny.runner, EAGER, **settings).outputs
    run = serve(tiny.runner, GRAPHS, **settings)
    assert run.outputs == expected
    assert any(run.buckets)
    assert run.outputs != serve(tiny.runner, GRAPHS).outputs


def test_captured_largest_first(tiny):
    tiny.runner.configure(GRAPHS)
    rows = [next(out.shape[0] for f, _, _, out in reversed(t.calls) if "argmax" in str(f)) for t in tiny.log]
    assert rows == [7, 4, 2, 1]
    assert tiny.runner.graph_bytes == 400


class BakesItsWidth(DecodeLayout):
    """What a graph must never do: the number of blocks is a Python int, as it was at capture."""

    def __init__(self, step: graphs.DecodeStep) -> None:
        longest = 2 if isinstance(step.lengths, torch.Tensor) else 0
        super().__init__(replace(step, block_tables=step.block_tables[:, :longest]))


class ReadsItsWidth(DecodeLayout):
    """The same with a number that is read from the device."""

    def __init__(self, step: graphs.DecodeStep) -> None:
        longest = -(-int(step.lengths.max()) // step.block_size)
        super().__init__(replace(step, block_tables=step.block_tables[:, :longest]))


def _largest_difference(runner: ModelRunner, positions: list[int]) -> float:
    """Between a replay and eager launches, on the same K/V."""
    batch = decode_batch(positions)
    found = []
    for config in (EAGER, GRAPHS):
        runner.configure(config)
        fill(runner, batch)
        found.append(runner.logits(batch))
        assert (runner.last_bucket is None) == config.enforce_eager
    return float((found[0] - found[1]).abs().max())


def test_trap_9_captured_short_replayed_long(tiny):
    """At capture every row has one token; replays have up to the longest sequence."""
    for positions in ([0], [3, 0], [4, 7, 8, 3], [62, 40, 1, 9, 30], [61]):
        assert _largest_difference(tiny.runner, positions) < 1e-9


def test_trap_9_a_width_baked_into_the_graph_is_found(tiny, monkeypatch):
    monkeypatch.setattr("inferdoc.engine.runner.DecodeLayout", BakesItsWidth)
    assert _largest_difference(tiny.runner, [5, 7]) < 1e-9, "it is right where the context is short"
    assert _largest_difference(tiny.runner, [62, 40]) > 1e-2


def test_trap_9_a_width_read_from_the_device_cannot_be_captured(tiny, monkeypatch):
    expected = serve(tiny.runner, EAGER).outputs
    monkeypatch.setattr("inferdoc.engine.runner.DecodeLayout", ReadsItsWidth)
    run = serve(tiny.runner, GRAPHS)
    assert run.outputs == expected
    assert set(run.buckets) == {None}
    (note,) = tiny.runner.notes
    assert note.startswith("CUDA graphs were left out")
    assert "capturing" in note


@pytest.mark.parametrize("kv_tokens", [48, 50])
def test_trap_7_padding_writes_to_no_slot_of_the_pool_and_changes_no_row(tiny, kv_tokens):
    """5 rows in a bucket of 7: only their own 5 slots are written, the last slot of the pool keeps what it holds."""
    runner = tiny.runner
    runner.resize(kv_tokens)
    batch = decode_batch([3, 9, 6, 2, 5])
    alone = []
    for row in batch.rows:
        runner.configure(GRAPHS)
        fill(runner, batch)
        alone.append(runner.logits(Batch([row], 4))[0])
        assert runner.last_bucket == 1
    fill(runner, batch)
    before = [m.inferdoc_layer.keys[:kv_tokens].clone() for m, _ in runner.layers]
    together = runner.logits(batch)
    assert runner.last_bucket == 7
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-9, atol=1e-9)
    first = runner.layers[0][0].inferdoc_layer
    assert first.keys[kv_tokens:].isfinite().any(), "padding did write, to scrap"
    own = {row.request.block_ids[row.start // 4] * 4 + row.start % 4 for row in batch.rows}
    for (module, _), was in zip(runner.layers, before, strict=True):
        pages = module.inferdoc_layer
        assert len(pages.keys) >= kv_tokens + 4, "the scrap block is not taken from the pool"
        changed = (pages.keys[:kv_tokens].nan_to_num(-1.0) != was.nan_to_num(-1.0)).flatten(1).any(dim=1)
        assert set(changed.nonzero()[:, 0].tolist()) == own


def test_stale_rows_of_a_larger_step_are_harmless(tiny):
    runner = tiny.runner
    runner.configure(GRAPHS)
    large, small = decode_batch([20, 30, 10, 25, 17]), decode_batch([9, 2, 5])
    fill(runner, small)
    expected = runner.logits(small)
    fill(runner, large)
    runner.logits(large)
    fill(runner, small)
    torch.testing.assert_close(runner.logits(small), expected, rtol=0, atol=0)


def test_logits_outlive_the_next_replay(tiny):
    tiny.runner.configure(GRAPHS)
    batch = decode_batch([3])
    fill(tiny.runner, batch)
    first = tiny.runner.logits(batch)
    kept = first.clone()
    other = decode_batch([30], first_block=5)
    fill(tiny.runner, other)
    assert not torch.equal(tiny.runner.logits(other), kept)
    assert torch.equal(first, kept)


def test_logits_of_chosen_tokens_are_launched_and_may_be_none(tiny):
    tiny.runner.configure(GRAPHS)
    batch = decode_batch([3, 5])
    fill(tiny.runner, batch)
    both = tiny.runner.logits(batch).clone()
    assert tiny.runner.last_bucket is not None
    second = tiny.runner.logits(batch, np.array([1]))
    assert tiny.runner.last_bucket is None
    torch.testing.assert_close(second, both[1:])
    assert tiny.runner.logits(batch, np.arange(0)).shape == (0, both.shape[1])


@pytest.mark.parametrize("fail_at", [0, 2])
def test_a_failing_capture_is_noted_and_eager_launches_go_on(fail_at):
    tiny = taped(build(), fail_at)
    expected = serve(tiny.runner, EAGER).outputs
    assert tiny.runner.notes == []
    run = serve(tiny.runner, GRAPHS)
    assert run.outputs == expected
    assert set(run.buckets) == {None}
    assert tiny.runner.graph_bytes is None
    assert tiny.runner.notes == [
        "CUDA graphs were left out, steps are launched operation by operation: OutOfMemoryError: CUDA out of memory."
    ]
    tiny.runner.configure(EAGER)
    assert tiny.runner.notes == []


def test_without_a_card_there_are_no_graphs():
    runner = ModelRunner(build(), EAGER.kv_tokens)
    runner.configure(GRAPHS)
    assert runner.notes == ["CUDA graphs were left out: they need a CUDA device"]
    assert len(serve(runner, GRAPHS).outputs[0]) == LENGTH


def test_graphs_are_kept_for_the_arms_of_a_comparison_and_dropped_beyond(tiny):
    runner, log = tiny.runner, tiny.log
    other, third = replace(GRAPHS, block_size=8, num_kv_blocks=24), replace(GRAPHS, max_num_seqs=2)
    runner.configure(GRAPHS)
    assert len(log) == 4
    for config in (EAGER, GRAPHS, replace(GRAPHS, enable_prefix_caching=True)):
        runner.configure(config)
    assert len(log) == 4, "what these change is not in the graphs"
    runner.configure(other)
    assert len(log) == 8
    for config in (GRAPHS, other):
        runner.configure(config)
        assert len(serve(runner, config).outputs[0]) == LENGTH
    assert len(log) == 8 + 4, "the larger scrap block moved the pool once"
    assert runner.graph_bytes == 800
    runner.configure(third)
    assert len(log) == 12 + 2
    assert runner.graph_bytes == 600, "the oldest are gone"


def test_a_new_pool_is_captured_anew(tiny):
    runner = tiny.runner
    before = serve(runner, GRAPHS).outputs
    runner.resize(EAGER.kv_tokens + 5)
    assert len(tiny.log) == 8
    assert runner.kv_tokens == EAGER.kv_tokens + 5
    run = serve(runner, GRAPHS)
    assert run.outputs == before
    assert any(run.buckets)


def test_merging_weights_drops_graphs_that_read_the_old_ones(tiny):
    runner = tiny.runner
    expected = serve(runner, GRAPHS).outputs
    fused = replace(GRAPHS, enable_fusion=True)
    assert serve(runner, fused).outputs == expected
    assert len(tiny.log) == 8
    assert runner.graph_bytes == 400, "those captured before are gone"
    assert serve(runner, GRAPHS).outputs == expected
    assert len(tiny.log) == 12
    assert serve(runner, fused).outputs == expected
    assert len(tiny.log) == 12


def test_rows_of_prompts_are_launched_eagerly(tiny):
    tiny.runner.configure(GRAPHS)
    request = Request(0, [1, 2, 3], 4)
    request.block_ids = [0]
    tiny.runner.execute(Batch([Row(request, 3, samples=True)], 4))
    assert tiny.runner.last_bucket is None
    request.num_computed, request.tokens = 3, [1, 2, 3, 9]
    tiny.runner.execute(Batch([Row(request, 1, samples=True)], 4))
    assert tiny.runner.last_bucket == 1


def test_rows_that_do_not_sample_give_no_token(tiny):
    """A prompt of one-token chunks, and a finished row of a static batch."""
    tiny.runner.configure(GRAPHS)
    batch = decode_batch([3, 6, 5])
    fill(tiny.runner, batch)
    tokens = tiny.runner.execute(batch)
    mixed = Batch([replace(row, samples=i != 1) for i, row in enumerate(batch.rows)], 4)
    fill(tiny.runner, batch)
    assert tiny.runner.execute(mixed) == [tokens[0], tokens[2]]
    silent = Batch([replace(row, samples=False) for row in batch.rows], 4)
    assert tiny.runner.execute(silent) == []


@pytest.fixture
def triton_on_tape(monkeypatch):
    """The Triton backend under its interpreter, each of its launches one entry of the tape.

    The layout is copied when it is recorded: later changes of its numbers do not reach a replay, as on a card.
    """
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton does not interpret here")
    from inferdoc.engine.attention.triton_layout import TritonLayout

    def recorded(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: TritonLayout, *args: Any) -> Any:
            tape = _get_current_dispatch_mode()
            return tape.launch(method, copy.copy(self), *args) if isinstance(tape, Tape) else method(self, *args)

        return call

    monkeypatch.setattr(TritonLayout, "store", recorded(TritonLayout.store))
    monkeypatch.setattr(TritonLayout, "attend", recorded(TritonLayout.attend))


def test_trap_9_the_triton_backend_captured_short_replays_long(triton_on_tape):
    """Against the torch backend, eager and replayed, with padding and with rows of every length."""
    tiny = taped(build(torch.float32))
    triton = replace(GRAPHS, attention_backend="triton")
    for positions in ([0], [3, 0, 9], [62, 40, 1, 9, 30]):
        batch = decode_batch(positions)
        found = []
        for config in (EAGER, replace(triton, enforce_eager=True), triton):
            tiny.runner.configure(config)
            fill(tiny.runner, batch)
            found.append(tiny.runner.logits(batch))
            assert (tiny.runner.last_bucket is None) == config.enforce_eager
        assert not tiny.runner.notes
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-4)


def test_trap_7_the_triton_backend_skips_slot_minus_one(triton_on_tape):
    tiny = taped(build(torch.float32))
    tiny.runner.configure(replace(GRAPHS, attention_backend="triton"))
    batch = decode_batch([3, 9, 6])
    fill(tiny.runner, batch)
    assert tiny.runner.logits(batch).isfinite().all()
    assert tiny.runner.last_bucket == 4
    for module, _ in tiny.runner.layers:
        assert module.inferdoc_layer.keys[EAGER.kv_tokens :].isnan().all()


def test_a_whole_run_on_the_triton_backend(triton_on_tape):
    tiny = taped(build(torch.float32))
    triton = replace(GRAPHS, attention_backend="triton", max_num_batched_tokens=9, num_kv_blocks=18, max_num_seqs=3)
    outputs = []
    for config in (EAGER, triton):
        requests = [Request(i, prompt, 6) for i, prompt in enumerate(PROMPTS[3:])]
        Engine(tiny.runner, config).run(requests)
        outputs.append([request.output for request in requests])
    assert outputs[0] == outputs[1]
    assert not tiny.runner.notes


def test_a_capture_that_cannot_be_ended_is_cleaned_up_and_its_first_cause_told(monkeypatch):
    """As in torch 2.11: ending the broken capture fails too, the stream stays current and the memory pool open."""
    current, ended = ["main"], []

    @contextmanager
    def on(stream):
        before = current[0]
        current[0] = stream
        try:
            yield
        finally:
            current[0] = before

    @contextmanager
    def capture(graph, pool, stream):
        current[0] = stream
        try:
            yield
        finally:
            raise RuntimeError("capture was invalidated")

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=None))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda device, pool: ended.append((device, pool)))
    calls = itertools.count()

    def work():
        if next(calls) == 2:  # the first two are not captured
            raise ValueError("not permitted when stream is capturing")

    with pytest.raises(ValueError, match="not permitted when stream is capturing"):
        graphs.CudaCapturer(torch.device("cuda:1")).capture(work)
    assert current == ["main"]
    assert ended == [(1, (0, 7))]


def test_a_step_is_loaded_with_its_own_tables_and_padding_on_scrap():
    inputs = graphs.DecodeInputs(rows=8, table_width=6, block_size=4, scrap_block=9, device=torch.device("cpu"))
    for positions, bucket in (([20, 3, 7], 4), ([2, 5], 2), ([1], 8)):
        batch = decode_batch(positions)
        inputs.load(StepInput.from_batch(batch), bucket)
        view = inputs.view(bucket)
        for row, (request, position) in enumerate(zip((r.request for r in batch.rows), positions, strict=True)):
            used = position // 4 + 1
            assert view.block_tables[row, :used].tolist() == request.block_ids[:used]
        assert view.lengths.tolist() == [position + 1 for position in positions] + [1] * (bucket - len(positions))
        assert (view.block_tables[len(positions) :, 0] == 9).all()
        assert (view.slots[len(positions) :] == -1).all()

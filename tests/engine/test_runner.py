"""What a runner does with a configuration: backends, compilation, and saying what was left out."""

from __future__ import annotations

import importlib
import itertools
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.errors import InputError, MeasurementError

LAYERS = 2
PLAIN = EngineConfig(max_model_len=64, num_kv_blocks=32, block_size=4, max_num_seqs=4, max_num_batched_tokens=10)
COMPILED = replace(PLAIN, compile=True)


def build(dtype: torch.dtype = torch.float64, name: str = "llama", **changes: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        name,
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        **changes,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
    return model


def served(runner: ModelRunner, config: EngineConfig) -> list[list[int]]:
    requests = [Request(i, [(5 * i + 3 * j) % 97 for j in range(6 + 5 * i)], 12) for i in range(5)]
    Engine(runner, config).run(requests)
    return [request.output for request in requests]


class CountingBackend:
    """Runs the traced graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.graphs += 1
        attention = [node for node in module.graph.nodes if "paged_attention" in str(node.target)]
        assert len(attention) == LAYERS, "the whole model is one graph"
        return module.forward


@pytest.fixture(autouse=True)
def _compile_afresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("gpt_oss", {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}),
    ],
)
def test_a_compiled_model_gives_the_same_tokens_from_few_whole_graphs(name, changes):
    backend = CountingBackend()
    dtype = torch.float32 if name == "gpt_oss" else torch.float64  # its experts' product has no float64
    runner = ModelRunner(build(dtype, name, **changes), PLAIN.kv_tokens, compiler=backend)
    expected = served(runner, PLAIN)
    assert len({tuple(output) for output in expected}) == 5
    assert backend.graphs == 0
    runner.configure(COMPILED)
    assert runner.notes == []
    graphs = backend.graphs
    assert 1 <= graphs <= 4, "one for each of: one token, more of which all, one or none are sampled"
    assert served(runner, COMPILED) == expected
    runner.resize(PLAIN.kv_tokens + 8)
    assert served(runner, replace(COMPILED, num_kv_blocks=20, enable_prefix_caching=True)) == expected
    assert backend.graphs == graphs, "nothing is compiled in the middle of a run, or for another pool"
    assert served(runner, PLAIN) == expected


def test_a_fused_model_is_compiled_whole():
    backend = CountingBackend()
    runner = ModelRunner(build(), PLAIN.kv_tokens, compiler=backend)
    expected = served(runner, PLAIN)
    assert served(runner, replace(COMPILED, enable_fusion=True)) == expected
    assert runner.notes == []
    fused = backend.graphs
    assert served(runner, COMPILED) == expected
    assert backend.graphs > fused, "the unfused model is another"
    graphs = backend.graphs
    assert served(runner, replace(COMPILED, enable_fusion=True)) == expected
    assert backend.graphs == graphs


def test_a_failing_compilation_is_noted_and_the_model_runs_as_it_is():
    def broken(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        raise RuntimeError("no compiler here\nand more")

    runner = ModelRunner(build(), PLAIN.kv_tokens, compiler=broken)
    expected = served(runner, PLAIN)
    assert runner.notes == []
    assert served(runner, COMPILED) == expected
    (note,) = runner.notes
    assert note.startswith("torch.compile was left out: ")
    assert "no compiler here" in note
    assert "\n" not in note
    runner.configure(PLAIN)
    assert runner.notes == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler for the CPU")
def test_inductor_gives_the_same_tokens():
    runner = ModelRunner(build(), PLAIN.kv_tokens)
    expected = served(runner, PLAIN)
    assert served(runner, COMPILED) == expected
    assert runner.notes == []


def test_the_triton_backend_without_a_card_is_refused(monkeypatch):
    pytest.importorskip("triton")
    layout = importlib.import_module("inferdoc.engine.attention.triton_layout")
    monkeypatch.setattr(layout.knobs.runtime, "interpret", False)
    runner = ModelRunner(build(), PLAIN.kv_tokens)
    with pytest.raises(InputError, match=r"needs a CUDA device and the model is on cpu; use 'torch'"):
        runner.configure(replace(PLAIN, attention_backend="triton"))
    assert len(served(runner, PLAIN)[0]) == 12, "the runner is as it was"


def fail_from(monkeypatch: pytest.MonkeyPatch, call: int, error: Exception) -> None:
    """`torch.empty` in the runner fails at this call and after it."""
    calls = itertools.count(1)
    empty = torch.empty

    def limited(*size: int, **named: Any) -> torch.Tensor:
        if size != (0,) and next(calls) >= call:
            raise error
        return empty(*size, **named)

    monkeypatch.setattr(torch, "empty", limited)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")], ids=["host", "card"])
def test_a_pool_that_does_not_fit_leaves_nothing_to_write_into_until_one_is_there(monkeypatch, error):
    """The second layer's values fail: without care the first layer would have a pool, and the last none."""
    runner = ModelRunner(build(), PLAIN.kv_tokens)
    expected = served(runner, PLAIN)
    request = Request(0, [3, 4, 5], 1)
    request.block_ids = [0]
    batch = Batch([Row(request, 3, samples=True)], PLAIN.block_size)
    with monkeypatch.context() as patch:
        fail_from(patch, 4, error)
        with pytest.raises(type(error)):
            runner.resize(2 * PLAIN.kv_tokens)
        assert all(module.inferdoc_layer.keys.numel() == 0 for module, _ in runner.layers)
        for run in (runner.execute, runner.logits):
            with pytest.raises(MeasurementError, match="the K/V pool could not be allocated"):
                run(batch)
    runner.configure(PLAIN)  # there is memory again
    assert len(runner.layers[0][0].inferdoc_layer.keys) == 2 * PLAIN.kv_tokens
    assert served(runner, PLAIN) == expected


def test_a_scrap_block_that_does_not_fit_is_asked_for_again(monkeypatch):
    """Not taken for there, which would let the padding of graphs write past the pool."""
    runner = ModelRunner(build(), PLAIN.kv_tokens, new_capturer=lambda: None)
    with monkeypatch.context() as patch:
        fail_from(patch, 1, MemoryError())
        with pytest.raises(MemoryError):
            runner.configure(replace(PLAIN, enforce_eager=False))
    runner.configure(replace(PLAIN, enforce_eager=False))
    assert len(runner.layers[0][0].inferdoc_layer.keys) == PLAIN.kv_tokens + PLAIN.block_size


def test_a_dropped_pool_is_made_anew_by_configure():
    runner = ModelRunner(build(), PLAIN.kv_tokens)
    expected = served(runner, PLAIN)
    runner.drop_pool()
    assert all(module.inferdoc_layer.keys.numel() == 0 for module, _ in runner.layers)
    assert served(runner, PLAIN) == expected

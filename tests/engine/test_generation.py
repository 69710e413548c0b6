"""The engine on tiny random models gives transformers' own greedy tokens, whatever the schedule."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from inferdoc.engine.attention import reference
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner

LAYERS = 3
BASE = EngineConfig(max_model_len=64, num_kv_blocks=48, block_size=4, max_num_seqs=4, max_num_batched_tokens=64)
SHARED = [5, 17, 33, 2, 61, 8, 90]


def build() -> torch.nn.Module:
    """Weights N(0, 0.25), so that outputs vary: with the usual small ones every model repeats one token."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = AutoModelForCausalLM.from_config(config).double().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
    return model


def prompts() -> list[list[int]]:
    """Lengths around a block and more, some with a shared beginning, one of them twice."""
    tails = [[1], [9, 4, 7], [], [3] * 9, [9, 4, 7]]
    return [SHARED + tail for tail in tails] + [[44], [7, 7, 7, 7]]


@pytest.fixture(scope="module")
def tiny() -> SimpleNamespace:
    reference = build()
    length = 12
    expected = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        output = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=length,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected.append(output[0, len(prompt) :].tolist())
    assert all(len(output) == length for output in expected)
    return SimpleNamespace(runner=ModelRunner(build(), kv_tokens=BASE.kv_tokens), expected=expected, length=length)


@pytest.fixture
def generate(tiny, monkeypatch):
    """Serve all prompts; count the hook's calls; every page that holds nothing is NaN."""

    def _generate(config: EngineConfig) -> SimpleNamespace:
        calls = []
        attention = reference.paged_attention
        monkeypatch.setattr(reference, "paged_attention", lambda *args: calls.append(1) or attention(*args))
        tiny.runner.resize(BASE.kv_tokens)
        for module, _ in tiny.runner.layers:
            module.inferdoc_layer.keys.fill_(torch.nan)
            module.inferdoc_layer.values.fill_(torch.nan)
        requests = [Request(i, prompt, tiny.length) for i, prompt in enumerate(prompts())]
        result = Engine(tiny.runner, config).run(requests)
        assert len(calls) == LAYERS * len(result.steps)
        return SimpleNamespace(outputs=[request.output for request in requests], requests=requests, steps=result.steps)

    return _generate


def test_the_reference_outputs_vary(tiny):
    """Equality of constant outputs would prove nothing."""
    assert all(len(set(output)) >= 5 for output in tiny.expected)
    assert len({tuple(output) for output in tiny.expected}) == len({tuple(prompt) for prompt in prompts()})


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("reservation", ["paged", "max-model-len", "per-request"])
def test_policies_give_the_tokens_of_transformers(generate, tiny, batching, reservation):
    run = generate(replace(BASE, batching=batching, reservation=reservation))
    assert run.outputs == tiny.expected


@pytest.mark.parametrize("budget", [1, 3, 4, 5, 64])
@pytest.mark.parametrize("caching", [False, True])
def test_trap_19_chunk_sizes_give_the_tokens_of_transformers(generate, tiny, budget, caching):
    config = replace(BASE, max_num_batched_tokens=budget, max_num_seqs=min(budget, 4), enable_prefix_caching=caching)
    assert generate(config).outputs == tiny.expected


@pytest.mark.parametrize("block_size", [1, 2, 8, 16])
def test_block_sizes_give_the_tokens_of_transformers(generate, tiny, block_size):
    config = replace(
        BASE, block_size=block_size, num_kv_blocks=BASE.kv_tokens // block_size, enable_prefix_caching=True
    )
    assert generate(config).outputs == tiny.expected


def test_without_chunking_the_tokens_are_those_of_transformers(generate, tiny):
    config = replace(BASE, enable_chunked_prefill=False, max_num_batched_tokens=8)
    assert generate(config).outputs == tiny.expected


def test_trap_4_prefix_hits_give_the_tokens_of_transformers(generate, tiny):
    run = generate(replace(BASE, enable_prefix_caching=True, max_num_seqs=1))
    assert run.outputs == tiny.expected
    # 7 tokens are shared: one block of 4 hits; the prompt that comes twice has 10, of which two blocks hit.
    assert [request.num_cached for request in run.requests] == [0, 4, 4, 4, 8, 0, 0]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_trap_5_preemption_gives_the_tokens_of_transformers(generate, tiny, caching, batching):
    run = generate(replace(BASE, num_kv_blocks=10, enable_prefix_caching=caching, batching=batching))
    assert sum(request.preemptions for request in run.requests) >= 1
    assert run.outputs == tiny.expected


def test_trap_7_padded_rows_change_no_tokens(tiny):
    """Outputs of different lengths in static batches: rows that are done are computed on, the others do not notice."""
    lengths = [3, 12, 1, 7, 12, 2, 5]
    tiny.runner.resize(BASE.kv_tokens)
    requests = [Request(i, prompt, length) for i, (prompt, length) in enumerate(zip(prompts(), lengths, strict=True))]
    result = Engine(tiny.runner, replace(BASE, batching="static")).run(requests)
    assert sum(step.padded_rows for step in result.steps) == (9 + 0 + 11 + 5) + (0 + 10 + 7)
    for request, expected in zip(requests, tiny.expected, strict=True):
        assert request.output == expected[: request.output_length]


def test_the_pool_holds_what_its_bytes_per_token_say(tiny):
    """3 layers x 2 KV heads x (8 + 8) values x 8 bytes."""
    assert tiny.runner.kv_bytes_per_token == 3 * 2 * 16 * 8
    stored = sum(m.inferdoc_layer.keys.nbytes + m.inferdoc_layer.values.nbytes for m, _ in tiny.runner.layers)
    assert stored == tiny.runner.kv_bytes_per_token * tiny.runner.kv_tokens

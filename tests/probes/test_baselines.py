"""Baselines share the kernel: off and on differ in one switch of the scheduler, and give the same tokens.

On the embedded model in float32, on real requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.probes import all_probes
from inferdoc.probes.context import Collector, ProbeContext, SliceRequest
from inferdoc.probes.paired import Pair
from inferdoc.probes.plan import make_plan

HOW_A_STEP_IS_COMPUTED = ("attention_backend", "enforce_eager", "enable_fusion", "compile")
SWITCHED = {"enable_prefix_caching", "batching", "reservation", "enable_chunked_prefill", "speculative_config"}


@pytest.fixture(scope="module")
def context(prepared: ProbeContext) -> ProbeContext:
    """Its slice is ten requests of a few hundred tokens, with shared prefixes and outputs of different lengths."""
    context = replace(prepared, found=Collector(), runs={}, saturation={})
    all_probes()[0].observe(context)
    make_plan(context, [])
    context.slice = [
        SliceRequest(request.prompt[:200], 3 + 5 * (index % 3), None)
        for index, request in enumerate(context.slice[:10])
    ]
    context.history = []
    return context


@pytest.fixture(scope="module")
def pairs(context: ProbeContext) -> list[Pair]:
    """Those whose arms compute the same model in the same way: fewer bits make another model, a kernel is the way."""
    every = [pair for probe in all_probes() for pair in probe.comparisons(context) if not pair.compresses]
    return [pair for pair in every if not {"attention_backend", "enforce_eager"} & set(pair.off.difference(pair.on))]


def test_every_pair_of_every_probe_differs_in_one_switch_and_computes_steps_alike(pairs: list[Pair]) -> None:
    assert {pair.technique for pair in pairs} == {
        "prefix_caching",
        "continuous_batching",
        "paged_attention",
        "chunked_prefill",
        "speculative_ngram",
    }
    for pair in pairs:
        assert len(pair.off.difference(pair.on)) == 1, pair.id
        assert set(pair.off.difference(pair.on)) <= SWITCHED, pair.id
        assert pair.off.kv_tokens == pair.on.kv_tokens
        assert pair.off.block_size == pair.on.block_size
        for name in HOW_A_STEP_IS_COMPUTED:
            assert getattr(pair.off, name) == getattr(pair.on, name), pair.id


def outputs(context: ProbeContext, config: EngineConfig) -> list[list[int]]:
    return [request.output for request in context.serve(config).requests]


@pytest.fixture(scope="module")
def expected(context: ProbeContext) -> list[list[int]]:
    """Tokens of each request when it is alone in the engine, whole."""
    alone = context.config(max_num_seqs=1, max_num_batched_tokens=512, num_kv_blocks=64)
    requests = context.requests()
    for request in requests:
        context.engine(alone).run([request])
    return [request.output for request in requests]


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"batching": "static"},
        {"batching": "prefill-first"},
        {"reservation": "max-model-len"},
        {"reservation": "per-request"},
        {"reservation": "peak-forecast"},
        {"enable_prefix_caching": True},
        {"enable_chunked_prefill": False},
        {"reservation": "paged", "num_kv_blocks": 39},  # so few that requests are preempted
        {"reservation": "per-request", "num_kv_blocks": 39},
    ],
    ids=lambda switches: " ".join(f"{name}={value}" for name, value in switches.items()) or "base",
)
def test_every_baseline_gives_the_tokens_of_each_request_alone(
    context: ProbeContext, expected: list[list[int]], switches: dict[str, Any]
) -> None:
    assert outputs(context, context.config(**switches)) == expected


def test_the_small_pool_makes_the_scheduler_preempt(context: ProbeContext) -> None:
    run = context.serve(context.config(num_kv_blocks=39))
    assert sum(request.preemptions for request in run.requests) > 0


def test_both_arms_of_every_pair_give_the_same_tokens(context: ProbeContext, pairs: list[Pair]) -> None:
    for pair in {pair.technique: pair for pair in pairs}.values():
        if pair.trial is None:
            off, on = (outputs(context, config) for config in (pair.off, pair.on))
        else:
            off, on = (
                [request.output for request in pair.trial(context, pair, config).run.requests if request.completed]
                for config in (pair.off, pair.on)
            )
        assert off == on, pair.id
        assert any(len(set(output)) > 1 for output in off) or pair.trial, pair.id

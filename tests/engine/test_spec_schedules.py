"""Speculation under any load and configuration gives the tokens of plain decoding, whatever the drafts are worth."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import Alone, tiny_model

from inferdoc.engine.attention.cpu import why_unavailable
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.spec_decode.config import SpeculativeConfig

LONGEST = 24
KV_TOKENS = 64
RIGHT: dict[str, Callable[[Request, int], bool]] = {
    "always right": lambda request, position: True,
    "always wrong": lambda request, position: False,
    "alternating": lambda request, position: position % 2 == 0,
    "random": lambda request, position: random.Random(f"{request.id} {position}").random() < 0.7,
}


@st.composite
def loads(draw) -> tuple[EngineConfig, list[Request]]:
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    reservation = draw(st.sampled_from(["paged", "paged", "paged", "peak-forecast", "max-model-len", "per-request"]))
    max_num_seqs = draw(st.integers(1, 4))
    config = EngineConfig(
        max_model_len=LONGEST,
        num_kv_blocks=draw(st.integers(-(-LONGEST // block_size), KV_TOKENS // block_size)),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.sampled_from([1, 2, 5, 12, 40])),
        batching=draw(st.sampled_from(["continuous", "continuous", "prefill-first", "static"])),
        enable_chunked_prefill=draw(st.booleans()),
        reservation=reservation,
        enable_prefix_caching=reservation in ("paged", "peak-forecast") and draw(st.booleans()),
        speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=draw(st.integers(1, 5))),
    )
    requests = []
    for number in range(draw(st.integers(1, 7))):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST - 1))
        output = draw(st.integers(1, LONGEST - len(prompt)))
        declared = draw(st.none() | st.integers(1, LONGEST))
        requests.append(Request(number, prompt, output, draw(st.sampled_from([0.0, 0.5, 3.0, 9.0])), declared))
    return config, requests


def lengths(config: EngineConfig, vary: bool) -> Callable[[Request], int]:
    """All that may be drafted, or another number of tokens at each length, now and then none."""
    most = config.speculative_config.num_speculative_tokens
    if not vary:
        return lambda request: most
    return lambda request: random.Random(len(request.tokens)).randint(0, most)


def watch(engine: Engine, batch) -> None:
    """Drafts keep to the request's length, to the budget and to the blocks that are held."""
    config, spare = engine.config, engine.config.max_num_batched_tokens - engine.config.max_num_seqs
    assert batch.drafted == sum(row.drafted for row in batch.rows) <= spare
    for row in batch.rows:
        if row.draft is not None:
            assert row.num_tokens == 1 + row.drafted
            assert row.end <= row.request.max_length - 1
            assert row.end <= len(row.request.block_ids) * config.block_size
    for request in engine.scheduler.waiting:
        assert request.draft is None, "preempted with a draft"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(load=loads(), kind=st.sampled_from(sorted(RIGHT)), vary=st.booleans(), data=st.data())
def test_trap_21_any_drafts_under_any_load_give_the_tokens_of_plain_decoding(serve, hash_model, load, kind, vary, data):
    """On the hash model, which notices any K/V of a wrong token; some requests are aborted while drafts are out."""
    config, requests = load
    victims = data.draw(st.dictionaries(st.integers(0, 12), st.sampled_from(requests), max_size=2))

    def before_step(engine, batch):
        watch(engine, batch)
        victim = victims.get(len(engine.steps))
        if victim and victim not in [row.request for row in batch.rows]:
            engine.scheduler.abort(victim)

    drafter = hash_model.Adversary(hash_model.truth, RIGHT[kind], lengths(config, vary))
    run = serve(config, requests, before_step=before_step, drafter=drafter)
    for request in requests:
        assert request.accepted <= request.drafted
        assert request.draft is None
        if request.completed:
            assert len(request.token_times) == request.output_length
    drafted = sum(step.drafted for step in run.steps)
    accepted = sum(sum(step.drafts.accepted) for step in run.steps if step.drafts)
    if kind == "always right":
        assert accepted == drafted
    if kind == "always wrong":
        assert accepted == 0
    honest = all((request.declared_max or LONGEST) >= request.output_length for request in requests)
    if config.reservation != "paged" and honest:
        assert not any(request.preemptions for request in requests)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(load=loads(), kind=st.sampled_from(["always wrong", "alternating"]))
def test_trap_21_only_verified_tokens_are_published(serve, hash_model, load, kind):
    """Every cached block of a running request holds the K/V of its own, final tokens at every step."""
    config, requests = load
    config = replace(config, reservation="paged", enable_prefix_caching=True)

    def before_step(engine, batch):
        kv, size = engine.scheduler.kv, config.block_size
        for request in engine.scheduler.running:
            tokens = [*request.prompt, *hash_model.expected(request.prompt, request.output_length)]
            for index, block in enumerate(request.block_ids):
                if kv.cache.is_cached(block):
                    end = (index + 1) * size
                    assert end <= request.num_computed
                    assert request.tokens[:end].tolist() == tokens[:end]
                    assert engine.runner.slots[(block + 1) * size - 1] == hash_model.state(tokens[:end])

    serve(
        config,
        requests,
        before_step=before_step,
        drafter=hash_model.Adversary(hash_model.truth, RIGHT[kind], lengths(config, vary=False)),
    )


@pytest.mark.parametrize(
    ("backend", "dtype"), [("torch", torch.float64), ("cpu", torch.float32)], ids=["torch-float64", "cpu-float32"]
)
def test_trap_21_a_real_model_gives_the_tokens_of_plain_decoding(hash_model, backend, dtype):
    """Unwritten places are NaN. In float64 tokens are equal; in float32 they may differ where two are within 1e-4."""
    if backend == "cpu" and (reason := why_unavailable(dtype, torch.device("cpu"))):
        pytest.skip(reason)
    alone = Alone(tiny_model(vocabulary=98, dtype=dtype))

    def follow(request: Request, count: int) -> list[int]:
        return alone.generate(list(request.tokens), count)

    runner = ModelRunner(tiny_model(vocabulary=98, dtype=dtype), KV_TOKENS)
    count = SimpleNamespace(accepted=0, rejected=0, tokens=0, different=0)

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(load=loads(), kind=st.sampled_from(sorted(RIGHT)))
    def check(load, kind):
        config, requests = load
        runner.resize(KV_TOKENS)
        for module, _ in runner.layers:
            module.inferdoc_layer.keys.fill_(torch.nan)
            module.inferdoc_layer.values.fill_(torch.nan)
        drafter = hash_model.Adversary(follow, RIGHT[kind], lengths(config, vary=False))
        engine = Engine(runner, replace(config, attention_backend=backend), drafter=drafter)
        update = engine.scheduler.update_checked

        def update_and_check(*args) -> None:
            update(*args)
            engine.scheduler.check_integrity()

        engine.scheduler.update_checked = update_and_check
        at_once = [Request(r.id, r.prompt, r.output_length, 0.0, r.declared_max) for r in requests * 2]
        engine.run(at_once[: len(requests)])
        engine.run(at_once[len(requests) :])  # finds the first run's blocks
        for request in at_once:
            count.accepted += request.accepted
            count.rejected += request.drafted - request.accepted
            tokens = list(request.prompt)
            for token in request.output:
                logits = alone.logits(tokens)
                count.tokens += 1
                if token != int(logits.argmax()):
                    count.different += 1
                    assert float(logits.max() - logits[token]) <= (0 if dtype == torch.float64 else 1e-4)
                tokens.append(token)
        assert engine.scheduler.kv.pool.num_free == config.num_kv_blocks

    check()
    assert count.accepted > 100
    assert count.rejected > 100
    assert count.different <= count.tokens / 1000

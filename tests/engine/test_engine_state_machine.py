"""Random arrivals, steps and aborts under any configuration: each request gets the tokens that it gets alone.

Once on the hash model, which notices any K/V of the wrong token, with many examples; and on tiny transformers models,
whose attention, masks and positions are real. `check_integrity` runs after each step.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tiny_model import Alone, tiny_model

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine, Runner
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner

BATCHING = ["continuous", "prefill-first", "static"]
RESERVATIONS = ["paged", "paged", "peak-forecast", "max-model-len", "per-request"]
LONGEST = 24
KV_TOKENS = 64
"""Most that a drawn pool holds."""


@st.composite
def configs(draw) -> EngineConfig:
    """Pools from just one longest request to a few; chunks from one token on."""
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    reservation = draw(st.sampled_from(RESERVATIONS))
    max_num_seqs = draw(st.integers(1, 5))
    return EngineConfig(
        max_model_len=LONGEST,
        num_kv_blocks=draw(st.integers(-(-LONGEST // block_size), KV_TOKENS // block_size)),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.sampled_from([max_num_seqs, max_num_seqs + 2, 9, 40])),
        batching=draw(st.sampled_from(BATCHING)),
        enable_chunked_prefill=draw(st.booleans()),
        reservation=reservation,
        enable_prefix_caching=reservation in ("paged", "peak-forecast") and draw(st.booleans()),
    )


class EngineMachine(RuleBasedStateMachine):
    """Subclasses say what computes, and what a request's tokens must be."""

    make_runner: Callable[[], Runner]
    check_tokens: Callable[[Request], None]

    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine | None = None
        self.requests: list[Request] = []

    @initialize(config=configs())
    def start(self, config):
        self.engine = Engine(self.make_runner(), config)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST - 1),
        output=st.integers(1, LONGEST - 1),
        declared=st.none() | st.integers(1, LONGEST),
    )
    def arrive(self, prompt, output, declared):
        request = Request(len(self.requests), prompt, min(output, LONGEST - len(prompt)), declared_max=declared)
        self.requests.append(request)
        self.engine.scheduler.add(request)

    @rule(which=st.integers(0, 50))
    @precondition(lambda self: self.requests)
    def abort(self, which):
        """Waiting, running, done or aborted before."""
        self.engine.scheduler.abort(self.requests[which % len(self.requests)])

    @rule(steps=st.integers(1, 4))
    def step(self, steps):
        for _ in range(steps):
            if self.engine.scheduler.has_work:
                self.engine.step(0.0)
                self.engine.scheduler.check_integrity()

    @invariant()
    def the_invariants_hold(self):
        if self.engine is None:
            return
        scheduler = self.engine.scheduler
        scheduler.check_integrity()
        for request in self.requests:
            assert request.finished or request in scheduler.running or request in scheduler.waiting
            assert len(request.token_times) == len(request.output) <= request.output_length
        honest = all((request.declared_max or LONGEST) >= request.output_length for request in self.requests)
        if self.engine.config.reservation != "paged" and honest:
            assert not any(request.preemptions for request in self.requests)

    def teardown(self):
        if self.engine is None:
            return
        scheduler = self.engine.scheduler
        for _ in range(2000):
            if not scheduler.has_work:
                break
            self.step(1)
        assert not scheduler.has_work, "it never ends"
        assert scheduler.kv.pool.num_free == self.engine.config.num_kv_blocks, "a block leaked"
        for request in self.requests:
            assert request.completed or request.aborted
            self.check_tokens(request)


def drive(make_runner, check_tokens, *, examples: int, steps: int) -> None:
    """Run the machine on one kind of model."""

    class Machine(EngineMachine):
        pass

    Machine.make_runner = staticmethod(make_runner)
    Machine.check_tokens = staticmethod(check_tokens)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_trap_5_and_19_and_20_any_schedule_gives_the_tokens_of_each_request_alone(hash_model):
    def check(request):
        assert request.output == hash_model.expected(request.prompt, request.output_length)[: len(request.output)]

    drive(
        lambda: hash_model.Runner(hash_model.Clock(), lambda batch: 1.0),
        check,
        examples=250,
        steps=40,
    )


FULL = {"model_type": "llama"}
WINDOWED = {"model_type": "mistral", "sliding_window": 6}


def reset(runner: ModelRunner) -> ModelRunner:
    """A fresh pool; what nobody has written is NaN."""
    runner.resize(KV_TOKENS)
    for module, _ in runner.layers:
        module.inferdoc_layer.keys.fill_(torch.nan)
        module.inferdoc_layer.values.fill_(torch.nan)
    return runner


@pytest.mark.parametrize("kind", [FULL, WINDOWED], ids=["llama", "mistral-window-6"])
def test_trap_14_and_19_any_schedule_of_a_real_model_gives_the_tokens_of_each_request_alone(kind):
    """In float64 rounding decides nothing, so the tokens are equal."""
    alone = Alone(tiny_model(vocabulary=97, dtype=torch.float64, **kind))
    runner = ModelRunner(tiny_model(vocabulary=97, dtype=torch.float64, **kind), KV_TOKENS)
    seen = set()

    def check(request):
        seen.update(request.output)
        assert request.output == alone.generate(request.prompt, len(request.output))

    drive(lambda: reset(runner), check, examples=12, steps=12)
    assert len(seen) > 10, "outputs that do not vary prove nothing"


def test_trap_18_in_float32_only_near_ties_differ():
    """A token may differ where the two best logits are within 1e-4; of all tokens at most 0.1%."""
    alone = Alone(tiny_model(vocabulary=97, dtype=torch.float32, **FULL))
    runner = ModelRunner(tiny_model(vocabulary=97, dtype=torch.float32, **FULL), KV_TOKENS)
    count = SimpleNamespace(tokens=0, different=0)

    def check(request):
        tokens = list(request.prompt)
        for token in request.output:
            best = alone.logits(tokens).topk(2)
            count.tokens += 1
            if token != int(best.indices[0]):
                count.different += 1
                assert float(best.values[0] - alone.logits(tokens)[token]) <= 1e-4
            tokens.append(token)

    drive(lambda: reset(runner), check, examples=12, steps=12)
    assert count.tokens > 200
    assert count.different <= count.tokens / 1000

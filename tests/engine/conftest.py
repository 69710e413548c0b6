"""A stand-in for a model: its "K/V" are hashes of everything before them, so any wrong K/V shows in the tokens."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch


def _state(before: bytes, token: int) -> bytes:
    return hashlib.sha256(before + token.to_bytes(4, "big")).digest()


def _next_token(state: bytes) -> int:
    return state[0]


def expected_output(prompt: Sequence[int], length: int) -> list[int]:
    """What the hash model must generate, from the token sequence alone."""
    state = b""
    for token in prompt:
        state = _state(state, token)
    output: list[int] = []
    for _ in range(length):
        output.append(_next_token(state))
        state = _state(state, output[-1])
    return output


class VirtualClock:
    def __init__(self, start: float = 0.0) -> None:
        self.time = start

    def now(self) -> float:
        return self.time

    def sleep_until(self, when: float) -> None:
        self.time = max(self.time, when)


class HashRunner:
    """Keeps one hash for each slot, reads a row's whole context through its block table, and checks each step.

    Args:
        seconds: time of a step, from its batch.
    """

    def __init__(self, clock: VirtualClock, seconds: Callable[[Batch], float]) -> None:
        self.clock = clock
        self.seconds = seconds
        self.slots: dict[int, bytes] = {}
        self.batches: list[list[tuple[int, int, bool]]] = []
        """For each step: (request id, tokens, padding) of its rows."""
        self.before_step: Callable[[Batch], None] = lambda batch: None

    def configure(self, config: EngineConfig) -> None:
        pass

    def execute(self, batch: Batch) -> list[int]:
        self.before_step(batch)
        self.batches.append([(row.request.id, row.num_tokens, row.padding) for row in batch.rows])
        sampled = []
        for row in batch.rows:
            request = row.request

            def slot(position: int, request: Request = request) -> int:
                return request.block_ids[position // batch.block_size] * batch.block_size + position % batch.block_size

            state = b""
            for position in range(row.start + row.num_tokens):
                before, state = state, _state(state, request.tokens[position])
                if position >= row.start:
                    self.slots[slot(position)] = _state(before, request.tokens[position])
                assert self.slots.get(slot(position)) == state, f"request {request.id} reads foreign K/V at {position}"
            if row.samples:
                sampled.append(_next_token(self.slots[slot(row.start + row.num_tokens - 1)]))
        self.clock.time += self.seconds(batch)
        return sampled


@pytest.fixture(scope="session", autouse=True)
def _small_runs_are_fast() -> None:
    """Tiny matrices gain nothing from threads, and test processes run side by side. Each run of the engine collects
    garbage first, which takes long over all that torch and transformers have loaded unless that is set aside."""
    torch.set_num_threads(1)
    gc.freeze()


@pytest.fixture(scope="session")
def hash_model() -> SimpleNamespace:
    return SimpleNamespace(expected=expected_output, Runner=HashRunner, Clock=VirtualClock)


@pytest.fixture(scope="session")
def serve() -> Callable[..., SimpleNamespace]:
    """Run requests on the hash model: every step keeps the invariants, every output is right, nothing leaks."""

    def _serve(
        config: EngineConfig,
        requests: list[Request],
        *,
        seconds: Callable[[Batch], float] = lambda batch: 1.0,
        before_step: Callable[[Engine, Batch], None] = lambda engine, batch: None,
    ) -> SimpleNamespace:
        clock = VirtualClock()
        runner = HashRunner(clock, seconds)
        engine = Engine(runner, config, clock)

        def check(batch: Batch) -> None:
            engine.scheduler.check_integrity()
            prompts = [row for row in batch.rows if row.request.steady is None]
            if config.batching == "prefill-first" and prompts:
                assert prompts == batch.rows, "decodes beside a prompt"
            else:
                assert [row.request for row in batch.rows] == engine.scheduler.running, "each running request has a row"
            if config.enable_chunked_prefill:
                assert batch.num_tokens <= config.max_num_batched_tokens
            before_step(engine, batch)

        runner.before_step = check
        result = engine.run(requests)
        engine.scheduler.check_integrity()
        kv = engine.scheduler.kv
        assert kv.pool.num_free == config.num_kv_blocks
        assert not engine.scheduler.running
        assert not engine.scheduler.waiting
        for request in requests:
            if not request.aborted:
                assert request.output == expected_output(request.prompt, request.output_length)
        return SimpleNamespace(result=result, runner=runner, engine=engine, steps=result.steps)

    return _serve

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
from inferdoc.engine.spec_decode.drafter import Drafter
from inferdoc.engine.spec_decode.proposal import Draft, wanted


def _state(before: bytes, token: int) -> bytes:
    return hashlib.sha256(before + token.to_bytes(4, "big")).digest()


def _next_token(state: bytes) -> int:
    return state[0]


def whole_state(tokens: Sequence[int]) -> bytes:
    """The "K/V" of the last of these tokens."""
    state = b""
    for token in tokens:
        state = _state(state, token)
    return state


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
        return [token for token, *_ in self.verify(batch)]

    def verify(self, batch: Batch) -> list[list[int]]:
        self.before_step(batch)
        self.batches.append([(row.request.id, row.num_tokens, row.padding) for row in batch.rows])
        emitted = []
        for row in batch.rows:
            request = row.request
            drafted = row.draft.tokens if row.draft else []
            tokens = [*request.tokens[: row.start + row.num_tokens - len(drafted)], *drafted]

            def slot(position: int, request: Request = request) -> int:
                return request.block_ids[position // batch.block_size] * batch.block_size + position % batch.block_size

            state = b""
            for position in range(row.start + row.num_tokens):
                before, state = state, _state(state, tokens[position])
                if position >= row.start:
                    self.slots[slot(position)] = _state(before, tokens[position])
                assert self.slots.get(slot(position)) == state, f"request {request.id} reads foreign K/V at {position}"
            if row.samples:
                last = row.end - 1 - len(drafted)
                own = [_next_token(self.slots[slot(position)]) for position in range(last, row.end)]
                stands = 0
                while stands < len(drafted) and drafted[stands] == own[stands]:
                    stands += 1
                if row.draft and row.draft.accepted is not None:
                    emitted.append([*drafted[: row.draft.accepted], own[row.draft.accepted]])
                else:
                    emitted.append(own[: stands + 1])
        self.clock.time += self.seconds(batch)
        return emitted


class Adversary:
    """Drafts what is known to be right or wrong.

    Args:
        truth: the tokens that follow a request's present ones, so many of them.
        right: of a request, the position of a token and how many were drafted before: whether to draft it right.
        length: tokens to draft for a request at its present length.
    """

    def __init__(
        self,
        truth: Callable[[Request, int], Sequence[int]],
        right: Callable[[Request, int], bool],
        length: Callable[[Request], int],
    ) -> None:
        self.truth = truth
        self.right = right
        self.length = length

    def propose(self, running: Sequence[Request]) -> None:
        for request in running:
            if most := wanted(request, self.length(request)):
                following = self.truth(request, most)
                at = len(request.tokens)
                request.draft = Draft(
                    [token if self.right(request, at + i) else token ^ 1 for i, token in enumerate(following)]
                )

    def follow(self, batch: Batch) -> None:
        pass


def hashed_truth(request: Request, count: int) -> list[int]:
    done = len(request.output)
    return expected_output(request.prompt, done + count)[done:]


@pytest.fixture(scope="session", autouse=True)
def _small_runs_are_fast() -> None:
    """Tiny matrices gain nothing from threads, and test processes run side by side. Each run of the engine collects
    garbage first, which takes long over all that torch and transformers have loaded unless that is set aside."""
    torch.set_num_threads(1)
    gc.freeze()


@pytest.fixture(scope="session")
def hash_model() -> SimpleNamespace:
    return SimpleNamespace(
        expected=expected_output,
        state=whole_state,
        truth=hashed_truth,
        Runner=HashRunner,
        Clock=VirtualClock,
        Adversary=Adversary,
    )


@pytest.fixture(scope="session")
def serve() -> Callable[..., SimpleNamespace]:
    """Run requests on the hash model: every step keeps the invariants, every output is right, nothing leaks."""

    def _serve(
        config: EngineConfig,
        requests: list[Request],
        *,
        seconds: Callable[[Batch], float] = lambda batch: 1.0,
        before_step: Callable[[Engine, Batch], None] = lambda engine, batch: None,
        drafter: Drafter | None = None,
    ) -> SimpleNamespace:
        clock = VirtualClock()
        runner = HashRunner(clock, seconds)
        engine = Engine(runner, config, clock, drafter=drafter)

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

"""One set of timed steps that several probes share: prompt chunks, decodes by batch size, verification of drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine, WallClock
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.engine.spec_decode.proposal import Draft
from inferdoc.engine.steplog import Step
from inferdoc.errors import InputError
from inferdoc.simulator import StepTimes

STEPS = 9
"""Timed steps at each point: enough for a 95% interval of the median."""
DRAFTS = (1, 2, 4, 8)
"""Drafted tokens whose check is timed."""
_ROUNDS_S = 1.0
"""Rounds of steps that are compared at one batch size end after so long, once there are three."""


@dataclass(frozen=True)
class SweepPoint:
    """Decode steps of `batch` rows, each attending to about `context` tokens. Seconds of each step."""

    batch: int
    context: int
    seconds: list[float]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


@dataclass(frozen=True)
class Sweep:
    decode: list[SweepPoint]
    verify: dict[tuple[int, int], list[float]]
    """T(B, k + 1) / T(B, 1), round by round, by batch size B and k: a step that checks k drafted tokens of each row,
    with k + 1 logits of each, over a plain step of the same round."""
    without_context: list[float]
    """A decode step of the largest batch whose rows attend to one token each, over the plain step, round by round."""
    times: StepTimes
    steps: list[Step]

    def decode_at(self, batch: int) -> SweepPoint:
        return next(point for point in self.decode if point.batch == batch)

    def verify_ratio(self, batch: int, drafted: int) -> float:
        return float(np.median(self.verify[batch, drafted]))


@dataclass(frozen=True)
class _Shape:
    """What fits the pool: prompts of `context` tokens, batch `sizes` upwards, `steps` timed at each, `output` long."""

    context: int
    sizes: list[int]
    steps: int
    output: int


def _fit_shape(config: EngineConfig, context: int) -> _Shape:
    """The largest batch, of the longest contexts up to `context`, that the pool holds until the last timed step."""
    longest = min(config.max_model_len, config.kv_tokens)
    size = config.max_num_seqs
    while True:
        sizes = [*(1 << i for i in range((size - 1).bit_length())), size]
        # Requests that are prefilled first decode while the others' prompts run.
        waiting = -(-size * context // max(1, config.max_num_batched_tokens - size)) + 1
        for steps in (STEPS, 3, 1):
            output = waiting + len(sizes) * steps + 1
            fitted = min(context, longest - output)
            if fitted >= 1 and size * -(-(fitted + output) // config.block_size) <= config.num_kv_blocks:
                return _Shape(fitted, sizes, steps, output)
        if size == 1:
            raise InputError(
                f"sequences of {longest} tokens leave no room to time steps; raise --max-model-len or --memory"
            )
        size = max(1, size // 2)


def measure_sweep(
    runner: ModelRunner,
    base: EngineConfig,
    *,
    context: int,
    vocabulary: int,
    seed: int,
    drafts: tuple[int, ...] = DRAFTS,
) -> Sweep:
    """Fill the largest batch with prompts of `context` random tokens, then decode at shrinking batch sizes.

    Warm-up (a first request, not counted) comes before anything is timed.
    """
    rng = np.random.default_rng([seed, 2])
    config = replace(base, enable_prefix_caching=False, batching="continuous", reservation="paged")
    shape = _fit_shape(config, context)

    def request(id: int, output: int) -> Request:
        return Request(id, rng.integers(0, vocabulary, shape.context).tolist(), output)

    Engine(runner, config).run([request(-1, 1)])  # warm-up
    engine = Engine(runner, config, WallClock())
    start = engine.now()
    requests = [request(i, shape.output) for i in range(shape.sizes[-1])]
    for each in requests:
        engine.scheduler.add(each)
    while any(not each.token_times for each in requests):
        engine.step(start)
    points: list[SweepPoint] = []
    verify: dict[tuple[int, int], list[float]] = {}
    without_context: list[float] = []
    for size in shape.sizes[::-1]:
        for each in engine.scheduler.running[size:]:
            engine.scheduler.abort(each)
        done = len(engine.steps)
        for _ in range(shape.steps):
            engine.step(start)
        timed = engine.steps[done:]
        points.append(SweepPoint(size, timed[0].context_tokens // size, [step.duration_s for step in timed]))
        checked = [k for k in drafts if k < shape.context]
        bare, ratios = _over_plain(runner, requests[:size], checked, config.block_size)
        verify.update({(size, k): ratios[k] for k in checked})
        without_context = without_context or bare
    return Sweep(
        decode=points[::-1],
        verify=verify,
        without_context=without_context,
        times=StepTimes.fit(engine.steps),
        steps=engine.steps,
    )


def _over_plain(
    runner: ModelRunner, requests: Sequence[Request], drafts: Sequence[int], block_size: int
) -> tuple[list[float], dict[int, list[float]]]:
    """Steps without context, and steps that check drafts, each over a plain step of its round.

    All compute once more what is computed: the token after it may have no block yet.
    """

    def batch(drafted: int) -> Batch:
        """The last `drafted` + 1 computed tokens, all but the first as if they were drafted."""
        rows = []
        for request, end in zip(requests, computed, strict=True):
            request.num_computed = start = end - drafted - 1
            draft = Draft(request.tokens[start + 1 : end].tolist()) if drafted else None
            rows.append(Row(request, drafted + 1, samples=True, draft=draft))
        return Batch(rows, block_size, drafted=drafted * len(rows))

    computed = [request.num_computed for request in requests]
    steps: list[Callable[[], object]] = [
        partial(runner.execute, batch(0)),
        *(partial(runner.verify, batch(k)) for k in drafts),
    ]
    for request in requests:
        request.num_computed = 0
    steps.insert(1, partial(runner.execute, Batch([Row(each, 1, samples=True) for each in requests], block_size)))
    plain, bare, *checks = rounds(steps)
    for request, count in zip(requests, computed, strict=True):
        request.num_computed = count
    return _over(bare, plain), {k: _over(seconds, plain) for k, seconds in zip(drafts, checks, strict=True)}


def rounds(steps: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Seconds of each step, run in turn so that drift hits all alike; a first round warms up and is not counted."""
    for step in steps:
        step()
    seconds: list[list[float]] = [[] for _ in steps]
    began = time.perf_counter()
    while len(seconds[0]) < 3 or (len(seconds[0]) < STEPS and time.perf_counter() - began < _ROUNDS_S):
        for step, own in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            own.append(time.perf_counter() - start)
    return seconds


def _over(seconds: Sequence[float], plain: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(seconds, plain, strict=True)]

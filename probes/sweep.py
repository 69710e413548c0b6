"""One set of timed steps that several probes share: prompt chunks, decodes by batch size, verification of drafts."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine, WallClock
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.engine.steplog import Step
from inferdoc.errors import InputError
from inferdoc.simulator import StepTimes

STEPS = 9
"""Timed steps at each point: enough for a 95% interval of the median."""


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
    verify: dict[int, list[float]]
    """Seconds of a step with k + 1 query tokens of one sequence, by k: what checking k drafted tokens costs."""
    times: StepTimes
    steps: list[Step]


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
    drafts: tuple[int, ...] = (1, 2, 4, 8),
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
    for size in shape.sizes[::-1]:
        for each in engine.scheduler.running[size:]:
            engine.scheduler.abort(each)
        done = len(engine.steps)
        for _ in range(shape.steps):
            engine.step(start)
        timed = engine.steps[done:]
        points.append(SweepPoint(size, timed[0].context_tokens // size, [step.duration_s for step in timed]))
    verify = {k: _verify_seconds(runner, requests[0], k, config.block_size) for k in drafts if k < shape.context}
    return Sweep(
        decode=points[::-1],
        verify=verify,
        times=StepTimes.fit(engine.steps),
        steps=engine.steps,
    )


def _verify_seconds(runner: ModelRunner, request: Request, drafted: int, block_size: int) -> list[float]:
    """Time steps that compute once more the last `drafted + 1` tokens of a sequence whose K/V are there."""
    computed = request.num_computed  # the token after it may have no block yet
    request.num_computed = computed - (drafted + 1)
    batch = Batch([Row(request, drafted + 1, samples=True)], block_size)
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        runner.execute(batch)
        seconds.append(time.perf_counter() - began)
    request.num_computed = computed
    return seconds

"""One set of timed steps that several probes share: prompt chunks, decodes by batch size, verification of drafts."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine, WallClock
from inferdoc.engine.request import Request
from inferdoc.engine.runner import EagerRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.engine.steplog import Step
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
    warm_up_steps: int
    seconds: float


def measure_sweep(
    runner: EagerRunner,
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
    began = time.perf_counter()
    rng = np.random.default_rng([seed, 2])
    config = replace(base, enable_prefix_caching=False, batching="continuous", reservation="paged")
    room = min(config.max_model_len, config.kv_tokens // config.max_num_seqs)
    context = max(1, min(context, room - 8 * STEPS))

    def request(id: int, length: int, output: int) -> Request:
        return Request(id, rng.integers(0, vocabulary, length).tolist(), output)

    warm_up = Engine(runner, config).run([request(-1, context, 4)])
    engine = Engine(runner, config, WallClock())
    start = engine.clock.now()
    requests = [request(i, context, room - context) for i in range(config.max_num_seqs)]
    for each in requests:
        engine.scheduler.add(each)
    while any(each.to_compute > 1 or not each.token_times for each in requests):
        engine.step(start)
    points: list[SweepPoint] = []
    size = len(requests)
    while size:
        for each in engine.scheduler.running[size:]:
            engine.scheduler.abort(each)
        done = len(engine.steps)
        for _ in range(STEPS):
            engine.step(start)
        timed = engine.steps[done:]
        points.append(SweepPoint(size, timed[0].context_tokens // size, [step.duration_s for step in timed]))
        size //= 2
    verify = {k: _verify_seconds(runner, requests[0], k, config.block_size) for k in drafts if k < context}
    return Sweep(
        decode=points[::-1],
        verify=verify,
        times=StepTimes.fit(_without_pauses(engine.steps)),
        warm_up_steps=len(warm_up.steps),
        seconds=time.perf_counter() - began,
    )


def _verify_seconds(runner: EagerRunner, request: Request, drafted: int, block_size: int) -> list[float]:
    """Time steps that compute the last `drafted + 1` tokens of a sequence whose earlier K/V are there."""
    computed = request.num_computed
    request.num_computed = len(request.tokens) - (drafted + 1)
    batch = Batch([Row(request, drafted + 1, samples=True)], block_size)
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        runner.execute(batch)
        seconds.append(time.perf_counter() - began)
    request.num_computed = computed
    return seconds


def _without_pauses(steps: list[Step]) -> list[Step]:
    """Steps for the fit; a step far slower than its neighbours of the same shape would bend all of it."""
    by_shape: dict[tuple[int, int], list[Step]] = {}
    for step in steps:
        by_shape.setdefault((step.prefill_tokens, step.decode_rows), []).append(step)
    return [
        step
        for group in by_shape.values()
        for step in group
        if step.duration_s <= 3 * float(np.median([each.duration_s for each in group]))
    ]

"""Step times fitted to measured steps, and a runner and a clock that live on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.scheduler import Batch
from inferdoc.engine.steplog import Step


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step = base + token * prompt tokens + row * decode rows + context * K/V tokens attended to.

    A drafted token that is checked counts as one of a prompt: it is one more query in a row that is there.
    Non-negative least squares on relative errors, so that short decode steps weigh as much as long prompt steps.
    """

    base: float
    token: float
    row: float
    context: float
    relative_error: float
    """Mean absolute relative error on steps that the fit has not seen (every third one, pauses included)."""

    @classmethod
    def fit(cls, steps: Sequence[Step]) -> StepTimes:
        features = np.array(
            [(1, s.prefill_tokens + s.drafted, s.decode_rows + s.padded_rows, s.context_tokens) for s in steps],
            dtype=float,
        )
        seconds = np.array([step.duration_s for step in steps])
        usual = _usual(features, seconds)
        held_out = np.arange(len(steps)) % 3 == 2
        if held_out.all() or not held_out.any():
            raise ValueError("at least three steps are needed")
        kept = usual & ~held_out
        weights, _ = nnls(features[kept] / seconds[kept, None], np.ones(kept.sum()))
        errors = np.abs(features[held_out] @ weights / seconds[held_out] - 1)
        weights, _ = nnls(features[usual] / seconds[usual, None], np.ones(usual.sum()))
        base, token, row, context = (float(weight) for weight in weights)
        return cls(base, token, row, context, relative_error=float(errors.mean()))

    def seconds(self, *, prefill_tokens: int, decode_rows: int, context_tokens: int) -> float:
        return self.base + self.token * prefill_tokens + self.row * decode_rows + self.context * context_tokens


def _usual(features: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Steps to fit to: not those three times slower than the median of their kind, which a pause made so."""
    shapes: dict[tuple[float, float], list[float]] = {}
    keys = [(float(f[1]), float(f[2])) for f in features]
    for key, duration in zip(keys, seconds, strict=True):
        shapes.setdefault(key, []).append(float(duration))
    medians = np.array([np.median(shapes[key]) for key in keys])
    usual: NDArray[np.bool_] = seconds <= 3 * medians
    return usual


class VirtualClock:
    """Time that moves only when told to."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def sleep_until(self, when: float) -> None:
        self._now = max(self._now, when)

    def advance(self, seconds: float) -> None:
        self._now += seconds


class ModelledRunner:
    """In place of a model: moves the clock by the modelled step time and samples token 0.

    Of drafts it accepts what synthetic acceptance says, as `modelled_drafter` sets it; of others nothing.
    """

    def __init__(self, times: StepTimes, clock: VirtualClock) -> None:
        self.times = times
        self.clock = clock

    def configure(self, config: EngineConfig) -> None:
        """The modelled times know of no configuration."""

    def execute(self, batch: Batch) -> list[int]:
        self._pass(batch)
        return [0] * sum([row.samples for row in batch.rows])

    def verify(self, batch: Batch) -> list[list[int]]:
        self._pass(batch)
        accepted = [(row.draft and row.draft.accepted) or 0 for row in batch.rows if row.samples]
        return [[0] * (count + 1) for count in accepted]

    def _pass(self, batch: Batch) -> None:
        rows = batch.decode_rows + batch.padded_rows
        self.clock.advance(
            self.times.seconds(
                prefill_tokens=batch.num_tokens - rows,
                decode_rows=rows,
                context_tokens=batch.context_tokens,
            )
        )

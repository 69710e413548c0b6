"""Token-seconds of requests: in all, of the largest ones, and against what would be reserved."""

from __future__ import annotations

import numpy as np

from inferdoc.evidence import Contract
from inferdoc.traces.service import Floats, Ints, Lives

LARGEST = 10


class HeavyRequest(Contract):
    row: int
    """Line in the source."""
    input_tokens: int
    output_tokens: int
    seconds: float
    token_seconds: float
    share: float
    """Of the token-seconds of all requests."""


class Totals:
    """Sums over requests that come in parts."""

    def __init__(self, max_model_len: int | None) -> None:
        self._max_model_len = max_model_len
        self.requests = self.measured = self.without_first = self.left_out = self.too_long = 0
        self.token_seconds = self._doubled = self._fitting = self._fitting_seconds = 0.0
        self._largest: list[tuple[float, int, int, int, float]] = []

    def add(self, lives: Lives, doubled: Ints) -> None:
        """Args:
        doubled: places reserved for each request when its whole length is rounded up to a power of two.
        """
        seconds = lives.end - lives.start
        token_seconds = lives.prompts * seconds + lives.outputs * (lives.end - lives.first) / 2
        self.requests += len(seconds)
        self.measured += lives.measured
        self.without_first += lives.without_first
        self.left_out += lives.left_out
        self.token_seconds += float(token_seconds.sum())
        self._doubled += float((doubled * seconds).sum())
        if self._max_model_len is not None:
            fits = lives.prompts + lives.outputs <= self._max_model_len
            self.too_long += int((~fits).sum())
            self._fitting += float(token_seconds[fits].sum())
            self._fitting_seconds += float(seconds[fits].sum())
        self._keep_largest(lives, seconds, token_seconds)

    @property
    def waste_doubled(self) -> float:
        return 1 - self.token_seconds / self._doubled

    @property
    def waste_longest(self) -> float | None:
        """Under reservations of max-model-len, over the requests that fit; ``None`` where none does."""
        if self._max_model_len is None or not self._fitting_seconds:
            return None
        return 1 - self._fitting / (self._fitting_seconds * self._max_model_len)

    def largest(self) -> list[HeavyRequest]:
        return [
            HeavyRequest(
                row=row,
                input_tokens=prompt,
                output_tokens=output,
                seconds=seconds,
                token_seconds=amount,
                share=amount / self.token_seconds,
            )
            for amount, row, prompt, output, seconds in self._largest
        ]

    def _keep_largest(self, lives: Lives, seconds: Floats, token_seconds: Floats) -> None:
        top = np.argpartition(-token_seconds, LARGEST)[:LARGEST] if len(seconds) > LARGEST else np.arange(len(seconds))
        columns = (token_seconds, lives.rows, lives.prompts, lives.outputs, seconds)
        self._largest.extend(zip(*(column[top].tolist() for column in columns), strict=True))
        self._largest.sort(key=lambda entry: (-entry[0], entry[1]))
        del self._largest[LARGEST:]


def next_power_of_two(lengths: Ints) -> Ints:
    """The smallest powers of two that are not below positive lengths."""
    exponents = np.frexp((lengths - 1).clip(min=0).astype(np.float64))[1]
    return np.left_shift(1, exponents.astype(np.int64))

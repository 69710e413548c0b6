"""How a request's tokens are drawn from the logits. Plain Python: requests carry it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

from inferdoc.errors import InputError

DRAFT, ACCEPT = 1, 2
"""Streams of uniform numbers beside that of the tokens (0): what a draft model draws, and whether that stands."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """One request's sampling. Applied in this order: temperature, top-k, top-p of what top-k left.

    Raises:
        InputError: a value out of its range.
    """

    temperature: float = 0.0
    """0: greedy, and the rest has no effect."""
    top_k: int | None = None
    """Tokens that stay, the most likely ones; among equals those with the lowest ids."""
    top_p: float = 1.0
    """The most likely tokens stay until their probabilities reach this sum; always at least one."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k is {self.top_k}; it must be at least 1, or left out for all tokens")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; it must fit 64 bits")

    def uniform(self, request: int, position: int, stream: int = 0) -> float:
        """The number in [0, 1) that decides the token at `position` of request `request`.

        A function of these alone: no state that a preemption, another order or another batch could move.
        """
        parts = (self.seed, request, position, stream) if stream else (self.seed, request, position)
        counter = b"".join(value.to_bytes(8, "big", signed=True) for value in parts)
        return int.from_bytes(blake2b(counter, digest_size=8).digest(), "big") // 2**11 / 2**53

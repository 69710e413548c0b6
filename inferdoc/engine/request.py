"""A request and what became of it. Few facts are stored; the rest is derived."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferdoc.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from inferdoc.engine.scheduler import Row
    from inferdoc.engine.spec_decode.proposal import Draft


@dataclass(eq=False, slots=True)
class Request:
    """One request with a forced output length.

    `tokens` grows from the prompt by one sampled token at a time; `num_computed` counts the tokens whose K/V are in the
    cache. Chunked prefill, prefix hits and recompute after preemption are all "num_computed lags behind tokens".

        0 ........ num_cached ........ num_computed ........ len(tokens)
        | from the prefix cache | computed by steps | still to compute |
    """

    id: int
    prompt: Sequence[int]
    output_length: int
    """Tokens to generate; end tokens are ignored so that every arm does the same work."""
    arrival_s: float = 0.0
    """On the clock of the run, relative to its start."""
    declared_max: int | None = None
    """The client's ``max_tokens``, where the trace has it."""
    sampling: SamplingParams | None = None
    """None: greedy."""

    prompt_length: int = field(init=False)
    tokens: array[int] = field(init=False)
    """32-bit, so that blocks are hashed and prompts copied without a walk over their tokens."""
    block_ids: list[int] = field(init=False, default_factory=list)
    """Set by the KV manager: block i holds tokens [i * block_size, (i + 1) * block_size)."""
    num_computed: int = field(init=False, default=0)
    steady: Row | None = field(init=False, default=None)
    """Set by the scheduler: its row in every step from its first token on, until it is done or preempted."""
    draft: Draft | None = field(init=False, default=None)
    """Set by the drafter while the request decodes; the step that checks it, and a preemption, take it away."""
    drafted: int = field(init=False, default=0)
    """Drafted tokens that steps have checked."""
    accepted: int = field(init=False, default=0)
    """Those of them that stood."""
    num_cached: int = field(init=False, default=0)
    """Prompt tokens served by the prefix cache at the first admission."""
    scheduled_s: float | None = field(init=False, default=None)
    """Set by the scheduler: first time in a batch."""
    token_times: list[float] = field(init=False, default_factory=list)
    """Set by the engine: when each output token was there."""
    preemptions: int = field(init=False, default=0)
    aborted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.prompt)
        self.tokens = array("i", self.prompt)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :].tolist()

    @property
    def max_length(self) -> int:
        """Tokens at the end. The last sampled token's K/V are never computed."""
        return self.prompt_length + self.output_length

    @property
    def to_compute(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def completed(self) -> bool:
        """It has all its tokens."""
        return len(self.tokens) == self.max_length

    @property
    def finished(self) -> bool:
        return self.aborted or self.completed

    @property
    def ttft_s(self) -> float | None:
        """First token - arrival, queueing included."""
        return self.token_times[0] - self.arrival_s if self.token_times else None

    @property
    def e2e_s(self) -> float | None:
        """Last token - arrival; ``None`` for a request that was cut short."""
        return self.token_times[-1] - self.arrival_s if self.completed and self.token_times else None

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT) / (n - 1); undefined for fewer than two tokens."""
        n = len(self.token_times)
        return (self.token_times[-1] - self.token_times[0]) / (n - 1) if self.completed and n > 1 else None

    @property
    def itl_s(self) -> list[float]:
        """Gaps between output tokens: n - 1 values for n tokens."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]

    @property
    def queue_s(self) -> float | None:
        return self.scheduled_s - self.arrival_s if self.scheduled_s is not None else None

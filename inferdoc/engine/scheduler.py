"""Which requests run in the next step, and how many tokens of each. Plain Python: no torch.

There are no phases: each request has computed tokens and tokens to compute, and one token budget covers prompts and
decodes alike. Running requests come first, then waiting ones; where KV runs out the newest running request is preempted
and recomputed later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.kv_manager import KVManager
from inferdoc.engine.request import Request
from inferdoc.errors import MeasurementError


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a step."""

    request: Request
    num_tokens: int
    samples: bool
    """The step computes the last of the request's tokens, so its logits give the next one."""
    padding: bool = False
    """A finished row of a static batch: its last token is computed once more, for nothing."""

    @property
    def start(self) -> int:
        """Position of the first token of this step."""
        return self.request.num_computed - self.padding

    @property
    def end(self) -> int:
        """Position after the last token of this step: K/V tokens of the request when it is done."""
        return self.start + self.num_tokens

    @property
    def decodes(self) -> bool:
        """It computes one output token. A prompt's last token alone is not a decode."""
        return self.num_tokens == 1 and not self.padding and self.start >= self.request.prompt_length


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes. `rows` is set by the scheduler, read by the runner, and given back to `update`."""

    rows: list[Row]
    block_size: int

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


class Scheduler:
    """Continuous batching: a request joins as soon as there is room and leaves as soon as it is done."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.kv = KVManager(config)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request, unless it was aborted before it came.

        Raises:
            MeasurementError: it could never run under this configuration.
        """
        if request.aborted:
            return
        assert not request.output, "a request runs once"
        if not request.prompt_length or request.output_length < 1:
            raise MeasurementError(
                f"request {request.id} has {request.prompt_length} prompt tokens and {request.output_length} to "
                "generate; the engine serves requests with at least one of each"
            )
        if request.max_length > self.config.max_model_len:
            raise MeasurementError(
                f"request {request.id} has {request.max_length} tokens; max_model_len is {self.config.max_model_len}"
            )
        if not self.kv.fits(request):
            raise MeasurementError(
                f"request {request.id} needs {self.kv.reservation.at_most(request)} tokens of KV under "
                f"{self.config.reservation} reservation; the pool holds {self.config.kv_tokens}"
            )
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request, wherever it is, even while its step runs. Idempotent."""
        request.aborted = True
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.kv.free(request)

    def schedule(self) -> Batch:
        """Choose the next step's rows; all of them have the KV blocks that the step writes."""
        rows: list[Row] = []
        budget = self.config.max_num_batched_tokens
        for request in list(self.running):
            if request not in self.running:
                continue  # preempted for a request before it
            if request.finished:
                rows.append(Row(request, 1, samples=False, padding=True))
                budget -= 1
                continue
            tokens = self._share(request, budget, prefills=any(row.num_tokens > 1 for row in rows))
            if tokens and self._grow(request, tokens):
                rows.append(Row(request, tokens, samples=tokens == request.to_compute))
                budget -= tokens
        while self.waiting and len(self.running) < self.config.max_num_seqs and self._admits():
            request = self.waiting[0]
            if budget <= 0 or not self.kv.admit(request):
                break
            tokens = self._share(request, budget, prefills=any(row.num_tokens > 1 for row in rows))
            if not tokens:
                self.kv.free(request)
                break
            self.running.append(self.waiting.popleft())
            rows.append(Row(request, tokens, samples=tokens == request.to_compute))
            budget -= tokens
        return Batch(rows, self.config.block_size)

    def update(self, batch: Batch, sampled: Sequence[int], now: float) -> None:
        """Account for a finished step.

        Args:
            sampled: one token for each row that samples, in the order of the rows.
            now: when the tokens were there, in seconds on the clock of the run.
        """
        tokens = iter(sampled)
        for row in batch.rows:
            request = row.request
            token = next(tokens) if row.samples else None
            if row.padding or request.aborted:
                continue
            request.num_computed += row.num_tokens
            self.kv.publish(request)
            if token is not None:
                request.tokens.append(token)
                request.token_times.append(now)
        self._retire()

    def _share(self, request: Request, budget: int, *, prefills: bool) -> int:
        """Tokens of the request that this step computes; 0: none."""
        wanted = request.to_compute
        if self.config.enable_chunked_prefill or wanted == 1:
            return max(0, min(wanted, budget))
        # A whole prompt goes in one piece; one larger than the budget runs where no other prompt does.
        return wanted if wanted <= budget or not prefills else 0

    def _admits(self) -> bool:
        """Whether the batching policy takes a new request now."""
        return True

    def _retire(self) -> None:
        for request in [r for r in self.running if r.finished]:
            self.running.remove(request)
            self.kv.free(request)

    def _grow(self, request: Request, tokens: int) -> bool:
        """Room for the request's tokens, preempting from the newest; False where the request itself had to go."""
        while not self.kv.grow(request, tokens):
            victim = self.running.pop()
            self.kv.free(victim)
            if not victim.finished:
                victim.num_computed = 0
                victim.preemptions += 1
                self.waiting.appendleft(victim)
            if victim is request:
                return False
        return True

    def check_integrity(self) -> None:
        """Assert the invariants; tests call it after each step."""
        assert len(self.running) <= self.config.max_num_seqs, "more running than max_num_seqs"
        assert all(not request.block_ids for request in self.waiting), "a waiting request holds blocks"
        self.kv.check_integrity(self.running)


class StaticScheduler(Scheduler):
    """Static batching: a batch starts when the last one is done, and its finished rows go on as padding until then.

    A batch is the requests that wait when it starts, up to `max_num_seqs`. Where their prompts exceed the token budget
    of one step they are computed over several; nothing else joins.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._batch: frozenset[Request] = frozenset()

    def schedule(self) -> Batch:
        if not self.running:
            self._batch = frozenset(islice(self.waiting, self.config.max_num_seqs))
        return super().schedule()

    def _admits(self) -> bool:
        return self.waiting[0] in self._batch

    def _retire(self) -> None:
        if all(request.finished for request in self.running):
            super()._retire()


def make_scheduler(config: EngineConfig) -> Scheduler:
    return {"continuous": Scheduler, "static": StaticScheduler}[config.batching](config)

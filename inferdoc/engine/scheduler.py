"""Which requests run in the next step, and how many tokens of each. Plain Python: no torch.

There are no phases: each request has computed tokens and tokens to compute, and one token budget covers prompts and
decodes alike. Running requests come first, then waiting ones; where KV runs out the newest running request is preempted
and recomputed later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.kv_manager import KVManager
from inferdoc.engine.request import Request
from inferdoc.engine.spec_decode.lookahead import Lookahead, NoLookahead
from inferdoc.engine.spec_decode.proposal import Draft
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
    draft: Draft | None = None
    """Tokens that follow the request's last one in this step, to be checked."""
    decodes: bool = field(init=False)
    """It computes one output token, and drafted ones. A prompt's last token alone is not a decode."""

    def __post_init__(self) -> None:
        beyond_prompt = self.request.num_computed >= self.request.prompt_length
        one = self.num_tokens == 1 or self.draft is not None
        object.__setattr__(self, "decodes", one and not self.padding and beyond_prompt)

    @property
    def drafted(self) -> int:
        return len(self.draft.tokens) if self.draft is not None else 0

    @property
    def start(self) -> int:
        """Position of the first token of this step."""
        return self.request.num_computed - self.padding

    @property
    def end(self) -> int:
        """Position after the last token of this step: K/V tokens of the request when it is done."""
        return self.start + self.num_tokens


@dataclass(slots=True)
class Batch:
    """What one step computes. Set by the scheduler, read by the runner and the log, given back to `update`."""

    rows: list[Row]
    block_size: int
    drafted: int = 0
    """Drafted tokens of all rows."""
    starts: list[int] = field(init=False)
    """Of each row, as they are before the step: `update` moves the requests on."""
    ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        # `row.start` and `row.end`, which as property calls take three times as long.
        self.starts = [row.request.num_computed - 1 if row.padding else row.request.num_computed for row in self.rows]
        self.ends = [start + row.num_tokens for start, row in zip(self.starts, self.rows, strict=True)]

    @property
    def num_tokens(self) -> int:
        return sum(self.ends) - sum(self.starts)

    def spread(self, sampled: Sequence[int]) -> Sequence[int | None]:
        """A token for each row; ``None`` for those that do not sample."""
        if len(sampled) == len(self.rows):
            return sampled
        tokens = iter(sampled)
        return [next(tokens) if row.samples else None for row in self.rows]

    @property
    def padded_rows(self) -> int:
        return sum([row.padding for row in self.rows])

    @property
    def decode_rows(self) -> int:
        return sum([row.decodes for row in self.rows])

    @property
    def context_tokens(self) -> int:
        """K/V tokens that the rows attend to."""
        return sum(self.ends)


class Scheduler:
    """Continuous batching: a request joins as soon as there is room and leaves as soon as it is done."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.kv = KVManager(config)
        spare = config.max_num_batched_tokens - config.max_num_seqs
        self._lookahead = NoLookahead() if config.speculative_config is None else Lookahead(spare)
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
        self._release(request)

    def schedule(self) -> Batch:
        """Choose the next step's rows; all of them have the KV blocks that the step writes."""
        rows: list[Row] = []
        budget = self.config.max_num_batched_tokens - self._lookahead.claim(self.running)
        budget = self._go_on(self.running, rows, budget)
        self._admit(rows, budget)
        return self._step_of(rows)

    def _step_of(self, rows: list[Row]) -> Batch:
        """The step of these rows, with their drafts."""
        drafted = self._lookahead.extend(rows, self.kv)
        return Batch(rows, self.config.block_size, drafted)

    def _go_on(self, requests: list[Request], rows: list[Row], budget: int) -> int:
        """Add the rows of running requests; returns what they leave of the budget.

        Preemption shortens `running` from its end, so the loop over it just ends earlier.
        """
        size = self.config.block_size
        for request in requests:
            row = request.steady
            if row is None:
                row = self._prompt_row(request, rows, budget)
                if row is None or not self._grow(request, row.num_tokens):
                    continue
            # Only a block's first token needs a new block.
            elif request.num_computed % size == 0 and not row.padding and not self._grow(request, 1):
                continue
            rows.append(row)
            budget -= row.num_tokens
        return budget

    def _admit(self, rows: list[Row], budget: int) -> None:
        """Add the rows of waiting requests, in order, as far as places, budget and KV go."""
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs and self._admits():
            request = self.waiting[0]
            if not self.kv.admit(request, self.running):
                break
            row = self._prompt_row(request, rows, budget)
            if row is None:
                self._release(request)
                request.num_computed = 0
                break
            self.running.append(self.waiting.popleft())
            rows.append(row)
            budget -= row.num_tokens

    def update(self, batch: Batch, sampled: Sequence[int], now: float) -> None:
        """Account for a finished step.

        Args:
            sampled: one token for each row that samples, in the order of the rows.
            now: when the tokens were there, in seconds on the clock of the run.
        """
        size = self.config.block_size
        finished = False
        for row, token in zip(batch.rows, batch.spread(sampled), strict=True):
            request, added = row.request, row.num_tokens
            if request.aborted or row.padding:
                continue
            computed = request.num_computed = request.num_computed + added
            if computed % size < added:  # it filled a block
                self.kv.publish(request)
            if token is not None:
                times = request.token_times
                request.tokens.append(token)
                times.append(now)
                if request.steady is None:
                    request.steady = Row(request, 1, samples=True)
                if len(times) == request.output_length:
                    finished = True
        self._retire(finished)

    def update_checked(self, batch: Batch, emitted: Sequence[Sequence[int]], now: float) -> None:
        """`update` for a step with drafts.

        Args:
            emitted: for each row that samples the drafted tokens that stand, and one more.
        """
        each = iter(emitted)
        for row in batch.rows:
            tokens = next(each) if row.samples else ()
            request = row.request
            if request.aborted or row.padding:
                continue
            # Blocks are published by their tokens, which therefore come first.
            request.tokens.extend(tokens)
            request.token_times.extend([now] * len(tokens))
            if row.draft is None:
                request.num_computed += row.num_tokens
            else:
                request.num_computed += len(tokens)
                request.drafted += row.drafted
                request.accepted += len(tokens) - 1
                request.draft = None
                self.kv.trim(request, request.num_computed)
            self.kv.publish(request)
            if tokens and request.steady is None:
                request.steady = Row(request, 1, samples=True)
        self._retire(any(row.request.completed for row in batch.rows))

    def _prompt_row(self, request: Request, rows: list[Row], budget: int) -> Row | None:
        """The step's part of a prompt, or of what is recomputed after a preemption; ``None``: nothing in this step."""
        tokens = request.to_compute
        if self.config.enable_chunked_prefill:
            tokens = min(tokens, budget)
        # A whole prompt goes in one piece; one larger than the budget runs where no other prompt does.
        elif tokens > budget and any(row.num_tokens > 1 for row in rows):
            return None
        return Row(request, tokens, samples=tokens == request.to_compute) if tokens > 0 else None

    def _admits(self) -> bool:
        """Whether the batching policy takes a new request now."""
        return True

    def _retire(self, finished: bool) -> None:
        """Let finished requests go.

        Args:
            finished: some request got its last token in this step.
        """
        if finished:
            for request in self.running:
                if request.finished:
                    self._release(request)
            self.running = [request for request in self.running if not request.finished]

    def _release(self, request: Request) -> None:
        """Give back what the request holds: finished, preempted or aborted, every request comes by here. Idempotent."""
        self.kv.free(request)
        request.steady = request.draft = None

    def _grow(self, request: Request, tokens: int) -> bool:
        """Room for the request's tokens, preempting from the newest; False where the request itself had to go."""
        while not self.kv.grow(request, tokens):
            victim = self.running.pop()
            self._release(victim)
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

    def _retire(self, finished: bool) -> None:
        if all(request.finished for request in self.running):
            super()._retire(True)
        elif finished:
            for request in self.running:
                if request.finished:
                    request.steady = Row(request, 1, samples=False, padding=True)


class PrefillFirstScheduler(Scheduler):
    """Prefill first: while a prompt can be computed a step computes prompts alone, and the running decodes wait."""

    def schedule(self) -> Batch:
        rows: list[Row] = []
        prompts = [request for request in self.running if request.steady is None]
        budget = self._go_on(prompts, rows, self.config.max_num_batched_tokens)
        self._admit(rows, budget)
        if not rows:
            self._go_on(self.running, rows, budget - self._lookahead.claim(self.running))
        return self._step_of(rows)


def make_scheduler(config: EngineConfig) -> Scheduler:
    schedulers = {"continuous": Scheduler, "prefill-first": PrefillFirstScheduler, "static": StaticScheduler}
    return schedulers[config.batching](config)

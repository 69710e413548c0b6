"""The loop: requests arrive, the scheduler chooses, the runner computes."""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch, make_scheduler
from inferdoc.engine.spec_decode.drafter import Drafter, make_drafter
from inferdoc.engine.spec_decode.proposal import DraftCounts
from inferdoc.engine.steplog import Step
from inferdoc.errors import BudgetEndedError, MeasurementError


class Runner(Protocol):
    """Computes batches: a model on a device, or a model of step times on a virtual clock."""

    def configure(self, config: EngineConfig) -> None:
        """Set up for runs under `config`. Called again for each engine, with different configurations."""
        ...

    def execute(self, batch: Batch) -> list[int]:
        """Compute the batch's rows; one token for each row that samples, in order."""
        ...

    def verify(self, batch: Batch) -> list[list[int]]:
        """`execute` for a batch with drafts: for each row that samples the drafted tokens that stand, and one more."""
        ...


class Clock(Protocol):
    def now(self) -> float: ...
    def sleep_until(self, when: float) -> None: ...


class WallClock:
    """Real time, in seconds."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep_until(self, when: float) -> None:
        time.sleep(max(0.0, when - self.now()))


@dataclass(frozen=True)
class RunResult:
    """One run: every request with its time stamps, every step."""

    config: EngineConfig
    requests: list[Request]
    steps: list[Step]
    duration_s: float
    """From the start of the run to its last token."""


class Engine:
    """One run's worth of engine: scheduler and KV bookkeeping are fresh, the runner (model and pages) is shared.

    Args:
        runner: computes batches; its pool must hold `config.kv_tokens`.
        clock: real time, or a virtual clock that the runner moves.
        deadline: on the clock; a step that begins later raises `BudgetEndedError`.
        drafter: proposes tokens; by default what the configuration says, which suffices but for a draft model.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        clock: Clock | None = None,
        deadline: float = math.inf,
        drafter: Drafter | None = None,
    ) -> None:
        self.runner = runner
        self.drafter = drafter or make_drafter(config)
        self.deadline = deadline
        self.config = config
        self.clock = clock or WallClock()
        self.scheduler = make_scheduler(config)
        runner.configure(config)
        self.steps: list[Step] = []
        self._bookkeeping = 0.0
        """Seconds spent on the step log, taken out of the run's time: its cost is ours and differs between arms."""

    def now(self) -> float:
        """The run's time in seconds: the clock without our own bookkeeping."""
        return self.clock.now() - self._bookkeeping

    def run(self, requests: Sequence[Request]) -> RunResult:
        """Serve the requests, each at its arrival time, to the end.

        A second run on the same engine finds what the first left in the prefix cache.

        Raises:
            MeasurementError: a request can never run under this configuration, or did not get its forced length.
            ValueError: an arrival that is not a finite number.
        """
        if not all(math.isfinite(request.arrival_s) for request in requests):
            raise ValueError("arrivals must be finite")
        self.steps = []
        pending = deque(sorted(requests, key=lambda request: request.arrival_s))
        with _quiet_collector():
            start = self.now()
            while pending or self.scheduler.has_work:
                while pending and start + pending[0].arrival_s <= self.now():
                    self.scheduler.add(pending.popleft())
                if self.scheduler.has_work:
                    self.step(start)
                elif pending:
                    self.clock.sleep_until(start + pending[0].arrival_s + self._bookkeeping)
        for request in requests:
            if not request.aborted and len(request.output) != request.output_length:
                raise MeasurementError(
                    f"request {request.id} produced {len(request.output)} of {request.output_length} tokens"
                )
        return RunResult(self.config, list(requests), self.steps, self.steps[-1].end_s if self.steps else 0.0)

    def step(self, start: float) -> None:
        """Schedule, compute, account, log.

        Args:
            start: `now()` at the start of the run.
        """
        began = self.now()
        if began > self.deadline:
            raise BudgetEndedError("the budget ended in the middle of a run")
        self.drafter.propose(self.scheduler.running)
        drafted = self.now()
        batch = self.scheduler.schedule()
        assert batch.rows, "work is there but nothing was scheduled"
        scheduled = self.now()
        for row in batch.rows:
            if row.request.scheduled_s is None:
                row.request.scheduled_s = began - start
        self.drafter.follow(batch)
        draft_s = drafted - began + self.now() - scheduled
        # Each is logged before the update moves the requests on.
        if batch.drafted:
            emitted = self.runner.verify(batch)
            now = self.now()
            self._log(batch, began - start, now - start, scheduled - drafted, draft_s, emitted)
            self.scheduler.update_checked(batch, emitted, now - start)
        else:
            sampled = self.runner.execute(batch)
            now = self.now()
            self._log(batch, began - start, now - start, scheduled - drafted, draft_s)
            self.scheduler.update(batch, sampled, now - start)

    def _log(
        self,
        batch: Batch,
        start_s: float,
        end_s: float,
        schedule_s: float,
        draft_s: float,
        emitted: Sequence[Sequence[int]] = (),
    ) -> None:
        before = self.clock.now()
        waiting, running = self.scheduler.waiting, self.scheduler.running
        decodes = batch.decode_rows
        padded = batch.padded_rows if decodes < len(batch.rows) else 0
        self.steps.append(
            Step(
                start_s=start_s,
                end_s=end_s,
                schedule_s=schedule_s,
                prefill_tokens=batch.num_tokens - decodes - padded - batch.drafted,
                decode_rows=decodes,
                padded_rows=padded,
                running=len(running),
                waiting=len(waiting),
                context_tokens=batch.context_tokens,
                kv=self.scheduler.kv.use(_lengths(batch, running), waiting[0] if waiting else None),
                device_s=getattr(self.runner, "last_device_s", None),
                bucket=getattr(self.runner, "last_bucket", None),
                draft_s=draft_s,
                drafts=_drafts(batch, emitted) if emitted else None,
            )
        )
        self._bookkeeping += self.clock.now() - before


def _drafts(batch: Batch, emitted: Sequence[Sequence[int]]) -> DraftCounts:
    sampling = zip([row for row in batch.rows if row.samples], emitted, strict=True)
    return DraftCounts.of((row.drafted, len(tokens) - 1) for row, tokens in sampling if row.draft is not None)


def _lengths(batch: Batch, running: Sequence[Request]) -> list[int]:
    """K/V tokens of each running request once the step is done, those without a row included."""
    if len(batch.rows) == len(running):
        return batch.ends
    ends = {row.request: end for row, end in zip(batch.rows, batch.ends, strict=True)}
    return [ends.get(request, request.num_computed) for request in running]


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """No garbage collection pauses while we measure."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

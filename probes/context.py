"""What every probe gets: the user's settings, the loaded model, the trace, and where to put what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferdoc.devices import Bandwidth, Device, MatmulRate
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine, RunResult, WallClock
from inferdoc.engine.memory import MemoryTerms
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.spec_decode.drafter import Drafter, make_drafter
from inferdoc.engine.spec_decode.replay import Replay
from inferdoc.errors import MeasurementError
from inferdoc.evidence import (
    Basis,
    Comparison,
    Direction,
    Interval,
    Objective,
    QualityResult,
    Quantity,
    Roofline,
    Series,
    Slo,
    look_up,
)
from inferdoc.models import LoadedModel, ModelSpec
from inferdoc.probes.sweep import Sweep
from inferdoc.simulator import ModelledRunner, StepTimes, VirtualClock, modelled_drafter
from inferdoc.statistics import MIN_PAIRS
from inferdoc.traces import Trace, WindowHits

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the user asked for."""

    objective: Objective = Objective.THROUGHPUT
    slo: tuple[Slo, ...] = ()
    budget_s: float = 360.0
    load: float = 0.7
    """Open-loop arrival rate as a share of the off arm's measured saturation."""
    replicas: int | None = None
    """Instead of `load`: recorded arrival times, one replica's share of the trace."""
    requests: int | None = None
    """Of the measured slice; ``None``: the planner's choice."""
    seed: int = 0
    memory_given: bool = False
    """The memory budget is the user's, not what the device has free."""
    num_speculative_tokens: int = 4
    """Drafted at each step of a request, at most."""


class Collector:
    """What the probes found so far; survives an interruption."""

    def __init__(self) -> None:
        self.quantities: dict[str, Quantity] = {}
        self.comparisons: dict[str, Comparison] = {}
        self.quality: dict[str, QualityResult] = {}
        self.series: list[Series] = []

    def lookup(self, id: str) -> Quantity | None:
        return look_up(id, self.quantities, self.comparisons)

    def add(
        self,
        id: str,
        label: str,
        value: float | None,
        unit: str,
        basis: Basis,
        *,
        interval: tuple[float, float] | None = None,
        method: str = "order statistics of the median",
        n: int | None = None,
        direction: Direction | None = None,
        exact: bool = False,
        reason: str | None = None,
        note: str | None = None,
        roofline: Roofline | None = None,
    ) -> None:
        """Record a quantity. A value that is not known needs a reason; one timed on steps has their roofline."""
        assert (value is None) == (reason is not None), f"{id}: exactly one of value and reason"
        self.quantities[id] = Quantity(
            id=id,
            label=label,
            value=value,
            unit=unit,
            basis=basis,
            interval=Interval(low=interval[0], high=interval[1], method=method) if interval else None,
            n=n,
            direction=direction,
            exact=exact,
            reason=reason,
            note=note,
            roofline=roofline,
        )


@dataclass(frozen=True)
class LoadedDraft:
    """A smaller model that drafts for the target, on a pool of its own."""

    loaded: LoadedModel
    runner: ModelRunner
    times: StepTimes
    step_ratios: dict[int, list[float]]
    """A decode step of the draft over one of the target just before it, round by round, by batch size."""

    def step_ratio(self, batch: int) -> float:
        """Of the nearest batch size that was timed."""
        return float(np.median(self.step_ratios[min(self.step_ratios, key=lambda size: abs(size - batch))]))


@dataclass(frozen=True)
class SliceRequest:
    """One request of the measured slice."""

    prompt: list[int]
    output_length: int
    arrival_s: float | None


@dataclass
class ProbeContext:
    settings: Settings
    trace: Trace
    """Whole trace, with lengths in tokens (and ids where it has any); what does not fit the context left out."""
    spec: ModelSpec
    loaded: LoadedModel
    device: Device
    runner: ModelRunner
    base: EngineConfig
    """Every technique off but continuous batching, chunked prefill and paging: each pair flips one switch of it."""
    budget_bytes: int
    memory: MemoryTerms
    kv_capacity_tokens: int
    """Under the memory budget, or as --kv-blocks fixed it; the pool of a run is smaller where it cannot use as much."""
    bandwidth: Bandwidth
    matmul: MatmulRate | None
    """``None``: it could not be measured."""
    sweep: Sweep
    real_outputs: bool
    found: Collector
    progress: Callable[[str], None]
    between_runs: Callable[[], None]
    """Called after each run, never inside a timed part: the watch on the machine looks."""
    deadline: float
    """`time.perf_counter()` at which the budget ends."""
    draft: LoadedDraft | None = None
    engine_notes: tuple[str, ...] = ()
    """What the engine does otherwise than asked for, and why."""
    pairs: int = MIN_PAIRS
    """Off/on pairs of each comparison; set by the planner."""
    peak: tuple[int, int] | None = None
    """Position and number of the requests of the trace's peak, where it has one: the slice is taken from there."""
    slice: list[SliceRequest] = field(default_factory=list)
    slice_trace: Trace | None = None
    """The measured part, every prompt with token ids; set by the planner, like `slice`."""
    history: list[list[int]] = field(default_factory=list)
    """Prefixes of the slice's prompts that requests before the slice have brought; set by the planner."""
    slice_hits: WindowHits | None = None
    saturation: dict[str, float] = field(default_factory=dict)
    """Requests per second of the off arm at saturation, by technique; set by the saturated comparisons."""
    replays: dict[str, Replay] = field(default_factory=dict)
    """Acceptance of drafts on known outputs, by method; set before the comparisons are planned."""
    ends: tuple[list[SliceRequest], list[int]] | None = None
    """Of requests at the head of a slice: the model's own outputs up to their end tokens, as lengths."""
    runs: dict[str, dict[str, RunResult]] = field(default_factory=dict)
    """Last run of each arm, by comparison."""

    predicted: bool = False
    """True in a copy that runs on modelled step times and a virtual clock."""

    @property
    def left_s(self) -> float:
        return self.deadline - time.perf_counter()

    def engine(self, config: EngineConfig) -> Engine:
        """A fresh engine on the shared model and pool, or on modelled step times in a prediction.

        Raises:
            MeasurementError: the pool is smaller than the configuration's.
        """
        if self.predicted:
            clock = VirtualClock()
            drafter = modelled_drafter(config, clock, **self._modelled_drafts(config))
            return Engine(ModelledRunner(self.sweep.times, clock), config, clock, drafter=drafter)
        if config.kv_tokens > self.runner.kv_tokens:
            raise MeasurementError(f"the arm needs {config.kv_tokens} KV tokens; the pool has {self.runner.kv_tokens}")
        return Engine(self.runner, config, WallClock(), self.deadline, self._drafter(config))

    def _drafter(self, config: EngineConfig) -> Drafter:
        runner = self.draft.runner if self.draft else None
        return make_drafter(config, draft_runner=runner, vocabulary=self.spec.vocab_size)

    def _modelled_drafts(self, config: EngineConfig) -> dict[str, Any]:
        """Acceptance and price of drafts in a prediction."""
        speculative = config.speculative_config
        if speculative is None:
            return {}
        plain = min(self.sweep.decode, key=lambda point: abs(point.batch - config.max_num_seqs)).median
        drafting = self.draft.step_ratio(config.max_num_seqs) * plain if self.draft else 0.0
        replay = self.replays.get(speculative.method, Replay()).by_k.get(speculative.num_speculative_tokens)
        return {
            "acceptance": replay.rates() if replay else (),
            "seconds": drafting if speculative.method == "draft" else 0.0,
        }

    def prediction(self) -> ProbeContext:
        """A copy that runs on modelled step times and leaves no trace here."""
        return replace(self, predicted=True, saturation={}, runs={}, found=Collector())

    def config(self, **changes: Any) -> EngineConfig:
        return replace(self.base, **changes)

    def requests(self, arrivals: Sequence[float] | None = None) -> list[Request]:
        """Fresh requests of the slice; without arrivals all are there at the start."""
        return [
            Request(i, r.prompt, r.output_length, 0.0 if arrivals is None else arrivals[i])
            for i, r in enumerate(self.slice)
        ]

    def serve(self, config: EngineConfig, arrivals: Sequence[float] | None = None) -> RunResult:
        """Run the slice. A prefix cache begins with what the requests before the slice would have left in it."""
        engine = self.engine(config)
        if config.enable_prefix_caching and self.history:
            # One token beyond the prefix: a prompt is never served whole from the cache.
            engine.run([Request(-1 - i, [*prefix, prefix[-1]], 1) for i, prefix in enumerate(self.history)])
        return engine.run(self.requests(arrivals))

    def open_arrivals(self, rate: float) -> list[float]:
        """The slice's recorded arrival pattern at `rate` requests/s; seeded exponential gaps where none is recorded."""
        recorded = [r.arrival_s for r in self.slice]
        if any(a is None for a in recorded):
            gaps = np.random.default_rng([self.settings.seed, 1]).exponential(1 / rate, len(recorded))
            return [float(t) for t in np.cumsum(gaps) - gaps[0]]
        times = spread_ties(np.array(recorded, dtype=float))
        if self.settings.replicas is None and times[-1] > 0:
            times = times * (len(times) / rate / times[-1])
        return [float(t) for t in times]

    @property
    def weight_bytes_read(self) -> int:
        """Weights that a decode step must read: no input embeddings unless tied, of experts only those of one token.

        A lower bound for mixtures of experts in batches, whose rows want different experts.
        """
        spec = self.spec
        read = self.loaded.weight_bytes_measured * spec.active_parameters / spec.parameters
        embeddings = 0 if spec.tied_embeddings else spec.vocab_size * spec.hidden_size * self.runner.dtype.itemsize
        return int(read - embeddings)

    @property
    def matrix_parameters(self) -> tuple[int, int]:
        """Parameters that each token is multiplied with, and those of the head, which only sampled rows meet."""
        spec = self.spec
        head = spec.vocab_size * spec.hidden_size
        return spec.active_parameters - (1 if spec.tied_embeddings else 2) * head, head

    @property
    def query_heads(self) -> int:
        config: Any = self.loaded.model.config
        return int(config.get_text_config().num_attention_heads)


def spread_ties(times: Floats) -> Floats:
    """Arrivals from 0 on, with those of one tick of a coarse clock spread evenly to the next tick.

    The last tick is taken to be as long as the mean one. Without this a clock of 3 s would send bursts that never were.
    """
    ticks, first, counts = np.unique(times, return_index=True, return_counts=True)
    length = np.diff(ticks).mean() if len(ticks) > 1 else 1.0
    ends = np.append(ticks[1:], ticks[-1] + length)
    place = np.arange(len(times)) - np.repeat(first, counts)
    spread = times + place / np.repeat(counts, counts) * np.repeat(ends - ticks, counts)
    return np.asarray(spread - spread[0])

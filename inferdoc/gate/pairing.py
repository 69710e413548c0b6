"""Runs of both arms in ABBA order: warm-up, pairs, what leaves a pair out. Keeps what was measured when interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from inferdoc.devices import RunWatch, cause
from inferdoc.engine.engine import RunResult
from inferdoc.errors import InvalidRunError
from inferdoc.gate.arms import NAMES, Bench, Name
from inferdoc.gate.measuring import ArmRun, identical_share, needs_open_loop, run_values
from inferdoc.gate.policy import Policy
from inferdoc.gate.procedure import Values
from inferdoc.gate.result import Exclusion
from inferdoc.progress import Progress

_STEADY = 0.05
"""Two warm-up runs in a row that differ by less are steady."""
_MOST_WARM_UP = 5
_MOST_EXCLUDED = 0.25
"""Share of the pairs; beyond it the machine, not the code, was measured."""


@dataclass(frozen=True)
class Pair:
    """One repeat of each arm that counts."""

    runs: dict[Name, ArmRun]
    values: dict[Name, dict[str, float | None]]


@dataclass
class Pairing:
    """The runs of one gate.

    Args:
        ids: metrics to take from each run.
    """

    bench: Bench
    policy: Policy
    ids: Sequence[str]
    watch: RunWatch
    progress: Progress
    pairs: list[Pair] = field(default_factory=list)
    """Without those of the confirmation."""
    order: list[Name] = field(default_factory=list)
    exclusions: list[Exclusion] = field(default_factory=list)
    warmup_runs: int = 0
    saturation: float | None = None
    """Requests per second of the baseline, measured while warming up."""
    _started: int = 0

    def warm_up(self, names: Sequence[Name] = NAMES) -> None:
        """Run each arm until it is steady, and find the baseline's saturation."""
        limit = None if self.policy.design.warmup == "until_steady" else int(self.policy.design.warmup)
        for name in names:
            runs = self._warm(name, limit)
            self.warmup_runs += len(runs)
            if name == "baseline":
                last = runs[-2:] or [self._saturated(name)]
                self.saturation = median(len(run.requests) / run.duration_s for run in last)

    def _warm(self, name: Name, limit: int | None) -> list[RunResult]:
        runs: list[RunResult] = []
        while len(runs) < (_MOST_WARM_UP if limit is None else limit):
            self.progress.step(f"warm-up of the {name}, run {len(runs) + 1}")
            runs.append(self._saturated(name))
            steady = len(runs) > 1 and abs(runs[-1].duration_s / runs[-2].duration_s - 1) < _STEADY
            if limit is None and steady:
                break
        return runs

    def _saturated(self, name: Name) -> RunResult:
        return self.bench.arm(name).serve(None)

    @property
    def open_rate(self) -> float | None:
        """Requests per second of the open-loop load, the same for both arms; ``None`` where no metric needs it."""
        workload = self.policy.workload
        if self.saturation is None or not needs_open_loop(self.ids):
            return None
        return workload.rate if workload.rate is not None else self.saturation * workload.load

    @property
    def open_label(self) -> str | None:
        """What the open-loop load is called."""
        rate, saturation = self.open_rate, self.saturation
        if rate is None or saturation is None:
            return None
        return f"open loop at {rate:.3g} requests/s ({rate / saturation:.2f} of the baseline's saturation)"

    def draw(self, count: int, confirming: bool) -> Values:
        """Run `count` fresh pairs.

        Returns:
            Values of the pairs that count: one that a recorded physical cause disturbed is left out in both arms.

        Raises:
            InvalidRunError: more than a quarter of the pairs were disturbed.
        """
        kept: list[Pair] = []
        for index in range(count):
            what = "confirming pair" if confirming else "pair"
            self.progress.stage(f"{what} {index + 1} of {count}")
            pair = self._pair()
            if pair is None:
                continue
            kept.append(pair)
            if not confirming:
                self.pairs.append(pair)
                self.order += pair.runs  # in the order in which they were made
        if len(self.exclusions) > _MOST_EXCLUDED * self._started:
            causes = "; ".join(sorted({exclusion.cause for exclusion in self.exclusions}))
            raise InvalidRunError(
                f"{len(self.exclusions)} of {self._started} pairs were disturbed ({causes}): free the device, or fix "
                "its clocks, and run again"
            )
        return values_of(kept, self.ids)

    def repeat(self, name: Name, count: int) -> list[dict[str, float | None]]:
        """The values of `count` runs of one arm alone."""
        values = []
        for index in range(count):
            self.progress.stage(f"run {index + 1} of {count}")
            values.append(self._run(name)[1])
        return values

    def _pair(self) -> Pair | None:
        """One pair, in the order of its place: AB, BA, AB, ...; ``None`` where it is left out."""
        self._started += 1
        turned = (self._started + self.policy.design.seed) % 2 == 0
        order = NAMES[::-1] if turned else NAMES
        runs: dict[Name, ArmRun] = {}
        values: dict[Name, dict[str, float | None]] = {}
        readings = {}
        for name in order:
            before = self.watch.read()
            self.progress.step(f"pair {self._started}, {name}")
            runs[name], values[name] = self._run(name)
            readings[name] = [before, self.watch.read()]
        disturbed = cause(readings["baseline"], readings["candidate"])
        if disturbed is not None:
            self.exclusions.append(Exclusion(pair=self._started, cause=disturbed))
            return None
        if "outputs_identical" in self.ids:
            for name in NAMES:
                values[name]["outputs_identical"] = identical_share(runs["baseline"].saturated, runs[name].saturated)
        return Pair(runs, values)

    def _run(self, name: Name) -> tuple[ArmRun, dict[str, float | None]]:
        fresh = not self.bench.loaded(name)
        arm = self.bench.arm(name)
        if fresh:
            arm.serve(None)
            self.warmup_runs += 1
        rate = self.open_rate
        saturated = arm.serve(None)
        run = ArmRun(saturated, arm.serve(arm.context.open_arrivals(rate)) if rate is not None else None)
        price = self.policy.cost.per_hour if self.policy.cost else None
        values = run_values(self.ids, run, arm, slo=self.policy.workload.slo, price_per_hour=price)
        del arm
        self.bench.run_ended(name)
        return run, values


def values_of(pairs: Sequence[Pair], ids: Sequence[str]) -> Values:
    """The values of pairs by metric, in the order of the pairs."""
    return {
        id: ([pair.values["baseline"][id] for pair in pairs], [pair.values["candidate"][id] for pair in pairs])
        for id in ids
    }

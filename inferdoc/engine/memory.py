"""What memory a model takes beside its KV pool, measured by running its largest step; what is left is the pool's.

    budget |-- weights --|-- activations, logits in them --|-- graphs --|-- outside --|---- KV pool ----|-- left --|

Outside: what the process holds beside the framework's tensors (CUDA context, libraries, communicators).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from inferdoc.devices import Device, free_now
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.engine.silent import silent_stderr
from inferdoc.engine.spec_decode.proposal import Draft

_HEADROOM = 0.02
"""Share of a card's budget that the pool leaves alone: torch's allocator rounds up and fragments."""
_FOREIGN_BYTES = 256 * 2**20
_FOREIGN_SHARE = 0.02
"""Free memory that may come or go unexplained before it is called another process's: the larger of the two."""


@dataclass(frozen=True)
class LargestStep:
    """The step that takes most memory: last chunks of the longest prompts, beside decodes; every row samples."""

    tokens: int
    context: int
    """Of each prompt whose last chunk is computed."""
    sequences: int
    """Rows, the decodes included."""
    decode_context: int
    block_size: int
    drafted: int = 0
    """Tokens that a decode checks beside its own, where drafts are run: each has a row of logits."""

    def batch(self, vocabulary: int, blocks: int) -> Batch:
        """The step on a pool of `blocks`: the sequences share them, since only sizes matter here."""
        rows: list[Row] = []
        left = self.tokens
        for others in reversed(range(self.sequences)):
            computed = min(self.context, left - min(others, left - 1)) if left else 0
            if computed:
                rows.append(
                    self._row(self.context if computed > 1 else self.decode_context, computed, vocabulary, blocks)
                )
            left -= computed
        return Batch(rows, self.block_size)

    def checks(self, vocabulary: int, blocks: int) -> Batch | None:
        """A full batch of decodes that all check a whole draft, on such a pool; ``None`` where no drafts are run."""
        if not self.drafted:
            return None
        length, rows = max(self.decode_context, self.drafted + 2), []
        for _ in range(self.sequences):
            row = self._row(length, self.drafted + 1, vocabulary, blocks)
            draft = Draft(row.request.tokens[length - self.drafted : length].tolist())
            rows.append(Row(row.request, self.drafted + 1, samples=True, draft=draft))
        return Batch(rows, self.block_size, drafted=self.drafted * self.sequences)

    def _row(self, length: int, computed: int, vocabulary: int, blocks: int) -> Row:
        request = Request(0, [i % vocabulary for i in range(length)], output_length=1)
        request.num_computed = length - computed
        request.block_ids = [i % blocks for i in range(-(-length // self.block_size))]
        return Row(request, computed, samples=True)


@dataclass(frozen=True)
class MemoryProfile:
    """Bytes; ``None`` where the platform does not tell."""

    activation_peak: int | None
    """Above weights and pool, during the step that takes most, logits and sampler included."""
    logits: int
    """Part of `activation_peak`: one row for each sequence that samples, and for each drafted token that is checked."""
    outside_framework: int | None
    step: LargestStep


@dataclass(frozen=True)
class Reading:
    """Memory at one moment. Bytes; ``None`` where the platform does not tell."""

    free: int | None
    """On the device, for everyone."""
    own: int | None
    """This process's: what the framework has reserved of a card, the resident set on a host."""

    @classmethod
    def now(cls, device: Device) -> Reading:
        own = torch.cuda.memory_reserved(device.index) if device.kind == "cuda" else _resident_bytes()
        return cls(free_now(device), own)

    def unexplained(self, later: Reading) -> int | None:
        """Bytes of free memory that went between the readings without this process's own use growing by them.

        Negative: free memory grew. Right after loading this is what the process holds outside the framework; later,
        another process's doing.
        """
        if None in (self.free, self.own, later.free, later.own):
            return None
        return (self.free - later.free) - (later.own - self.own)  # type: ignore[operator]


@dataclass(frozen=True, kw_only=True)
class MemoryTerms:
    """Where the budget goes. Bytes; ``None`` where the platform does not tell, counted as nothing in the sum."""

    budget: int
    weights: int
    profile: MemoryProfile
    graphs: int | None
    """``None``: no graphs were captured."""
    kv_pool: int
    draft: int = 0
    """Weights and K/V of a draft model."""
    note: str | None = None
    """Set where free memory changed meanwhile by another process's doing."""

    @property
    def taken(self) -> int:
        """All but the pool."""
        return self.draft + _taken(self.weights, self.profile, self.graphs)

    @property
    def left(self) -> int:
        """Of the budget: what no term takes. Negative where the budget is exceeded."""
        return self.budget - self.taken - self.kv_pool


def _taken(weights: int, profile: MemoryProfile, graphs: int | None) -> int:
    return weights + (profile.activation_peak or 0) + (graphs or 0) + (profile.outside_framework or 0)


def available_for_kv(
    *, budget: int, weights: int, profile: MemoryProfile, graphs: int | None, now: Reading, held: int, on_card: bool
) -> int:
    """Bytes that a KV pool may take: within the budget, and within what is free now.

    Args:
        now: after the profile (and the capture of graphs, if any), the allocator's unused memory given back.
        held: bytes of the small pool that is there meanwhile, and gives way.
    """
    within = budget - _taken(weights, profile, graphs)
    if now.free is not None:
        within = min(within, now.free + held - (profile.activation_peak or 0))
    return max(0, within - (int(_HEADROOM * budget) if on_card else 0))


def foreign_note(before: Reading, after: Reading, budget: int) -> str | None:
    """Says so where free memory changed between two readings by more than this process explains."""
    gone = before.unexplained(after)
    if gone is None or abs(gone) <= max(_FOREIGN_BYTES, _FOREIGN_SHARE * budget):
        return None
    way = "shrank" if gone > 0 else "grew"
    return (
        f"free memory {way} by {abs(gone) / 2**30:.2f} GiB while it was measured, by another process's doing: "
        "the KV pool may be of another size in the next run; --kv-blocks fixes it"
    )


def profile(
    runner: ModelRunner, step: LargestStep, *, device: Device, before_load: Reading, weight_bytes: int, vocabulary: int
) -> MemoryProfile:
    """Run the largest step, and the one that checks most drafted tokens, and read the higher peak.

    The runner's pool must hold the step's tokens. On CUDA the framework's own counters give the activations, and free
    memory since before the load, less what the framework reserved, gives what is outside it. On a CPU the profiler's
    log of allocations gives the activations, and the process's resident set the rest.
    """
    blocks = runner.kv_tokens // step.block_size
    batch, checks = step.batch(vocabulary, blocks), step.checks(vocabulary, blocks)
    resident = _resident_bytes() if device.kind == "cpu" else None
    peaks = [(_peak(runner, partial(runner.execute, batch)), sum(row.samples for row in batch.rows))]
    if checks is not None:
        peaks.append((_peak(runner, partial(runner.verify, checks)), sum(1 + row.drafted for row in checks.rows)))
    peak, rows = max(peaks, key=lambda found: found[0] or 0)
    if device.kind == "cuda":
        # The allocator keeps what the steps needed; given back, free memory says what others may take.
        torch.cuda.empty_cache()
        outside = before_load.unexplained(Reading.now(device))
    else:
        outside = None if resident is None else resident - weight_bytes
    logits = rows * vocabulary * runner.dtype.itemsize
    return MemoryProfile(peak, logits, None if outside is None else max(0, outside), step)


def _peak(runner: ModelRunner, run: Callable[[], object]) -> int | None:
    """Bytes above what is allocated before, at the highest moment of `run`."""
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)
        torch.cuda.reset_peak_memory_stats(runner.device)
        before = torch.cuda.memory_allocated(runner.device)
        run()
        torch.cuda.synchronize(runner.device)
        return torch.cuda.max_memory_allocated(runner.device) - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with silent_stderr(), torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        run()
    return _peak_allocation(profiler)


def _peak_allocation(profiler: torch.profiler.profile) -> int | None:
    """Highest sum of the allocations and releases that were logged."""
    result = profiler.profiler.kineto_results if profiler.profiler else None
    events: Iterable[Any] = result.events() if result else []
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(accumulate(sizes)) if sizes else None


def _resident_bytes() -> int | None:
    try:
        found = re.search(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None

"""What memory a model takes beside its KV pool, measured by running its largest step."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from inferdoc.engine.request import Request
from inferdoc.engine.runner import EagerRunner
from inferdoc.engine.scheduler import Batch, Row


@dataclass(frozen=True)
class MemoryProfile:
    """Bytes; ``None`` where the platform does not tell."""

    activation_peak: int | None
    """Above weights and pool, during a step of `step_tokens` prompt tokens."""
    outside_framework: int | None
    """Held by the process but not by the framework's tensors: context, libraries, graphs, communicators."""
    step_tokens: int


def profile(runner: EagerRunner, *, step_tokens: int, weight_bytes: int, vocabulary: int) -> MemoryProfile:
    """Run one prompt step of `step_tokens` and read the peak. The runner's pool must hold that many tokens.

    On CUDA the framework's own counters give the activations, and the driver's use of the process less what the
    framework reserved gives the rest. On a CPU the profiler's log of allocations gives the activations, and the
    process's resident set the rest.
    """
    request = Request(0, [i % vocabulary for i in range(step_tokens)], output_length=1)
    request.block_ids = list(range(step_tokens))
    batch = Batch([Row(request, step_tokens, samples=True)], block_size=1)
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)
        torch.cuda.reset_peak_memory_stats(runner.device)
        before = torch.cuda.memory_allocated(runner.device)
        runner.execute(batch)
        torch.cuda.synchronize(runner.device)
        peak = torch.cuda.max_memory_allocated(runner.device) - before
        free, total = torch.cuda.mem_get_info(runner.device)
        # Other processes' memory is in this figure too where there are any; the watch on the run reports them.
        outside = max(0, total - free - torch.cuda.memory_reserved(runner.device))
        return MemoryProfile(peak, outside, step_tokens)
    resident = _resident_bytes()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _silent_stderr(), torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        runner.execute(batch)
    rest = None if resident is None else max(0, resident - weight_bytes)
    return MemoryProfile(_peak_allocation(profiler), rest, step_tokens)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """The profiler's native code announces itself on the process's stderr."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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

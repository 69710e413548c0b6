"""The embedded model on its bundled trace, prepared once: real runs, small."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from inferdoc.devices import find_device
from inferdoc.options import Options
from inferdoc.preparation import prepare, read_workload
from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.progress import Progress

GIB = 2**30


@pytest.fixture(scope="session")
def prepare_embedded() -> Callable[..., ProbeContext]:
    """The embedded model on a small budget, with further options."""

    def make(**changes: Any) -> ProbeContext:
        options = Options(device="cpu", memory_bytes=4 * GIB, max_num_batched_tokens=64, max_num_seqs=4, **changes)
        context = prepare(
            options,
            "float32",
            read_workload(options),
            find_device("cpu"),
            budget_bytes=4 * GIB,
            deadline=time.perf_counter() + 3600,
            found=Collector(),
            progress=Progress(),
            between_runs=lambda: None,
        )
        assert context is not None
        return context

    return make


@pytest.fixture(scope="session")
def prepared(prepare_embedded: Callable[..., ProbeContext]) -> ProbeContext:
    """Leave it as it is: what a test changes it changes in a copy."""
    return prepare_embedded()

"""What the host does in a step of decodes does not depend on how long their contexts are."""

from __future__ import annotations

import sys

import pytest

from inferdoc.engine.batch import BatchArrays
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine, WallClock
from inferdoc.engine.request import Request


class BuildingRunner:
    """Builds each step's arrays, as a model's runner does, and samples token 0."""

    def __init__(self):
        self.arrays = BatchArrays()

    def configure(self, config):
        pass

    def execute(self, batch):
        self.arrays.build(batch)
        return [0] * sum(row.samples for row in batch.rows)


def lines_of_python(context: int, *, caching: bool) -> int:
    """Lines that run in the 16 steps in which each of 8 decodes fills a block once."""
    config = EngineConfig(
        max_model_len=context + 64,
        num_kv_blocks=8 * (context // 16 + 4),
        max_num_seqs=8,
        max_num_batched_tokens=8 * context,
        enable_prefix_caching=caching,
    )
    engine = Engine(BuildingRunner(), config, WallClock())
    for i in range(8):
        engine.scheduler.add(Request(i, [i] * context, 60))
    for _ in range(3):
        engine.step(0.0)
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if not frame.f_globals["__name__"].startswith("inferdoc."):
            return None  # such as what others run at a garbage collection
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(16):
            engine.step(0.0)
    finally:
        sys.settrace(before)
    assert all(request.steady for request in engine.scheduler.running)
    return count


@pytest.mark.parametrize("caching", [False, True])
def test_a_step_of_decodes_runs_as_many_lines_with_long_contexts_as_with_short_ones(caching):
    short = lines_of_python(64, caching=caching)
    assert short > 1000
    assert lines_of_python(4096, caching=caching) == short

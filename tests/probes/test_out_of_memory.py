"""Out of memory in a comparison: that arm's result, with the bytes; the memory is given back and the rest goes on."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from inferdoc.devices import find_device
from inferdoc.diagnosis import _run_pairs
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.scheduler import Batch
from inferdoc.evidence import PlanStep, Question
from inferdoc.probes.context import Collector, ProbeContext, Settings, SliceRequest
from inferdoc.probes.paired import Pair, compare
from inferdoc.probes.plan import Plan
from inferdoc.probes.stack import measure_stack
from inferdoc.progress import Progress

BASE = EngineConfig(max_model_len=64, num_kv_blocks=32, max_num_seqs=4)
ON_A_CARD = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.72 GiB."


class FailingRunner:
    """Samples token 0. Under a configuration of `when` it runs out of memory in its n-th step, holding a tensor."""

    kv_tokens = BASE.kv_tokens
    dtype = torch.float32
    specs: tuple[()] = ()

    def __init__(self, when: Callable[[EngineConfig], bool], at_step: int, error: Exception) -> None:
        self.when, self.at_step, self.error = when, at_step, error
        self.held: list[weakref.ref[torch.Tensor]] = []

    def configure(self, config: EngineConfig) -> None:
        self.config = config

    def execute(self, batch: Batch) -> list[int]:
        activations = torch.zeros(1000)
        if self.when(self.config):
            self.held.append(weakref.ref(activations))
            cycle: list[object] = [activations]
            cycle.append(cycle)  # as modules and their hooks have them: only a collection frees it
            self.at_step -= 1
            if self.at_step <= 0:
                # A new error each time: one kept by the test would itself keep the frames that it went through.
                raise type(self.error)(*self.error.args)
        return [0] * sum(row.samples for row in batch.rows)


def make_context(runner: FailingRunner) -> ProbeContext:
    fixed = SimpleNamespace(
        vocab_size=8,
        hidden_size=4,
        tied_embeddings=True,
        active_parameters=100,
        parameters=100,
        weight_bytes_measured=400,
    )
    return ProbeContext(
        settings=Settings(),
        trace=None,  # type: ignore[arg-type]
        spec=fixed,  # type: ignore[arg-type]
        loaded=fixed,  # type: ignore[arg-type]
        device=find_device("cpu"),
        runner=runner,  # type: ignore[arg-type]
        base=BASE,
        budget_bytes=0,
        memory=None,  # type: ignore[arg-type]
        kv_capacity_tokens=BASE.kv_tokens,
        bandwidth=SimpleNamespace(cache_resident=False, bytes_per_s=1e9),  # type: ignore[arg-type]
        matmul=None,
        sweep=None,  # type: ignore[arg-type]
        real_outputs=False,
        found=Collector(),
        progress=lambda text: None,
        between_runs=lambda: None,
        deadline=time.perf_counter() + 600,
        pairs=6,
        slice=[SliceRequest([1, 2, 3], 4, None)] * 6,
    )


def pair(technique: str, off: EngineConfig, on: EngineConfig) -> Pair:
    return Pair(
        id=f"{technique}.saturated",
        question=Question.PREFIX_REDUNDANCY,
        technique=technique,
        label=technique,
        off=off,
        on=on,
        metrics=("throughput",),
    )


CACHING = pair("prefix_caching", BASE, EngineConfig(**{**BASE.describe(), "enable_prefix_caching": True}))
BATCHING = pair("continuous_batching", EngineConfig(**{**BASE.describe(), "batching": "static"}), BASE)


@pytest.mark.parametrize(
    ("error", "bytes_named"),
    [
        (torch.OutOfMemoryError(ON_A_CARD), "2.50 GiB asked for"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1048576 bytes."),
            "1.0 MiB asked",
        ),
        (MemoryError("Unable to allocate 7.28 TiB"), "free"),
    ],
)
@pytest.mark.parametrize("step", [1, 40])
def test_an_arm_out_of_memory_is_its_result_and_the_next_comparison_runs(
    error: Exception, bytes_named: str, step: int
) -> None:
    runner = FailingRunner(lambda config: config.enable_prefix_caching, step, error)
    context = make_context(runner)
    steps = [
        PlanStep(id=each.id, question=each.question, label=each.label, pairs=6, estimated_s=1.0)
        for each in (CACHING, BATCHING)
    ]
    _run_pairs(context, Plan(steps, [CACHING, BATCHING]), Progress())
    failed, after = (context.found.comparisons[each.id] for each in (CACHING, BATCHING))
    assert failed.failure is not None
    assert failed.failure.startswith("on arm: out of memory: ")
    assert bytes_named in failed.failure
    assert " free" in failed.failure
    assert failed.pairs < 6
    assert (after.failure, after.pairs) == (None, 6)
    assert after.metrics["throughput"].gain.interval is not None
    assert all(step.dropped is None for step in steps)


def test_the_arm_that_failed_is_named_whichever_ran_last() -> None:
    runner = FailingRunner(lambda config: config.batching == "static", 40, torch.OutOfMemoryError(ON_A_CARD))
    comparison = compare(make_context(runner), BATCHING, 6)
    assert comparison.pairs > 0
    assert comparison.failure is not None
    assert comparison.failure.startswith("off arm: out of memory")


def test_pairs_that_were_run_before_the_failure_are_kept() -> None:
    runner = FailingRunner(lambda config: config.enable_prefix_caching, 40, torch.OutOfMemoryError(ON_A_CARD))
    comparison = compare(make_context(runner), CACHING, 6)
    assert 0 < comparison.pairs < 6
    assert len(comparison.metrics["throughput"].off) == comparison.pairs


def test_nothing_keeps_the_tensors_of_the_failed_step_alive() -> None:
    runner = FailingRunner(lambda config: config.enable_prefix_caching, 2, torch.OutOfMemoryError(ON_A_CARD))
    gc.disable()  # what dies only by a later, chance collection was not given back
    try:
        compare(make_context(runner), CACHING, 6)
        assert len(runner.held) == 2
        assert all(reference() is None for reference in runner.held)
    finally:
        gc.enable()


def test_other_errors_are_not_taken_for_it() -> None:
    runner = FailingRunner(lambda config: config.enable_prefix_caching, 1, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        compare(make_context(runner), CACHING, 6)


def test_a_stack_out_of_memory_says_so_and_loses_nothing() -> None:
    runner = FailingRunner(lambda config: config.enable_prefix_caching, 3, torch.OutOfMemoryError(ON_A_CARD))
    context = make_context(runner)
    measure_stack(context, ["continuous_batching", "prefix_caching"])
    reasons = {quantity.reason for quantity in context.found.quantities.values()}
    assert len(reasons) == 1
    assert str(reasons.pop()).startswith("the stack failed: out of memory: 2.50 GiB asked for")
    assert all(reference() is None for reference in runner.held)

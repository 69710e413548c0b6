"""Windows, arrivals, fitted step times and what fits into a budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.kv_manager import KVUse
from inferdoc.engine.request import Request
from inferdoc.engine.steplog import Step
from inferdoc.evidence import Objective
from inferdoc.probes.context import Collector, ProbeContext, Settings, spread_ties
from inferdoc.probes.kv_fragmentation import comparisons as fragmentation_pairs
from inferdoc.probes.output_variance import comparisons as variance_pairs
from inferdoc.probes.paired import Pair
from inferdoc.probes.plan import choose_window, make_plan, smallest_slice
from inferdoc.probes.stack import measure_stack
from inferdoc.simulator import ModelledRunner, StepTimes, VirtualClock
from inferdoc.traces import Trace, read_trace

TIMES = StepTimes(base=0.001, token=0.0001, row=0.0002, context=1e-6, relative_error=0.0)


def write_trace(path: Path, rows: list[tuple[float, int, int]]) -> Trace:
    path.write_text("timestamp,prompt_tokens,completion_tokens\n" + "".join(f"{t},{i},{o}\n" for t, i, o in rows))
    return read_trace(path)


def make_context(trace: Trace, left_s: float, **config: Any) -> ProbeContext:
    """A context whose only working parts are those that planning needs."""
    fixed = SimpleNamespace(vocab_size=100, eos_token_ids=(), times=TIMES)
    context = ProbeContext(
        settings=Settings(),
        trace=trace,
        spec=fixed,  # type: ignore[arg-type]
        loaded=fixed,  # type: ignore[arg-type]
        device=None,  # type: ignore[arg-type]
        runner=None,  # type: ignore[arg-type]
        base=EngineConfig(**{"max_model_len": 512, "num_kv_blocks": 256, **config}),
        budget_bytes=0,
        memory=None,  # type: ignore[arg-type]
        kv_capacity_tokens=10**6,
        bandwidth=None,  # type: ignore[arg-type]
        matmul=None,
        sweep=fixed,  # type: ignore[arg-type]
        real_outputs=False,
        found=Collector(),
        progress=lambda text: None,
        between_runs=lambda: None,
        deadline=0.0,
    )
    context.found.add(
        "fit.kv_demand_p99_tokens",
        "demand",
        1000,
        "tokens",
        basis="modelled",  # type: ignore[arg-type]
    )
    context.__class__ = type("_Timed", (ProbeContext,), {"left_s": left_s})
    return context


def test_ties_of_a_coarse_clock_are_spread_to_the_next_tick() -> None:
    assert spread_ties(np.array([0.0, 0.0, 0.0, 3.0, 6.0, 6.0])).tolist() == [0.0, 1.0, 2.0, 3.0, 6.0, 7.5]


def test_distinct_arrivals_stay_as_they_are() -> None:
    assert spread_ties(np.array([5.0, 5.5, 9.0])).tolist() == [0.0, 0.5, 4.0]


def test_the_window_has_the_work_of_the_whole_trace(tmp_path: Path) -> None:
    lengths = [(100, 10)] * 10 + [(10, 1)] * 10 + [(55, 5), (55, 6)] * 5
    trace = write_trace(tmp_path / "t.csv", [(float(i), *pair) for i, pair in enumerate(lengths)])
    start, count = choose_window(trace, 10)
    chosen = lengths[start : start + count]
    assert count == 10
    assert sum(i for i, _ in chosen) / 10 == pytest.approx(sum(i for i, _ in lengths) / 30, rel=0.05)
    assert sum(o for _, o in chosen) / 10 == pytest.approx(sum(o for _, o in lengths) / 30, rel=0.05)


def test_a_window_never_exceeds_the_trace(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [(0.0, 10, 2), (1.0, 10, 2)])
    assert choose_window(trace, 64) == (0, 2)


def test_a_single_request_arrives_at_the_start(tmp_path: Path) -> None:
    context = make_context(write_trace(tmp_path / "t.csv", [(7.0, 10, 2)]), 1e6)
    plan = make_plan(context, variance_pairs(context))
    assert context.open_arrivals(5.0) == [0.0]
    assert all(step.estimated_s > 0 for step in plan.steps)


def test_open_arrivals_have_the_rate_asked_for(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [(float(i * i), 10, 2) for i in range(40)])
    context = make_context(trace, 1e6)
    make_plan(context, [])
    arrivals = context.open_arrivals(5.0)
    assert len(arrivals) / arrivals[-1] == pytest.approx(5.0)
    assert arrivals[0] == 0.0
    recorded = [r.arrival_s for r in context.slice]
    assert [a / arrivals[-1] for a in arrivals] == pytest.approx(
        [(r - recorded[0]) / (recorded[-1] - recorded[0]) for r in recorded]
    )


def test_step_times_are_recovered_from_steps_made_with_them() -> None:
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(60):
        tokens, rows, context = (int(rng.integers(0, n)) for n in (256, 8, 4000))
        seconds = TIMES.seconds(prefill_tokens=tokens, decode_rows=rows, context_tokens=context)
        steps.append(Step(0.0, seconds, 0.0, tokens, rows, 0, rows, 0, context, KVUse(0, 0, 0, 0)))
    fitted = StepTimes.fit(steps)
    assert fitted.relative_error < 1e-6
    assert (fitted.base, fitted.token, fitted.row, fitted.context) == pytest.approx((0.001, 0.0001, 0.0002, 1e-6))


def test_a_predicted_run_takes_the_sum_of_its_steps() -> None:
    clock = VirtualClock()
    config = EngineConfig(max_model_len=64, num_kv_blocks=16)
    run = Engine(ModelledRunner(TIMES, clock), config, clock).run([Request(0, [1] * 10, 3)])
    prompt = 0.001 + 10 * 0.0001 + 10e-6
    decodes = sum(0.001 + 0.0002 + n * 1e-6 for n in (11, 12))
    assert run.duration_s == pytest.approx(prompt + decodes)


def test_with_time_enough_everything_runs_on_a_longer_slice(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(200)])
    context = make_context(trace, 1e6)
    plan = make_plan(context, variance_pairs(context) + fragmentation_pairs(context))
    assert all(step.dropped is None for step in plan.steps)
    assert len(context.slice) == 200
    assert {step.pairs for step in plan.steps} == {context.pairs} == {10}


def one_pair_at_floor(context: ProbeContext, pairs: list[Pair]) -> list[float]:
    """Seconds of one pair of each comparison on the smallest slice, from a plan without limits."""
    steps = make_plan(context, pairs).steps
    return [step.estimated_s / 11 * smallest_slice(context.base) / len(context.slice) for step in steps]


def test_the_slice_shrinks_to_its_floor_before_anything_is_dropped(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(200)])
    context = make_context(trace, 1e6)
    pairs = variance_pairs(context) + fragmentation_pairs(context)
    tight = make_context(trace, 7 * sum(one_pair_at_floor(context, pairs)) / 0.9 * 1.01)
    plan = make_plan(tight, pairs)
    assert len(tight.slice) == smallest_slice(context.base)
    assert tight.pairs == 6
    assert all(step.dropped is None for step in plan.steps)


def test_pairs_are_dropped_from_the_last_question_up_and_say_what_they_need(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(200)])
    context = make_context(trace, 1e6)
    pairs = variance_pairs(context) + fragmentation_pairs(context)
    first = one_pair_at_floor(context, pairs)[0]
    tight = make_context(trace, 7 * first / 0.9 * 1.001)
    plan = make_plan(tight, pairs)
    assert [pair.id for pair in plan.run] == [pairs[0].id]
    dropped = [step for step in plan.steps if step.dropped]
    assert [step.id for step in dropped] == [pair.id for pair in pairs[1:]]
    assert all("more" in str(step.dropped) for step in dropped)


def test_time_left_over_starts_a_comparison_that_will_not_be_finished(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(200)])
    context = make_context(trace, 1e6)
    pairs = variance_pairs(context)
    saturated = one_pair_at_floor(context, pairs)[0]
    plan = make_plan(make_context(trace, 4 * saturated / 0.9), pairs)
    assert [pair.id for pair in plan.run] == ["continuous_batching.saturated"]
    assert all(step.dropped for step in plan.steps)
    assert make_plan(make_context(trace, 1.9 * saturated / 0.9), pairs).run == []


def test_more_pairs_come_before_a_larger_slice(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(200)])
    context = make_context(trace, 1e6)
    pairs = variance_pairs(context)
    one = one_pair_at_floor(context, pairs)
    wanted = sum(one) + 1.5 * one[0]  # and the stack
    for left, count in ((7.5 * wanted, 6), (9.5 * wanted, 8), (11.5 * wanted, 10)):
        tight = make_context(trace, left / 0.9)
        assert all(step.dropped is None for step in make_plan(tight, pairs).steps)
        assert (tight.pairs, len(tight.slice)) == (count, pytest.approx(16, abs=1))


def test_an_open_loop_is_not_run_without_its_saturation(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(200)])
    pairs = variance_pairs(make_context(trace, 1e6))[1:]
    assert make_plan(make_context(trace, 1e6), pairs).run == []


def test_a_prediction_leaves_no_trace(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(200)])
    context = make_context(trace, 1e6)
    make_plan(context, variance_pairs(context))
    assert context.saturation == {}
    assert context.runs == {}
    assert context.found.comparisons == {}


def test_budgets_of_question_4_are_distinct_and_hold_the_longest_request(tmp_path: Path) -> None:
    rows = [(i / 10, 50, 20) for i in range(40)] + [(5.0, 400, 30)]
    context = make_context(write_trace(tmp_path / "t.csv", rows), 1e6)
    budgets = {pair.id: pair.off.kv_tokens for pair in fragmentation_pairs(context)}
    assert budgets == {
        "paged_attention.real": 4096,
        "paged_attention.p100": 1008,  # 1000 tokens of demand in blocks of 16
        "paged_attention.p50": 512,  # half of it
        "paged_attention.p25": 432,  # 400 tokens and 30 rounded up to 32: less does not hold each reservation
    }


def test_baselines_reserve_whole_lengths_where_the_budget_holds_one(tmp_path: Path) -> None:
    context = make_context(write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(40)]), 1e6)
    kinds = {pair.off.kv_tokens >= 512: pair.off.reservation for pair in fragmentation_pairs(context)}
    assert kinds == {True: "max-model-len", False: "per-request"}
    assert all(replace(p.off, reservation="paged") == p.on for p in fragmentation_pairs(context))


def test_each_step_of_a_stack_is_compared_with_the_steps_before_it(tmp_path: Path) -> None:
    rows = [(i / 10, 50, 5 + 40 * (i % 8 == 0)) for i in range(40)]
    context = make_context(write_trace(tmp_path / "t.csv", rows), 1e6, max_num_batched_tokens=64)
    make_plan(context, variance_pairs(context))
    virtual = context.prediction()
    measure_stack(virtual, ["continuous_batching", "chunked_prefill"])
    batching = virtual.found.quantities["stack.continuous_batching.adds"]
    chunking = virtual.found.quantities["stack.chunked_prefill.adds"]
    arms = [
        context.config(batching="static", enable_chunked_prefill=False),
        context.config(enable_chunked_prefill=False),
        context.config(),
    ]
    seconds = [virtual.engine(arm).run(virtual.requests()).duration_s for arm in arms]
    assert batching.value == pytest.approx(seconds[0] / seconds[1])
    assert chunking.value == pytest.approx(seconds[1] / seconds[2])
    assert chunking.note == "beside continuous_batching"


def test_a_stack_puts_paging_before_the_prefix_cache_that_needs_it(tmp_path: Path) -> None:
    context = make_context(write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(40)]), 1e6)
    make_plan(context, variance_pairs(context))
    virtual = context.prediction()
    measure_stack(virtual, ["prefix_caching", "paged_attention"])
    assert list(virtual.found.quantities) == ["stack.paged_attention.adds", "stack.prefix_caching.adds"]
    assert all(quantity.value is not None for quantity in virtual.found.quantities.values())


def test_a_stack_that_fails_says_why_and_loses_nothing(tmp_path: Path) -> None:
    context = make_context(write_trace(tmp_path / "t.csv", [(i / 10, 50, 20) for i in range(4)]), 1e6)
    make_plan(context, variance_pairs(context))
    virtual = replace(context.prediction(), settings=Settings(objective=Objective.LATENCY))
    measure_stack(virtual, ["continuous_batching", "chunked_prefill"])
    reasons = {quantity.reason for quantity in virtual.found.quantities.values()}
    assert reasons == {"the stack failed: too few requests in a run (4; p50 needs 6)"}


def test_a_prefix_cache_begins_with_what_came_before_the_slice(tmp_path: Path) -> None:
    """All requests share their first block; the slice lies behind others, so that even its first request finds it."""
    path = tmp_path / "t.jsonl"
    lines = [{"timestamp": i * 100, "input_length": 32, "output_length": 2, "hash_ids": [0, i + 1]} for i in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    context = make_context(replace(read_trace(path), block_size=16), 1e6)
    make_plan(context, [])
    context.slice, context.slice_hits = context.slice[8:], None  # whatever the plan, the history is what counts
    context.history = [context.slice[0].prompt[:16]]
    virtual = context.prediction()
    cached = virtual.serve(context.config(enable_prefix_caching=True))
    assert [request.num_cached for request in cached.requests] == [16] * len(context.slice)
    assert cached.steps[0].start_s == 0.0
    plain = virtual.serve(context.config())
    assert sum(request.num_cached for request in plain.requests) == 0


def test_the_slice_is_taken_from_the_peak_where_there_is_one(tmp_path: Path) -> None:
    lengths = [(100, 10)] * 20 + [(10, 1)] * 20
    trace = write_trace(tmp_path / "t.csv", [(float(i), *pair) for i, pair in enumerate(lengths)])
    start, count = choose_window(trace, 10, within=(20, 15))
    assert 20 <= start <= 25
    assert count == 10
    assert choose_window(trace, 16, within=(20, 15)) == choose_window(trace, 16)  # too small to hold it


def test_a_trace_that_asks_for_no_kv_most_of_the_time_has_budgets_of_a_full_batch(tmp_path: Path) -> None:
    context = make_context(write_trace(tmp_path / "t.csv", [(100.0 * i, 60, 4) for i in range(40)]), 1e6)
    context.found.quantities["fit.kv_demand_p99_tokens"].value = 0.0
    assert any(pair.label.endswith("of a full batch of usual requests") for pair in fragmentation_pairs(context))

"""Question 2 over the whole trace: the cache's size and the breakers, against numbers worked by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inferdoc.probes.context import Collector, ProbeContext
from inferdoc.probes.prefix_science import observe_breakers, observe_cache_sizes
from inferdoc.traces import read_trace


def context_of(path: Path, prepared: ProbeContext, **changes: object) -> ProbeContext:
    return replace(prepared, trace=read_trace(path), found=Collector(), **changes)  # type: ignore[arg-type]


def two_prompts_in_turn(path: Path, prompts: int) -> Path:
    """Prompts of 8 blocks of 16, each sent again after all others."""
    rows = [
        {"timestamp": 1000 * n, "input_length": 129, "output_length": 1, "block_size": 16,
         "hash_ids": [8 * (n % prompts) + i for i in range(9)]}
        for n in range(2 * prompts)
    ]  # fmt: skip
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_a_cache_too_small_for_the_cycle_serves_nothing(tmp_path: Path, prepared: ProbeContext) -> None:
    path = tmp_path / "t.jsonl"
    two_prompts_in_turn(path, 10)  # 10 x 8 full blocks come between a prompt and its return
    for capacity, rate in ((40 * 16, 0.0), (1000 * 16, 10 * 128 / (20 * 129))):
        context = context_of(path, prepared, kv_capacity_tokens=capacity)
        observe_cache_sizes(context)
        assert context.found.quantities["prefix.hit_rate_at_capacity"].value == pytest.approx(rate)
    assert context.found.series[0].id == "prefix.hit_rate_by_capacity"


def test_a_time_stamp_at_the_head_is_found_and_what_mending_it_regains(tmp_path: Path, prepared: ProbeContext) -> None:
    stable = "".join(f"Rule {n}: answer with the number {n * 7919 % 1000} and nothing else. " for n in range(30))
    rows = [
        {"messages": [{"role": "system", "content": f"Now: 2026-01-01 10:00:{n:02d}\n{stable}"},
                      {"role": "user", "content": f"Question {n}"}, {"role": "assistant", "content": "Yes."}]}
        for n in range(20)
    ]  # fmt: skip
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    context = context_of(path, prepared)
    observe_breakers(context)
    found = context.found.quantities
    assert found["prefix.mended_hit_rate"].value == pytest.approx(
        0.95, abs=0.06
    )  # 19 of 20 whole, but for the last block
    assert found["prefix.mended_share"].value > 0.7  # type: ignore[operator]
    assert "time" in (found["prefix.mended_share"].note or "")
    assert "Rule 1" not in (found["prefix.mended_share"].note or "")


def test_hashes_have_no_breakers_and_say_so(tmp_path: Path, prepared: ProbeContext) -> None:
    path = tmp_path / "t.jsonl"
    two_prompts_in_turn(path, 10)
    context = context_of(path, prepared)
    observe_breakers(context)
    assert context.found.quantities["prefix.mended_share"].value is None
    assert context.found.quantities["prefix.mended_share"].reason

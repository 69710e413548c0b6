"""Host time of a step: from the sampled tokens to the next step's input tensors, with a model that computes nothing.

    python benchmarks/scheduler_overhead.py --output benchmarks/results/scheduler_overhead.json      about a minute

The engine's own loop runs; the runner reads the clock when it hands the tokens back, and again when the next step's
tensors are ready for it. In between lie the step log's record, the scheduler's update, the next schedule and the making
of the inputs: all that a device would wait for. All running requests decode; their lengths are spread over a block, so
that every step fills some blocks. Cases are measured in turn, round after round; a round's value is the median of its
steps.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import math
import statistics
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers.machine import machine

from inferdoc.devices import find_device
from inferdoc.engine.batch import BatchArrays
from inferdoc.engine.blocks import ROOT, PrefixCache, chain_key
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch
from inferdoc.statistics import hodges_lehmann, median_interval, signed_rank_interval

BATCHES = (1, 16, 64, 256)
SHORT, LONG = 256, 8192
"""Tokens of context at the start."""
BLOCK_SIZE = 16
ROUNDS, STEPS = 12, 64
VOCABULARY = 32_000
PREFIX_TOKENS, PROMPTS = 8192, 16
BAR_US, GOAL_US = 500, 200
BAR_TOKENS_PER_S = 5e6
MOST_GROWTH = 1.2
"""Ratio of the times with long and with short contexts that still counts as no growth. The contexts are 32 times as
long: work for each of their tokens or blocks would show as far more. What they touch lies further apart in memory."""


class NullRunner:
    """Makes a step's tensors, and gives back tokens that nothing computed. Measures the time between two calls."""

    def __init__(self, seed: int) -> None:
        self.seconds: list[float] = []
        self._tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (64, max(BATCHES))).tolist()
        self._arrays = BatchArrays()
        self._returned = math.nan

    def configure(self, config: EngineConfig) -> None:
        pass

    def execute(self, batch: Batch) -> list[int]:
        step = self._arrays.build(batch)
        tensors = [
            torch.from_numpy(values)
            for values in (
                step.token_ids,
                step.positions,
                step.slots,
                step.query_starts,
                step.lengths,
                step.block_tables,
                step.sampled,
            )
        ]
        ready = time.perf_counter()
        self.seconds.append(ready - self._returned)
        tokens: list[int] = self._tokens[len(self.seconds) % 64][: len(tensors[-1])]
        self._returned = time.perf_counter()
        return tokens


@dataclass(frozen=True)
class Case:
    """One load. churn: a quarter of the requests are short ones, of which one leaves and another, with a prompt of a
    block, joins in each step; the rest have the context and stay."""

    batch: int
    context: int
    prefix_caching: bool
    churn: bool = False


class Load:
    """A case's engine, with all its requests past their prompts."""

    def __init__(self, case: Case) -> None:
        self.case = case
        steps = ROUNDS * (STEPS + 1) + 3 * case.batch
        longest = case.context + steps + BLOCK_SIZE
        rng = np.random.default_rng([case.batch, case.context])
        config = EngineConfig(
            max_model_len=longest,
            num_kv_blocks=case.batch * -(-longest // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            max_num_seqs=case.batch,
            max_num_batched_tokens=max(8192, case.batch * SHORT),
            enable_prefix_caching=case.prefix_caching,
        )
        self._runner = NullRunner(case.batch)
        self._engine = Engine(self._runner, config)
        self._start = self._engine.now()
        passing = case.batch // 4 if case.churn else 0
        staying = [self._request(rng, i, case.context - i % BLOCK_SIZE, steps) for i in range(case.batch - passing)]
        for request in staying:
            self._engine.scheduler.add(request)
        while any(not request.token_times for request in staying):
            self._engine.step(self._start)
        if passing:
            for i in range(steps):  # the first ones are done one after the other
                self._engine.scheduler.add(self._request(rng, case.batch + i, BLOCK_SIZE, min(i + 1, passing)))
            for _ in range(passing):
                self._engine.step(self._start)

    def measure(self) -> list[float]:
        """Seconds of some steps."""
        scheduler = self._engine.scheduler
        self._engine.step(self._start)  # the other cases have emptied the processor's caches
        self._runner.seconds.clear()
        for _ in range(STEPS):
            self._engine.step(self._start)
            assert len(scheduler.running) >= self.case.batch - 1
        return list(self._runner.seconds)

    @staticmethod
    def _request(rng: np.random.Generator, id: int, prompt: int, output: int) -> Request:
        return Request(id, rng.integers(0, VOCABULARY, prompt).tolist(), output)


def measure_steps(cases: Sequence[Case]) -> dict[Case, list[list[float]]]:
    """Seconds of each step, by case and round."""
    loads = [Load(case) for case in cases]
    seconds: dict[Case, list[list[float]]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for load in loads:
            seconds[load.case].append(load.measure())
    return seconds


def measure_lookups() -> list[float]:
    """Tokens a second of looking up prompts that are cached in full, from lists of tokens: hashing is included."""
    rng = np.random.default_rng(0)
    cache = PrefixCache(BLOCK_SIZE)
    prompts = [rng.integers(0, VOCABULARY, PREFIX_TOKENS + 1).tolist() for _ in range(PROMPTS)]
    for prompt in prompts:
        key = ROOT
        for start in range(0, PREFIX_TOKENS, BLOCK_SIZE):
            key = chain_key(key, array("i", prompt[start : start + BLOCK_SIZE]).tobytes())
            cache.publish(hash(key), key)
    rates = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        hits = [len(cache.match(array("i", prompt))[0]) for prompt in prompts]
        rates.append(PROMPTS * PREFIX_TOKENS / (time.perf_counter() - began))
        assert hits == [PREFIX_TOKENS // BLOCK_SIZE] * PROMPTS
    return rates


def summarise(rounds: list[list[float]]) -> dict[str, Any]:
    """Microseconds: the median of the rounds' medians with its interval, and the tail over all steps."""
    medians = [1e6 * statistics.median(steps) for steps in rounds]
    steps = [1e6 * step for steps in rounds for step in steps]
    return {
        "median_us": statistics.median(medians),
        "interval_us": median_interval(medians),
        "mean_us": statistics.fmean(steps),
        "p99_us": float(np.quantile(steps, 0.99)),
    }


def growth(short: list[list[float]], long: list[list[float]]) -> dict[str, Any]:
    """Time with long contexts over time with short ones, paired by round."""
    logs = [math.log(statistics.median(b) / statistics.median(a)) for a, b in zip(short, long, strict=True)]
    interval = signed_rank_interval(logs)
    return {
        "ratio": math.exp(hodges_lehmann(logs)),
        "interval": None if interval is None else [math.exp(bound) for bound in interval],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="host time of a step, with a model that computes nothing")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # as the engine does during a run
    steady = [
        Case(batch, context, caching) for caching in (False, True) for batch in BATCHES for context in (SHORT, LONG)
    ]
    churning = [
        Case(max(BATCHES), context, caching, churn=True) for caching in (False, True) for context in (SHORT, LONG)
    ]
    seconds = measure_steps(steady + churning)
    rates = measure_lookups()
    steps = [{**asdict(case), **summarise(rounds)} for case, rounds in seconds.items()]
    growths = [
        {"batch": case.batch, "prefix_caching": case.prefix_caching, "churn": case.churn}
        | growth(seconds[case], seconds[replace(case, context=LONG)])
        for case in steady + churning
        if case.context == SHORT
    ]
    judged = [step for step in steps if step["batch"] == max(BATCHES) and not step["churn"]]
    slowest = max(step["median_us"] for step in judged)
    grown = max(each["ratio"] for each in growths if each["batch"] == max(BATCHES))
    rate = statistics.median(rates)
    result = {
        "benchmark": "scheduler_overhead",
        "date": datetime.date.today().isoformat(),
        "machine": machine(find_device("cpu")),
        "work": {"rounds": ROUNDS, "steps_a_round": STEPS, "block_size": BLOCK_SIZE, "contexts": [SHORT, LONG]},
        "steps": steps,
        "growth": growths,
        "prefix_lookup": {"tokens_per_s": rate, "interval": median_interval(rates), "prompt_tokens": PREFIX_TOKENS},
        "bars": {
            "slowest_median_us": slowest,
            "step": {"below_us": BAR_US, "met": slowest < BAR_US},
            "step_goal": {"below_us": GOAL_US, "met": slowest < GOAL_US},
            "no_growth_with_context": {"ratio_at_most": MOST_GROWTH, "ratio": grown, "met": grown <= MOST_GROWTH},
            "prefix_lookup": {"tokens_per_s_above": BAR_TOKENS_PER_S, "met": rate > BAR_TOKENS_PER_S},
        },
    }
    print(report(result))
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def report(result: dict[str, Any]) -> str:
    lines = [f"{'decodes':>8}{'context':>9}{'caching':>9}{'median us':>11}  {'95% interval':16}{'mean':>7}{'p99':>7}"]
    for step in result["steps"]:
        low, high = step["interval_us"]
        lines.append(
            f"{step['batch']:8}{step['context']:9}{'on' if step['prefix_caching'] else 'off':>9}"
            f"{step['median_us']:11.0f}  {f'{low:.0f} to {high:.0f}':16}{step['mean_us']:7.0f}{step['p99_us']:7.0f}"
            + ("  one leaves and one joins in each step" if step["churn"] else "")
        )
    for each in result["growth"]:
        low, high = each["interval"]
        load = f"{each['batch']} decodes, caching {'on' if each['prefix_caching'] else 'off'}"
        lines.append(
            f"{load}{', joining and leaving' if each['churn'] else ''}: {LONG} tokens of context take "
            f"{each['ratio']:.3f} times as long as {SHORT} ({low:.3f} to {high:.3f})"
        )
    lookup = result["prefix_lookup"]
    low, high = lookup["interval"]
    lines.append(f"prefix look-up {lookup['tokens_per_s'] / 1e6:.1f} M tokens/s ({low / 1e6:.1f} to {high / 1e6:.1f})")
    bars = {name: bar for name, bar in result["bars"].items() if isinstance(bar, dict)}
    lines += [f"{name}: {'met' if bar['met'] else 'missed'}" for name, bar in bars.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""The table of benchmarks/README.md, from the JSON results: `python benchmarks/table.py` prints it, `--write` saves it.

A result that is not there is said to be so; no number is written by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
README = FOLDER / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
NOT_RUN = "*not yet run on a card*"


@dataclass(frozen=True)
class Entry:
    """A row. `lines`: from the JSON to the lines of its result cell."""

    file: str
    command: str
    measures: str
    bar: str
    lines: Callable[[dict[str, Any]], Iterator[str]]
    missing: str = "not measured yet"


def _peers(result: dict[str, Any]) -> Iterator[str]:
    yield from _partial(result)
    titles = {name: engine["title"] for name, engine in result["engine"].items()}
    for settings, engine in result["engine"].items():
        if engine["reason"] is not None:
            yield f"{engine['title']}: {engine['status']} ({engine['reason']})"
        for peer in result["peers"].values():
            if (pairing := peer["against"][settings]) is not None:
                ratio = pairing["ratio"]
                interval = "no interval" if ratio["low"] is None else f"{ratio['low']:.2f} to {ratio['high']:.2f}"
                pairs = f"{ratio['pairs']} pairs"
                yield f"{engine['title']}: {ratio['estimate']:.2f}x {peer['title']} ({interval}, {pairs})"
    for peer in result["peers"].values():
        if peer["reason"] is not None:
            yield f"{peer['title']}: {peer['status']} ({peer['reason']})"
    for name in ("bar", "goal", "identical_tokens"):
        if (bar := result["bars"][name]) is not None:
            met = [titles[settings] for settings in bar["met_by"]]
            yield f"{name.replace('_', ' ')} " + (f"met by {' and '.join(met)}" if met else "missed")


def _partial(result: dict[str, Any]) -> Iterator[str]:
    if result.get("partial"):
        yield "**partial: it was ended early**"


def _overhead(result: dict[str, Any]) -> Iterator[str]:
    bars, lookup = result["bars"], result["prefix_lookup"]
    slowest = max(
        (step for step in result["steps"] if step["median_us"] == bars["slowest_median_us"]),
        key=lambda step: step["median_us"],
    )
    low, high = slowest["interval_us"]
    yield f"slowest median {slowest['median_us']:.0f} us ({low:.0f} to {high:.0f}), bar {_met(bars['step']['met'])}"
    yield f"goal {_met(bars['step_goal']['met'])}"
    growth = bars["no_growth_with_context"]
    yield f"long over short context {growth['ratio']:.2f}, {_met(growth['met'])}"
    low, high = lookup["interval"]
    rate = f"{lookup['tokens_per_s'] / 1e6:.1f} M tokens/s ({low / 1e6:.1f} to {high / 1e6:.1f})"
    yield f"prefix look-up {rate}, {_met(bars['prefix_lookup']['met'])}"


def _kernels(result: dict[str, Any]) -> Iterator[str]:
    kernels = result["kernels"]
    targets = sorted({kernel["target"] for kernel in kernels})
    small = [kernel for kernel in kernels if kernel["head_dim"] <= 128]
    spilled = max(kernel["spill_store_bytes"] + kernel["spill_load_bytes"] for kernel in small)
    yield f"{len(kernels)} compiled ({', '.join(targets)})"
    yield f"most bytes spilled at head dim <= 128: {spilled}, {_met(spilled == 0)}"


def _bars(result: dict[str, Any]) -> Iterator[str]:
    yield from _partial(result)
    for name, bar in result["bars"].items():
        value = "not measured" if bar["value"] is None else f"{bar['value']:.2f}"
        yield f"{name.replace('_', ' ')} {value}" + ("" if bar["met"] is None else f", {_met(bar['met'])}")


def _gate(result: dict[str, Any]) -> Iterator[str]:
    yield from _partial(result)
    for case in result["cases"]:
        said = f"{case['largest_difference']:.2g} of the spread" if case["passed"] else case["reason"]
        yield f"{case['backend']}, {case['dtype']}: {'passed' if case['passed'] else 'refused'} ({said})"


def _compression(result: dict[str, Any]) -> Iterator[str]:
    for name, case in result["cases"].items():
        if case["validity"] != "valid":
            yield f"{name}: the run was {case['validity']}, since other processes took part of the processor"
        for pair in case["pairs"].values():
            metric, gain = next(iter(pair["gains"].items()))
            if gain["estimate"] is not None:
                interval = "no interval" if gain["low"] is None else f"{gain['low']:.2f} to {gain['high']:.2f}"
                gained = f"gain in {metric} {gain['estimate']:.2f}x ({interval}, {pair['runs']} pairs)"
                yield f"{name}, {pair['label']}: {gained}"
        for technique, quality in case["quality"].items():
            ratio = quality["perplexity_ratio"]
            if ratio["value"] is not None:
                said = f"{ratio['low']:.3f} to {ratio['high']:.3f}" if ratio["low"] is not None else "no interval"
                under = ", understated" if quality["understated"] else ""
                yield f"{name}, {technique}: perplexity {ratio['value']:.3f} of the base's ({said}{under})"
        native, fewer = (case["quantities"].get(id, {}).get("value") for id in _WEIGHT_BYTES)
        if native and fewer:
            yield f"{name}: weights {native / 1e6:.0f} MB, in INT8 {fewer / 1e6:.0f} MB"


def _traces(result: dict[str, Any]) -> Iterator[str]:
    for case in result["cases"]:
        if case["bars"]:
            met = _met(case["within_bars"])
            peak = f"{case['peak_mib'] / 1024:.2f} GiB"
            said = f"read in {case['read_s']:.1f} s, analysed in {case['analyse_s']:.1f} s, peak {peak}, {met}"
            yield f"{case['case']}, {case['requests']:,} requests: {said}"


_WEIGHT_BYTES = ("fit.weights_bytes", "fit.weights_int8_dynamic_bytes")


def _met(met: bool) -> str:
    return "met" if met else "missed"


ENTRIES = (
    Entry(
        "engine_vs_peers.json",
        "python benchmarks/engine_vs_peers.py",
        "Output tokens/s of the whole engine over another engine's, on a CPU: SmolLM2-135M in float32, 32 requests, "
        "128 random prompt tokens, 64 forced output tokens, greedy",
        "identical tokens; at least 1.0x the best; goal 1.2x",
        _peers,
    ),
    Entry(
        "scheduler_overhead.json",
        "python benchmarks/scheduler_overhead.py",
        "From the end-of-step update to ready input tensors, with a null model",
        "256 decodes: median under 500 us (goal 200), no growth with context; prefix look-up above 5 M tokens/s",
        _overhead,
    ),
    Entry(
        "kernels.json",
        "python benchmarks/kernels.py",
        "Registers, spills and shared memory of the Triton kernels, compiled without a card",
        "no spill at head dim <= 128",
        _kernels,
    ),
    Entry(
        "traces.json",
        "python benchmarks/traces.py --week",
        "Reading and analysing a made trace like Mooncake's (24 block hashes a request) and one like Azure's",
        "2 cores: 1 million requests under 20 s and 2 GiB; 27 million rows under 60 s and 2 GiB",
        _traces,
    ),
    Entry(
        "compression_and_drafts.json",
        "python benchmarks/compression_and_drafts.py",
        "Quantized weights, 8-bit K/V and drafts off and on, as diagnose measures them, on a CPU; perplexity on the "
        "bundled trace's text",
        "none: what pays, and what it costs, is the result",
        _compression,
    ),
    Entry(
        "engine_vs_peers_cuda.json",
        "python benchmarks/engine_vs_peers.py --work cuda",
        "The same on a card: Llama-8B's shape in bfloat16 with random weights, 64 requests of 1k in, 256 out",
        "at least 1.5x transformers continuous batching",
        _peers,
        NOT_RUN,
    ),
    Entry(
        "roofline.json",
        "python benchmarks/roofline.py",
        "Step time over the batch, prefill, and the decode kernel at 32k context, against the card's measured copy "
        "bandwidth and matrix rate; eager, graphs, graphs and fusions",
        "H200: MBU >= 75% at batch 1; decode kernel >= 80% of copy; prefill >= 60% of matmul; 1.5x continuous batching",
        _bars,
        NOT_RUN,
    ),
    Entry(
        "gate_cuda.json",
        "python benchmarks/gate_on_card.py",
        "The load gate on the card: logits through the paged engine against transformers' own",
        "passes",
        _gate,
        NOT_RUN,
    ),
)


def read(entry: Entry, folder: Path = RESULTS) -> dict[str, Any] | None:
    file = folder / entry.file
    return json.loads(file.read_text()) if file.is_file() else None


def table(folder: Path = RESULTS) -> str:
    """The rows as Markdown, one line each."""
    lines = ["| command | measures | bar | result | when, on what |", "| --- | --- | --- | --- | --- |"]
    for entry in ENTRIES:
        result = read(entry, folder)
        said = entry.missing if result is None else "<br>".join(entry.lines(result))
        when = "" if result is None else _when(result)
        lines.append(f"| `{entry.command}` | {entry.measures} | {entry.bar} | {said} | {when} |")
    return "\n".join(lines)


def _when(result: dict[str, Any]) -> str:
    if "machine" not in result:
        return f"triton {result['triton']}, on any machine" if "triton" in result else ""
    machine = result["machine"]
    name = machine.get("gpu") or f"{machine.get('processor')}, {machine.get('cores')} cores"
    return f"{result['date']}, {name}, torch {machine.get('torch')}, transformers {machine.get('transformers')}"


def replaced(text: str, rows: str) -> str:
    """A README's text with the table between its two marks replaced."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{rows}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        README.write_text(replaced(README.read_text(), table()))
    else:
        print(table())

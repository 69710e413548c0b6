"""How near the engine comes to a card's limits, on a dummy model of Llama-8B's shape in bfloat16.

    python benchmarks/roofline.py                              on a card, in under 4 minutes
    python benchmarks/roofline.py --device cpu --shape tiny    the same code on a CPU; its numbers mean nothing

The limits are measured on the same card first: bytes/s of a copy, FLOP/s of a square product. Each part is measured for
itself: one that fails or does not fit into the time is reported so, and the others go on.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peers.machine import machine
from peers.process import end_on_signal
from peers.results import write_json
from shapes import SHAPES, write_config
from torch import nn

from inferdoc.devices import Device, find_device, measure_bandwidth, measure_matmul
from inferdoc.engine.attention.layer import AttentionLayout, LayerPages, LayerSpec, StepState
from inferdoc.engine.attention.reference import TorchLayout
from inferdoc.engine.batch import StepInput
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.models import load_model

BLOCK = 16
BARS = {"mbu_batch_1": 0.75, "decode_kernel_share": 0.80, "prefill_share": 0.60, "speedup_over_continuous": 1.5}


@dataclass(frozen=True)
class Sizes:
    """What is measured: `decode_context` K/V tokens for each row of a decode step, and so on."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    decode_context: int = 512
    prefill_tokens: int = 8192
    kernel_context: int = 32768
    kernel_rows: int = 8
    repeats: int = 20

    @property
    def kv_tokens(self) -> int:
        return max(self.batches[-1] * (self.decode_context + BLOCK), self.prefill_tokens + BLOCK)


SIZES = {
    "llama-8b": Sizes(),
    "tiny": Sizes(batches=(1, 4), decode_context=24, prefill_tokens=64, kernel_context=128, kernel_rows=2, repeats=3),
}


@dataclass(frozen=True)
class Variant:
    """One way to launch the same model."""

    name: str
    enforce_eager: bool
    enable_fusion: bool

    def config(self, sizes: Sizes, backend: Any) -> EngineConfig:
        return EngineConfig(
            max_model_len=sizes.decode_context + BLOCK,
            num_kv_blocks=sizes.kv_tokens // BLOCK,
            block_size=BLOCK,
            max_num_seqs=sizes.batches[-1],
            max_num_batched_tokens=max(sizes.prefill_tokens, sizes.batches[-1]),
            attention_backend=backend,
            enforce_eager=self.enforce_eager,
            enable_fusion=self.enable_fusion,
        )


VARIANTS = (
    Variant("eager", enforce_eager=True, enable_fusion=False),
    Variant("graphs", enforce_eager=False, enable_fusion=False),
    Variant("graphs+fusions", enforce_eager=False, enable_fusion=True),
)


class Parts:
    """Results by part, within a time limit. after_part: called with all results so far whenever one is added."""

    def __init__(self, limit_s: float, after_part: Callable[[dict[str, Any]], None]) -> None:
        self._end = time.monotonic() + limit_s
        self._after_part = after_part
        self.results: dict[str, Any] = {}

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def measure(self, name: str, part: Callable[[], Any], needs_s: float = 5.0) -> Any:
        """The part's result, also kept under its name; None where it failed or the time is short, with why."""
        value = self._run(name, part, needs_s)
        self._after_part(self.results)
        return value

    def load(self, part: Callable[[], Any], needs_s: float) -> Any:
        """The same for what is no result: only a failure is kept."""
        value = self._run("load", part, needs_s)
        if value is not None:
            del self.results["load"]
        return value

    def _run(self, name: str, part: Callable[[], Any], needs_s: float) -> Any:
        if self.left_s < needs_s:
            self.results[name] = {"skipped": "no time left"}
            return None
        start = time.monotonic()
        try:
            value = self.results[name] = part()
        except Exception as error:
            traceback.print_exc()
            self.results[name] = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
            return None
        print(f"{name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        return value


def decode_batch(rows: int, context: int, vocabulary: int) -> Batch:
    """A step in which every row has `context` K/V tokens when it is done."""
    blocks = -(-context // BLOCK)
    requests = []
    for index in range(rows):
        tokens = [(7 * index + i) % vocabulary for i in range(context)]
        request = Request(index, tokens[:-1], output_length=2)
        request.tokens.append(tokens[-1])
        request.num_computed = context - 1
        request.block_ids = list(range(index * blocks, (index + 1) * blocks))
        requests.append(request)
    return Batch([Row(request, 1, samples=True) for request in requests], BLOCK)


def prefill_batch(tokens: int, vocabulary: int) -> Batch:
    request = Request(0, [i % vocabulary for i in range(tokens)], output_length=1)
    request.block_ids = list(range(-(-tokens // BLOCK)))
    return Batch([Row(request, tokens, samples=True)], BLOCK)


def median_seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Median wall time of `work` to its end on the device, after two unmeasured ones."""
    times = []
    for _ in range(repeats + 2):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weights_read(model: nn.Module) -> int:
    """Bytes of the weights that a decode step reads: all but the input embeddings, which it only looks up in."""
    embeddings = model.get_input_embeddings().weight  # type: ignore[operator]
    head = model.get_output_embeddings().weight  # type: ignore[operator]
    total = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return total if head is embeddings else total - embeddings.numel() * embeddings.element_size()


def prefill_flops(config: dict[str, Any], tokens: int) -> float:
    """A multiply and an add as two, for one prompt: all projections, causal attention, the head for one token."""
    hidden, inner, layers = (config[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = hidden // heads
    projections = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * inner
    attention = 2 * heads * head_dim * tokens * (tokens + 1) / 2  # scores and weighted values, half of the square
    return float(2 * (layers * (projections * tokens + attention) + hidden * config["vocab_size"]))


def steps(
    runner: ModelRunner, variant: Variant, sizes: Sizes, backend: str, vocabulary: int, bandwidth: float
) -> dict[str, Any]:
    """Step time for each batch size, with what it says of bandwidth."""
    start = time.perf_counter()
    runner.configure(variant.config(sizes, backend))
    synchronize(runner.device)
    result: dict[str, Any] = {"configure_s": time.perf_counter() - start, "notes": list(runner.notes), "batches": {}}
    weights = weights_read(runner.model)
    for rows in sizes.batches:
        batch = decode_batch(rows, sizes.decode_context, vocabulary)
        seconds = median_seconds(lambda batch=batch: runner.execute(batch), runner.device, sizes.repeats)  # type: ignore[misc]
        read = weights + rows * sizes.decode_context * runner.kv_bytes_per_token
        result["batches"][str(rows)] = {
            "step_ms": seconds * 1e3,
            "tokens_per_s": rows / seconds,
            "bytes_read": read,
            "mbu": read / seconds / bandwidth,
            "graph_bucket": runner.last_bucket,
        }
    result["graph_bytes"] = runner.graph_bytes
    return result


def prefill(runner: ModelRunner, config: dict[str, Any], sizes: Sizes, rate: float) -> dict[str, Any]:
    """One prompt in one step, under the variant that was configured last."""
    batch = prefill_batch(sizes.prefill_tokens, config["vocab_size"])
    seconds = median_seconds(lambda: runner.execute(batch), runner.device, max(3, sizes.repeats // 4))
    flops = prefill_flops(config, sizes.prefill_tokens)
    return {
        "tokens": sizes.prefill_tokens,
        "seconds": seconds,
        "tflop_per_s": flops / seconds / 1e12,
        "share_of_matmul": flops / seconds / rate,
    }


def decode_kernel(
    spec: LayerSpec, heads: int, dtype: torch.dtype, device: torch.device, sizes: Sizes, backend: str, bandwidth: float
) -> dict[str, Any]:
    """Attention of one layer at a long context, its blocks in random order; bytes of K and V over its time."""
    generator = torch.Generator(device).manual_seed(0)
    slots = sizes.kernel_rows * sizes.kernel_context

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device, generator=generator)

    pages = LayerPages(
        random(slots, spec.kv_heads, spec.key_dim), random(slots, spec.kv_heads, spec.value_dim), spec, StepState()
    )
    batch = decode_batch(sizes.kernel_rows, sizes.kernel_context, 100)
    order = torch.randperm(slots // BLOCK, generator=torch.Generator().manual_seed(0)).tolist()
    for row in batch.rows:
        row.request.block_ids = [order[block] for block in row.request.block_ids]
    layout = make_layout(StepInput.from_batch(batch), device, backend)
    query = random(heads, sizes.kernel_rows, spec.key_dim)
    launches = 10

    def work() -> None:
        for _ in range(launches):
            layout.attend(query, pages, None)

    with torch.inference_mode():
        seconds = median_seconds(work, device, sizes.repeats) / launches
    read = (pages.keys.numel() + pages.values.numel()) * dtype.itemsize
    return {
        "context": sizes.kernel_context,
        "rows": sizes.kernel_rows,
        "microseconds": seconds * 1e6,
        "gb_per_s": read / seconds / 1e9,
        "share_of_copy": read / seconds / bandwidth,
    }


def make_layout(step: StepInput, device: torch.device, backend: str) -> AttentionLayout:
    if backend == "triton":
        from inferdoc.engine.attention.triton_layout import TritonLayout

        return TritonLayout.from_step(step, device)
    return TorchLayout(step, device)


def job(shape: str, device: Device, limit_s: float) -> dict[str, Any]:
    """The whole engine against transformers' continuous batching: tokens/s on one job."""
    import engine_vs_peers
    from peers.registry import GPU_WORK, PEERS, TINY_WORK

    work = TINY_WORK if shape == "tiny" else GPU_WORK
    return engine_vs_peers.measure(
        work, [PEERS["transformers-continuous"]], rounds=engine_vs_peers.QUICK_ROUNDS, limit_s=limit_s
    )


def measure(
    shape: str,
    device: Device,
    limit_s: float,
    *,
    with_job: bool,
    after_part: Callable[[dict[str, Any]], None] = lambda results: None,
) -> dict[str, Any]:
    """Results by part; `after_part` gets all that there are so far whenever one is added."""
    parts = Parts(limit_s, after_part)
    config, sizes = SHAPES[shape], SIZES[shape]
    dtype = "bfloat16" if device.kind == "cuda" else "float32"
    backend = "triton" if device.kind == "cuda" else "torch"
    place = torch.device(device.torch_name)
    copy = parts.measure("copy", lambda: measure_bandwidth(device, 1 << 30).bytes_per_s)
    rate = parts.measure("matmul", lambda: measure_matmul(device, dtype).flops_per_s)
    if copy is None or rate is None:
        return parts.results
    spec = LayerSpec(
        kv_heads=config["num_key_value_heads"],
        key_dim=(head_dim := config["hidden_size"] // config["num_attention_heads"]),
        value_dim=head_dim,
        scale=head_dim**-0.5,
    )
    heads, kind = config["num_attention_heads"], getattr(torch, dtype)
    parts.measure("decode_kernel", lambda: decode_kernel(spec, heads, kind, place, sizes, backend, copy))
    runner = parts.load(lambda: _load(shape, dtype, device, sizes), needs_s=20.0)
    if runner is not None:
        vocabulary = config["vocab_size"]
        for variant in VARIANTS:
            parts.measure(
                f"steps, {variant.name}",
                lambda variant=variant: steps(runner, variant, sizes, backend, vocabulary, copy),  # type: ignore[misc]
                needs_s=15.0,
            )
        parts.measure("prefill", lambda: prefill(runner, config, sizes, rate))
        del runner
        if device.kind == "cuda":
            torch.cuda.empty_cache()
    if with_job:
        parts.measure("job", lambda: job(shape, device, parts.left_s), needs_s=40.0)
    return parts.results


def _load(shape: str, dtype: str, device: Device, sizes: Sizes) -> ModelRunner:
    with TemporaryDirectory() as folder:
        file = write_config(shape, Path(folder))
        loaded = load_model(file, dtype=dtype, device=device.torch_name, load_format="dummy")
    return ModelRunner(loaded.model, sizes.kv_tokens)


def judge(results: dict[str, Any], *, on_card: bool) -> dict[str, Any]:
    """Each bar with its value; `met` is None where it could not be measured, and on a CPU, which no bar is about."""
    last = results.get(f"steps, {VARIANTS[-1].name}") or {}
    compared = (results.get("job") or {}).get("peers", {}).get("transformers-continuous", {})
    values = {
        "mbu_batch_1": last.get("batches", {}).get("1", {}).get("mbu"),
        "decode_kernel_share": (results.get("decode_kernel") or {}).get("share_of_copy"),
        "prefill_share": (results.get("prefill") or {}).get("share_of_matmul"),
        "speedup_over_continuous": ((compared.get("against") or {}).get("default") or {})
        .get("ratio", {})
        .get("estimate"),
    }
    judged = {}
    for name, bar in BARS.items():
        value = values[name]
        judged[name] = {"value": value, "at_least": bar, "met": value >= bar if on_card and value is not None else None}
    return judged


def report(result: dict[str, Any]) -> str:
    results = result["results"]
    lines = []
    for name, value in results.items():
        if isinstance(value, dict) and (why := value.get("failed") or value.get("skipped")):
            lines.append(f"{name}: {'failed' if 'failed' in value else 'skipped'}: {why}")
    if isinstance(results.get("copy"), float) and isinstance(results.get("matmul"), float):
        lines.append(f"copy {results['copy'] / 1e9:.0f} GB/s, matmul {results['matmul'] / 1e12:.2f} TFLOP/s")
    for variant in VARIANTS:
        entry = results.get(f"steps, {variant.name}") or {}
        for rows, step in entry.get("batches", {}).items():
            lines.append(
                f"{variant.name:16} batch {rows:>3}: {step['step_ms']:9.3f} ms {step['tokens_per_s']:9.0f} tokens/s "
                f"MBU {step['mbu']:6.1%}"
            )
        lines += [f"{variant.name}: {note}" for note in entry.get("notes", [])]
    for name, bar in result["bars"].items():
        value = "not measured" if bar["value"] is None else f"{bar['value']:.3f}"
        verdict = ": not judged" if bar["met"] is None else ": met" if bar["met"] else ": missed"
        lines.append(f"bar {name} >= {bar['at_least']}: {value}{verdict}")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="how near the engine comes to a card's limits")
    parser.add_argument("--device", default="auto", help="auto (a card), cuda, cuda:N or cpu")
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b")
    parser.add_argument("--limit", type=float, default=230.0, help="seconds for everything")
    parser.add_argument("--no-job", action="store_true", help="leave out the comparison with transformers")
    parser.add_argument("--output", type=Path, help="write the result as JSON, after every part")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    end_on_signal()
    device = find_device(options.device)
    if device.kind == "cpu" and options.device != "cpu":
        print("no card here: nothing was measured (--device cpu --shape tiny runs the code on a CPU)")
        return 0
    if device.kind == "cuda":
        torch.cuda.set_device(device.torch_name)  # kernels are launched on the current device
    facts = {"benchmark": "roofline", "date": datetime.date.today().isoformat(), "machine": machine(device)}

    def result(results: dict[str, Any], *, partial: bool) -> dict[str, Any]:
        bars = judge(results, on_card=device.kind == "cuda")
        return {**facts, "partial": partial, "shape": options.shape, "results": results, "bars": bars}

    def save(results: dict[str, Any], *, partial: bool = True) -> None:
        if options.output is not None:
            write_json(options.output, result(results, partial=partial))

    results = measure(options.shape, device, options.limit, with_job=not options.no_job, after_part=save)
    print(report(result(results, partial=False)))
    save(results, partial=False)
    return 1 if any(isinstance(part, dict) and "failed" in part for part in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

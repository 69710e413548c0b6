"""From options to a model that is ready to be measured on a trace."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from inferdoc.devices import Device, measure_bandwidth
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.gate import check_model
from inferdoc.engine.memory import MemoryProfile, profile
from inferdoc.engine.runner import EagerRunner
from inferdoc.errors import InputError, ModelError, TraceError
from inferdoc.evidence import Objective, Slo
from inferdoc.models import EMBEDDED, LoadedModel, ModelSpec, bundled_trace_path, embedded_path, load_model
from inferdoc.probes.context import Collector, ProbeContext, Settings
from inferdoc.probes.hardware_fit import longest_request
from inferdoc.probes.plan import largest_slice_tokens
from inferdoc.probes.sweep import measure_sweep
from inferdoc.progress import Progress
from inferdoc.traces import Trace, fit_context, ideal_hits, read_trace, tokenize

UNKNOWN_CONTEXT = 2048
"""Tokens, where neither the user nor the configuration says how long a sequence may be."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asked for. Sizes in bytes, times in seconds; ``None``: worked out here."""

    model: str = EMBEDDED
    trace: Path | None = None
    trace_format: str | None = None
    skip_bad_rows: bool = False
    objective: Objective = Objective.THROUGHPUT
    slo: tuple[Slo, ...] = ()
    budget_s: float = 360.0
    load: float = 0.7
    replicas: int | None = None
    memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    length_scale: Fraction = Fraction(1)
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"
    gguf_file: str | None = None
    trust_remote_code: bool = False
    seed: int = 0
    questions: tuple[int, ...] = ()
    """Numbers of the questions whose comparisons are run; empty: all."""
    command: str = "inferdoc diagnose"

    @property
    def model_location(self) -> str:
        return str(embedded_path()) if self.model == EMBEDDED else self.model

    @property
    def settings(self) -> Settings:
        return Settings(
            objective=self.objective,
            slo=self.slo,
            budget_s=self.budget_s,
            load=self.load,
            replicas=self.replicas,
            seed=self.seed,
            memory_given=self.memory_bytes is not None,
        )


def read_workload(options: Options) -> Trace:
    """The trace as asked for: read, scaled, one replica's share.

    Raises:
        TraceError: it cannot be read, or cannot be scaled.
    """
    path = options.trace or bundled_trace_path()
    trace = read_trace(path, trace_format=options.trace_format, skip_bad_rows=options.skip_bad_rows)
    trace = trace.scaled(options.length_scale)
    if trace.content == "block hashes":
        ideal_hits(
            trace.window(0, 1), options.block_size
        )  # refuses a block size that does not go with the recorded one
    if options.replicas is None:
        return trace
    if trace.rate_per_s is None:
        raise TraceError(
            "--replicas needs recorded arrival times, and the trace has none; use --load", where=trace.source
        )
    return trace.replica(options.replicas, options.seed)


def dtypes_to_try(options: Options, spec: ModelSpec, device: Device) -> list[str]:
    """The type asked for, else the device's usual one and then the half of it."""
    if options.dtype != "auto":
        return [options.dtype]
    return ["float32", "bfloat16"] if device.kind == "cpu" else list(dict.fromkeys([spec.dtype, "bfloat16"]))


def longest_allowed(options: Options, spec: ModelSpec) -> int:
    """Tokens of the longest sequence.

    Raises:
        InputError: the user asks for more than the model has.
    """
    own = spec.context_length or UNKNOWN_CONTEXT
    if options.max_model_len is not None and options.max_model_len > own:
        raise InputError(f"--max-model-len {options.max_model_len} is above the model's context of {own} tokens")
    return options.max_model_len or own


def prepare(
    options: Options,
    dtype: str,
    trace: Trace,
    device: Device,
    *,
    budget_bytes: int,
    deadline: float,
    found: Collector,
    progress: Progress,
    between_runs: Callable[[], None],
) -> ProbeContext | None:
    """Load the model, check it against transformers, size its KV pool, time its steps.

    Args:
        deadline: on `time.perf_counter()`.
        between_runs: called after each measured run.

    Returns:
        ``None`` where the memory budget leaves no room for the longest request's KV.

    Raises:
        ModelError: it cannot be loaded, or the engine would measure another model.
        InputError: nothing of the trace can run.
    """
    progress.stage(f"loading the model as {dtype}")
    loaded = load_model(
        options.model_location,
        dtype=dtype,
        device=device.torch_name,
        load_format="dummy" if options.load_format == "dummy" else "auto",
        gguf_file=options.gguf_file,
        seed=options.seed,
        trust_remote_code=options.trust_remote_code,
    )
    gc.freeze()  # the model's objects live to the end; each run's collection need not walk them
    spec = loaded.spec
    max_model_len = longest_allowed(options, spec)
    if options.block_size > max_model_len:
        raise InputError(f"--block-size {options.block_size} is above the longest sequence ({max_model_len} tokens)")
    trace = countable(trace, loaded, max_model_len)
    progress.stage("checking the engine against transformers' own attention")
    check_model(loaded.model, expected_layers=len(spec.layers), vocabulary=spec.vocab_size, name=spec.name)
    on_cpu = device.kind == "cpu"
    max_num_seqs = options.max_num_seqs or (8 if on_cpu else 64)
    max_num_batched_tokens = options.max_num_batched_tokens or (256 if on_cpu else 2048)
    progress.stage("measuring memory and bandwidth")
    step_tokens = min(max_num_batched_tokens, max_model_len)
    runner = EagerRunner(loaded.model, step_tokens)
    memory = profile(
        runner, step_tokens=step_tokens, weight_bytes=loaded.weight_bytes_measured, vocabulary=spec.vocab_size
    )
    capacity = _kv_capacity(budget_bytes, loaded, runner, memory)
    if capacity < longest_request(trace):
        return None
    # Beyond a full batch of the longest sequences, and all tokens of the largest slice for the prefix cache to keep,
    # more pool would only be reserved.
    wanted = max(max_num_seqs * max_model_len, largest_slice_tokens(trace) + max_num_seqs * options.block_size)
    base = EngineConfig(
        max_model_len=max_model_len,
        num_kv_blocks=max(1, min(capacity, wanted) // options.block_size),
        block_size=options.block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    runner.resize(base.kv_tokens)
    bandwidth = measure_bandwidth(device, loaded.weight_bytes_measured)
    progress.stage("timing steps by batch size")
    typical = int(np.median((trace.rows["input_tokens"] + trace.rows["output_tokens"] // 2).to_numpy()))
    sweep = measure_sweep(runner, base, context=typical, vocabulary=spec.vocab_size, seed=options.seed)
    return ProbeContext(
        settings=options.settings,
        trace=trace,
        spec=spec,
        loaded=loaded,
        device=device,
        runner=runner,
        base=base,
        budget_bytes=budget_bytes,
        memory=memory,
        kv_capacity_tokens=capacity,
        bandwidth=bandwidth,
        sweep=sweep,
        real_outputs=loaded.trained and trace.content == "text",
        found=found,
        progress=progress.step,
        between_runs=between_runs,
        deadline=deadline,
    )


def countable(trace: Trace, loaded: LoadedModel, max_model_len: int) -> Trace:
    """Every request with its lengths in tokens; what cannot run or does not fit the context is left out and counted.

    Raises:
        ModelError: a trace of text and a model without tokenizer.
        TraceError: no request is left.
    """
    if trace.content == "text":
        if loaded.tokenizer is None:
            raise ModelError(
                f"{loaded.spec.name} has no tokenizer and the trace is text, so its lengths are not known; "
                "name a model directory with a tokenizer, or a trace with token counts"
            )
        tokenizer = loaded.tokenizer
        trace = tokenize(trace, lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"])
    return fit_context(trace.runnable(), max_model_len)


def _kv_capacity(budget: int, loaded: LoadedModel, runner: EagerRunner, memory: MemoryProfile) -> int:
    """Tokens of KV in what weights, activations and the process's other memory leave of the budget."""
    other = loaded.weight_bytes_measured + (memory.activation_peak or 0) + (memory.outside_framework or 0)
    return max(0, (budget - other) // runner.kv_bytes_per_token)

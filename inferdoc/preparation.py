"""From options to a model that is ready to be measured on a trace."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from inferdoc.devices import (
    Bandwidth,
    Device,
    MatmulRate,
    asked_bytes,
    bytes_text,
    describe,
    free_now,
    is_out_of_memory,
    measure_bandwidth,
    measure_matmul,
    release,
)
from inferdoc.draft_model import DraftRoom, check_draft, refuse_drafting, time_draft
from inferdoc.engine.attention.hook import record_layers
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.gate import Probe, check_model, probe
from inferdoc.engine.memory import LargestStep, MemoryTerms, Reading, available_for_kv, foreign_note, profile
from inferdoc.engine.runner import ModelRunner
from inferdoc.errors import InputError, MeasurementError, ModelError, TraceError
from inferdoc.models import (
    LoadedModel,
    bundled_trace_path,
    check_supported,
    load_model,
    read_spec,
    sequence_start,
)
from inferdoc.options import Options, longest_allowed
from inferdoc.probes.context import Collector, LoadedDraft, ProbeContext
from inferdoc.probes.hardware_fit import longest_request
from inferdoc.probes.plan import largest_slice_tokens
from inferdoc.probes.sweep import DRAFTS, Sweep, measure_sweep
from inferdoc.progress import Progress
from inferdoc.switches import StepLimits, Switches
from inferdoc.traces import Trace, fit_context, ideal_hits, read_trace, tokenize


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


class TooLargeError(ModelError):
    """Memory that a model needs could not be had; another type may need less."""


@dataclass(frozen=True)
class _Ready:
    """What was measured of a model on its pool, with timed steps."""

    base: EngineConfig
    memory: MemoryTerms
    kv_capacity_tokens: int
    bandwidth: Bandwidth
    matmul: MatmulRate | None
    sweep: Sweep
    draft: LoadedDraft | None
    notes: tuple[str, ...]


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
        TooLargeError: memory does not hold the model, or the smallest step.
        ModelError: it cannot be loaded, or the engine would measure another model.
        InputError: nothing of the trace can run, or --kv-blocks does not fit.
    """
    if device.kind == "cuda":
        torch.cuda.set_device(device.index)  # Triton and torch.cuda.* without a device launch on the current one
    # A card's free memory as it was before this process used any of it; the budget is made of the same number.
    before = Reading(device.free_bytes, 0) if device.kind == "cuda" else Reading.now(device)
    loaded, probed = _load(options, dtype, device, progress)
    drafting = _load_draft(options, loaded, dtype, device, progress)
    gc.freeze()  # the model's objects live to the end; each run's collection need not walk them
    spec = loaded.spec
    max_model_len = longest_allowed(options, spec)
    if options.block_size > max_model_len:
        raise InputError(f"--block-size {options.block_size} is above the longest sequence ({max_model_len} tokens)")
    trace = countable(trace, loaded, max_model_len)
    progress.stage("checking the engine against transformers' own attention")
    layers = probed.layers or [layer for _, layer in record_layers(loaded.model)]
    switches = Switches.choose(options, device, layers, getattr(torch, loaded.dtype))
    with _memory_error("checking the model", options, dtype, device):
        checked = check_model(
            loaded.model,
            expected_layers=len(spec.layers),
            vocabulary=spec.vocab_size,
            name=spec.name,
            max_model_len=max_model_len,
            attention_backend=switches.attention_backend,
        )
    if drafting is not None:
        check_draft(drafting, max_model_len, switches.attention_backend)
    limits = StepLimits.of(options, device, int(trace.rows["input_tokens"].max()))  # type: ignore[arg-type]
    notes = [*filter(None, [probed.note]), *switches.notes, *checked.notes]
    while True:
        with _memory_error("preparing the engine", options, dtype, device):
            runner = ModelRunner(loaded.model, options.block_size)
        try:
            ready = _set_up(
                options, limits, switches, loaded, drafting, runner, trace, device, budget_bytes, before, progress
            )
            break
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            asked = asked_bytes(error)
        # Here the error is gone, and with it the frames that held what did not fit.
        runner.drop_pool()  # the next runner's first forward may need that memory
        release()
        problem = describe(asked, device)
        smaller = limits.less(options)
        if smaller is None:
            raise TooLargeError(_too_large(f"steps of {limits.tokens} tokens", problem, options, dtype, device))
        notes.append(
            f"{problem} with steps of {limits.largest:,} tokens and {limits.sequences} sequences: went on with "
            f"{smaller.largest:,} and {smaller.sequences}"
        )
        limits = smaller
    if ready is None:
        return None
    return ProbeContext(
        settings=options.settings,
        trace=trace,
        spec=spec,
        loaded=loaded,
        device=device,
        runner=runner,
        base=ready.base,
        memory=ready.memory,
        kv_capacity_tokens=ready.kv_capacity_tokens,
        bandwidth=ready.bandwidth,
        matmul=ready.matmul,
        sweep=ready.sweep,
        budget_bytes=budget_bytes,
        real_outputs=loaded.trained and trace.content == "text",
        found=found,
        progress=progress.step,
        between_runs=between_runs,
        deadline=deadline,
        draft=ready.draft,
        engine_notes=(*notes, *ready.notes),
    )


def _load(
    options: Options, dtype: str, device: Device, progress: Progress, *, called: str = "model"
) -> tuple[LoadedModel, Probe]:
    """The model with its weights, once the rules and its attention without weights have nothing against it."""
    location, gguf_file, trusted = options.model_location, options.gguf_file, options.trust_remote_code
    spec = read_spec(location, gguf_file=gguf_file, trust_remote_code=trusted)
    check_supported(spec)
    probed = probe(
        location,
        expected_layers=len(spec.layers),
        dtype=dtype,
        name=spec.name,
        attention_backend="triton" if options.attention_backend == "triton" else "torch",
        gguf_file=gguf_file,
        trust_remote_code=trusted,
    )
    progress.stage(f"loading the {called} as {dtype}")
    with _memory_error(f"loading the {called} as {dtype}", options, dtype, device):
        loaded = load_model(
            location,
            dtype=dtype,
            device=device.torch_name,
            load_format="dummy" if options.load_format == "dummy" else "auto",
            gguf_file=gguf_file,
            seed=options.seed,
            trust_remote_code=trusted,
        )
    return loaded, probed


def load_beside(
    options: Options, location: str, dtype: str, device: Device, progress: Progress, *, called: str
) -> LoadedModel:
    """Another model, loaded as the one that is diagnosed; `called` says what it is in messages."""
    loaded, _ = _load(replace(options, model=location, gguf_file=None), dtype, device, progress, called=called)
    return loaded


def _load_draft(
    options: Options, target: LoadedModel, dtype: str, device: Device, progress: Progress
) -> LoadedModel | None:
    """The draft model, where one is asked for and can draft for the target."""
    location = options.draft_location
    if location is None:
        return None
    loaded = load_beside(options, location, dtype, device, progress, called="draft model")
    refuse_drafting(target, loaded)
    return loaded


def _set_up(
    options: Options,
    limits: StepLimits,
    switches: Switches,
    loaded: LoadedModel,
    drafting: LoadedModel | None,
    runner: ModelRunner,
    trace: Trace,
    device: Device,
    budget: int,
    before: Reading,
    progress: Progress,
) -> _Ready | None:
    """Measure rates and memory on a small pool, size the real one, time steps on it."""
    spec, size = loaded.spec, options.block_size
    drafts = tuple(sorted({*DRAFTS, options.num_speculative_tokens}))
    max_model_len = longest_allowed(options, spec)
    longest = longest_request(trace)
    progress.stage("measuring memory and rates")
    small = EngineConfig(
        max_model_len=max_model_len,
        num_kv_blocks=-(-limits.tokens // size),
        block_size=size,
        max_num_seqs=limits.sequences,
        max_num_batched_tokens=limits.tokens,
        attention_backend=switches.attention_backend,
        enforce_eager=switches.enforce_eager,
        enable_fusion=switches.enable_fusion,
        compile=switches.compile,
    )
    # Before the pool takes what is free.
    bandwidth = measure_bandwidth(replace(device, free_bytes=free_now(device)), loaded.weight_bytes_measured)
    matmul = _matmul_rate(device, loaded.dtype)
    release()
    weights, per_token = loaded.weight_bytes_measured, runner.kv_bytes_per_token
    runner.resize(small.kv_tokens)
    runner.configure(small)
    step = LargestStep(
        tokens=limits.largest,
        context=longest,
        sequences=limits.sequences,
        decode_context=max(1, min(longest, (budget - weights) // per_token // limits.sequences)),
        block_size=size,
        drafted=drafts[-1],
    )
    profiled = profile(
        runner,
        step,
        device=device,
        before_load=before,
        weight_bytes=weights + (drafting.weight_bytes_measured if drafting else 0),
        vocabulary=spec.vocab_size,
    )
    measured = Reading.now(device)
    kv_within = partial(
        available_for_kv,
        weights=weights,
        profile=profiled,
        graphs=runner.graph_bytes,
        now=measured,
        held=small.kv_tokens * per_token,
        on_card=device.kind == "cuda",
    )
    available = kv_within(budget=budget)
    capacity = available // per_token
    if options.kv_blocks is not None:
        capacity = _fixed_capacity(options, capacity, per_token, longest, budget)
    elif capacity < longest:
        return None
    draft_notes = []
    if drafting is not None:
        room = DraftRoom.of(drafting, kv_within(budget=budget - drafting.weight_bytes_measured), per_token)
        least = max(longest, max_model_len) if options.kv_blocks is None else max(capacity, max_model_len)
        draft_notes.append(room.note(least))
        if room.tokens < least:
            drafting = None
        else:
            capacity = min(capacity, room.tokens)
    # Beyond a full batch of the longest sequences, and all tokens of the largest slice for the prefix cache to keep,
    # more pool would only be reserved.
    wanted = max(limits.sequences * max_model_len, largest_slice_tokens(trace) + limits.sequences * size)
    blocks = options.kv_blocks or max(1, min(capacity, wanted) // size)
    base = replace(small, num_kv_blocks=blocks)
    runner.resize(base.kv_tokens)
    runner.configure(base)
    notes = runner.notes
    if not base.enforce_eager and not runner.captured:
        base = replace(base, enforce_eager=True)  # the evidence says what is run, and the notes why
        runner.configure(base)
    memory = MemoryTerms(
        budget=budget,
        weights=weights,
        profile=profiled,
        graphs=runner.graph_bytes,
        kv_pool=base.kv_tokens * per_token,
        draft=room.bytes(base) if drafting else 0,
        note=foreign_note(measured, Reading.now(device), budget),
    )
    progress.stage("timing steps by batch size")
    typical = int(np.median((trace.rows["input_tokens"] + trace.rows["output_tokens"] // 2).to_numpy()))
    sweep = measure_sweep(
        runner,
        base,
        context=typical,
        vocabulary=spec.vocab_size,
        seed=options.seed,
        drafts=drafts,
    )
    draft = time_draft(drafting, runner, base, sweep, seed=options.seed) if drafting else None
    notes += filter(None, [memory.note, *draft_notes])
    return _Ready(base, memory, capacity, bandwidth, matmul, sweep, draft, tuple(notes))


def _fixed_capacity(options: Options, available: int, per_token: int, longest: int, budget: int) -> int:
    """Tokens of the pool that --kv-blocks asks for.

    Raises:
        InputError: it does not fit, or does not hold the longest request.
    """
    blocks, size = options.kv_blocks or 0, options.block_size
    most, least = available // size, -(-longest // size)
    if blocks > most:
        raise InputError(
            f"--kv-blocks {blocks} takes {blocks * size * per_token:,} bytes; {available * per_token:,} are available "
            f"for KV in the budget of {bytes_text(budget)}: "
            + (f"at most --kv-blocks {most} would fit" if most else "not one block would fit; give more --memory")
        )
    if blocks < least:
        raise InputError(
            f"--kv-blocks {blocks} holds {blocks * size:,} tokens and the longest request has {longest:,}: "
            f"--kv-blocks {least} would hold it, or a smaller --max-model-len leaves it out"
        )
    return blocks * size


def _matmul_rate(device: Device, dtype: str) -> MatmulRate | None:
    try:
        return measure_matmul(device, dtype)
    except MeasurementError:
        return None


@contextmanager
def _memory_error(doing: str, options: Options, dtype: str, device: Device) -> Iterator[None]:
    """A failed allocation becomes one error that says what was needed, what is free and what would fit."""
    try:
        yield
        return
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        asked = asked_bytes(error)
    release()
    raise TooLargeError(_too_large(doing, describe(asked, device), options, dtype, device)) from None


def _too_large(doing: str, problem: str, options: Options, dtype: str, device: Device) -> str:
    """What was needed and what would do: a smaller type, a smaller step, or a larger device."""
    spec = read_spec(options.model_location, gguf_file=options.gguf_file, trust_remote_code=options.trust_remote_code)
    needed, free = spec.weight_bytes(dtype), free_now(device)
    smaller = spec.weight_bytes("bfloat16")
    ways = []
    if smaller < needed and (free is None or smaller < free):
        ways.append(f"--dtype bfloat16 (weights {bytes_text(smaller)})")
    if free is None or needed < free:
        ways.append("a smaller --max-num-batched-tokens, --max-num-seqs or --max-model-len")
    ways.append(f"a device with more memory free (weights alone take {needed:,} bytes)")
    return (
        f"{spec.name}: {problem} while {doing}; the weights in {dtype} take {bytes_text(needed)}. "
        f"What would fit: {'; '.join(ways)}"
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
        trace = tokenize(
            trace,
            lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"],
            begin=sequence_start(tokenizer),
        )
    return fit_context(trace.runnable(), max_model_len)

"""Runs a batch on a model: the `Runner` of the engine that computes for real."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inferdoc.engine.attention.calibration import CalibrationLayout
from inferdoc.engine.attention.cpu import CpuLayout, why_unavailable
from inferdoc.engine.attention.hook import attach, record_layers
from inferdoc.engine.attention.layer import AttentionLayout, KvScales, LayerPages, LayerSpec, StepState
from inferdoc.engine.attention.operator import register
from inferdoc.engine.attention.reference import TorchLayout
from inferdoc.engine.batch import BatchArrays, Ints, StepInput
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.fusion import Fusions, restore
from inferdoc.engine.graphs import Capturer, CudaCapturer, DecodeGraphs, DecodeInputs, DecodeLayout, DecodeStep
from inferdoc.engine.kernel_used import KernelUsed
from inferdoc.engine.packing import PackedLayers, why_unpackable
from inferdoc.engine.quantize import QuantizedLayers
from inferdoc.engine.sampler import is_greedy, sample
from inferdoc.engine.scheduler import Batch
from inferdoc.engine.spec_decode.verify import verify
from inferdoc.errors import InputError, MeasurementError
from inferdoc.models.loading import measure_weights

_CALIBRATION_TOKENS = 64
_KEPT_GRAPHS = 2
"""Configurations whose graphs are kept: the two arms of a comparison, which are run in turn."""


@dataclass(frozen=True)
class _Captured:
    """What of a configuration is fixed in captured graphs."""

    attention_backend: str
    enable_fusion: bool
    compile: bool
    weights: str
    kv_cache_dtype: str
    block_size: int
    table_width: int
    max_rows: int


class ModelRunner:
    """A transformers model on paged K/V, set up by `configure`: launched operation by operation, or replayed as graphs.

    The K/V pages are flat ([slots, heads, dim]), so one pool serves every block size. Where graphs are used, the pages
    have a scrap block past the pool's slots for their padding.

        slots   0 ......................... kv_tokens - 1 | scrap

    Args:
        model: a causal language model in eval mode; its attention implementation is replaced.
        kv_tokens: slots of the pool.
        new_capturer: what captures decode steps; CUDA graphs where the model is on a card.
        compiler: backend of torch.compile.
    """

    def __init__(
        self,
        model: nn.Module,
        kv_tokens: int,
        *,
        new_capturer: Callable[[], Capturer] | None = None,
        compiler: str | Callable[..., Any] = "inductor",
    ) -> None:
        self.model = model
        parameter = next(model.parameters())
        self.device = parameter.device
        self.dtype = parameter.dtype
        restore(model)
        self.layers = record_layers(model)
        self.last_bucket: int | None = None
        """Bucket of the graph that computed the last step; None: it was launched operation by operation."""
        self.last_device_s: float | None = None
        """Seconds of the last step on the card, from its first launch to its tokens; None without a card."""
        self._new_capturer = new_capturer
        if new_capturer is None and self.device.type == "cuda":
            self._new_capturer = lambda: CudaCapturer(self.device)
        self._compiler = compiler
        self._arrays = BatchArrays()
        self._state = StepState()
        self._pages = [self._attach(module, spec) for module, spec in self.layers]
        self._config: EngineConfig | None = None
        self._backend = "torch"
        self._scrap = 0
        self._kv_dtype = self.dtype
        self._scales: list[KvScales] = []
        self._calibrated_on: str | None = None
        self._has_pool = False
        self._fusions: Fusions | None = None
        self._packed: PackedLayers | None = None
        self._quantized: QuantizedLayers | None = None
        self._quantized_for: tuple[str, bool] = ("native", False)
        self._compiled: Callable[..., Any] | None = None
        self._compile_failure: str | None = None
        self._forward: Callable[..., Any] = model
        self._kept: OrderedDict[_Captured, DecodeGraphs | str] = OrderedDict()
        """By configuration: its graphs, or why there are none."""
        self._graphs: DecodeGraphs | None = None
        self._graph_failure: str | None = None
        self.resize(kv_tokens)

    @property
    def specs(self) -> list[LayerSpec]:
        return [spec for _, spec in self.layers]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that this engine really stores for one token, in its pages' type (a window frees nothing here)."""
        return sum(s.kv_heads * (s.key_dim + s.value_dim) for s in self.specs) * self._kv_dtype.itemsize

    @property
    def quantized(self) -> QuantizedLayers | None:
        """The quantized layers of the present configuration; None where its weights are native."""
        return self._quantized if self._config is not None and self._config.weights != "native" else None

    @property
    def weight_kernels(self) -> tuple[KernelUsed, ...]:
        """What multiplies by the quantized weights of the present configuration; nothing where they are native."""
        return self.quantized.kernels if self.quantized is not None else ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that the present configuration computes with (the other arm's copy is not counted)."""
        native = measure_weights(self.model)
        return native if self.quantized is None else native - self.quantized.native_bytes + self.quantized.bytes

    @property
    def graph_bytes(self) -> int | None:
        """Memory of the graphs that are kept; None where there are none, or it cannot be told."""
        sizes = [graphs.bytes for graphs in self._kept.values() if isinstance(graphs, DecodeGraphs)]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    @property
    def captured(self) -> bool:
        """Whether decode steps of the present configuration are replayed as graphs."""
        return self._graphs is not None

    @property
    def notes(self) -> list[str]:
        """What of the present configuration could not be done, for the user."""
        config = self._config
        notes = []
        if config and config.enable_fusion and self._fusions:
            notes += self._fusions.notes
        if self.quantized is not None:
            notes += self.quantized.notes
        if config and config.kv_cache_dtype == "fp8":
            notes.append(
                f"kv_cache_dtype fp8: e4m3, a scale a layer for keys and for values, from {self._calibrated_on}"
            )
        if config and config.compile and self._compile_failure:
            notes.append(self._compile_failure)
        if config and not config.enforce_eager and self._graph_failure:
            notes.append(self._graph_failure)
        if config and config.speculative_config and self._graphs is not None:
            notes.append("steps that check drafted tokens are launched operation by operation, not replayed as graphs")
        return notes

    def resize(self, kv_tokens: int) -> None:
        """Give the model a pool of `kv_tokens` slots; what the old one held is gone."""
        self.kv_tokens = kv_tokens
        self._allocate(self._scrap)
        if self._config is not None:
            self.configure(self._config)

    def drop_pool(self) -> None:
        """Give the pool and the graphs on it back to the device. Until `configure` or `resize` nothing can be run."""
        self._has_pool = False
        for pages in self._pages:
            pages.keys = pages.values = torch.empty(0)
        self._drop_graphs()

    def calibrate_kv(self, token_ids: Sequence[int]) -> None:
        """Choose the scales of fp8 K/V from a text of the user's. What the pool holds and the graphs are lost."""
        self._calibrate(token_ids, f"{len(token_ids)} tokens of the text")
        self._drop_graphs()
        if self._config is not None:
            self.configure(self._config)

    def configure(self, config: EngineConfig) -> None:
        """Set up for runs under `config`: backend, fusions, compilation, graphs. The pool's contents may be lost.

        What fails for reasons of the model or the device is left out, and `notes` says so.

        Raises:
            InputError: the Triton backend without a card, the C function without a compiler, packing without MKL.
            Exception: memory for the pool could not be had, as `is_out_of_memory` tells; there is none then.
        """
        if config.pack_weights and (reason := why_unpackable(self.dtype, self.device)):
            raise InputError(f"pack_weights is not available here: {reason}")
        if config.attention_backend == "cpu" and (reason := why_unavailable(self.dtype, self.device)):
            raise InputError(f"attention_backend 'cpu' is not available here: {reason}; use 'torch'")
        if config.attention_backend == "triton":
            from inferdoc.engine.attention.triton_layout import refuse_device  # needs triton

            refuse_device(self.device)
        kv_dtype = torch.float8_e4m3fn if config.kv_cache_dtype == "fp8" else self.dtype
        if not self._has_pool or kv_dtype != self._kv_dtype:
            self._kv_dtype = kv_dtype
            self._allocate(self._scrap)
        self._config = config
        self._backend = config.attention_backend
        self._graphs = None
        self._set_up_packing(None)
        if self._quantized is not None:
            self._quantized.enable(False)
        self._set_up_scales()
        self._set_up_fusions(config.enable_fusion)
        self._set_up_weights(config)
        self._set_up_packing(config.max_num_seqs if config.pack_weights else None)
        self._set_up_compilation(config.compile)
        if not config.enforce_eager:
            self._set_up_graphs(config)

    @torch.inference_mode()
    def logits(self, batch: Batch, at: Ints | None = None) -> Tensor:
        """Logits [S, vocabulary] of the rows that sample.

        Args:
            at: of these tokens of the packed batch instead, which may be none. Such a step is never replayed.
        """
        step = self._arrays.build(batch)
        if at is not None:
            self.last_bucket = None
            return self._logits(replace(step, sampled=at))
        graphs = self._replay(step)
        return self._logits(step) if graphs is None else graphs.logits[self._sampled(step)]

    @torch.inference_mode()
    def execute(self, batch: Batch) -> list[int]:
        """One token for each row that samples."""
        step = self._arrays.build(batch)
        rows = [row for row in batch.rows if row.samples]
        with self._timed():
            graphs = self._replay(step)
            if graphs is not None and is_greedy(rows):
                chosen = graphs.tokens[: len(batch.rows)]
            elif graphs is not None:
                chosen = sample(graphs.logits[self._sampled(step)], rows)
            else:
                chosen = sample(self._logits(step), rows)
        tokens: list[int] = chosen.tolist()
        return tokens if len(tokens) == len(rows) else [tokens[index] for index in step.sampled]

    @torch.inference_mode()
    def verify(self, batch: Batch) -> list[list[int]]:
        """For each row that samples the drafted tokens that stand, and one more. Never replayed: row lengths vary."""
        step = self._arrays.build(batch)
        self.last_bucket = None
        with self._timed():
            return verify(self._logits(step), [row for row in batch.rows if row.samples])

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Lets a card stamp the beginning and the end of what is launched inside. Not yet run on a card."""
        if self.device.type != "cuda":
            yield
            return
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        yield
        after.record()
        after.synchronize()
        self.last_device_s = before.elapsed_time(after) / 1000

    def _replay(self, step: StepInput) -> DecodeGraphs | None:
        graphs = self._graphs if self._graphs is not None and self._graphs.covers(step) else None
        self.last_bucket = graphs.replay(step) if graphs is not None else None
        return graphs

    def _sampled(self, step: StepInput) -> Tensor:
        return torch.from_numpy(step.sampled).to(self.device)

    def _logits(self, step: StepInput) -> Tensor:
        token_ids, positions = torch.from_numpy(step.token_ids), torch.from_numpy(step.positions)
        layout = self._layout(step)
        return self._run(token_ids.to(self.device), positions.to(self.device), layout, self._sampled(step))

    def _decode_logits(self, step: DecodeStep) -> Tensor:
        """Logits [R, vocabulary]; on persistent tensors, so it can be captured."""
        return self._run(step.token_ids, step.positions, self._decode_layout(step), 0)

    def _layout(self, step: StepInput) -> AttentionLayout:
        if self._backend == "torch":
            return TorchLayout(step, self.device)
        if self._backend == "cpu":
            return CpuLayout(step)
        from inferdoc.engine.attention.triton_layout import TritonLayout  # needs triton

        return TritonLayout.from_step(step, self.device)

    def _decode_layout(self, step: DecodeStep) -> AttentionLayout:
        if self._backend != "triton":
            return DecodeLayout(step)
        from inferdoc.engine.attention.triton_layout import TritonLayout  # needs triton

        return TritonLayout(
            step.slots, step.query_starts, step.lengths, step.block_tables, block_size=step.block_size, max_query_len=1
        )

    def _run(self, token_ids: Tensor, positions: Tensor, layout: AttentionLayout, keep: Tensor | int) -> Tensor:
        """One forward. `keep`: indices of the tokens whose logits are wanted; 0: all."""
        if not self._has_pool:
            raise MeasurementError("the K/V pool could not be allocated: resize the runner before it is used")
        self._state.layout = layout
        try:
            output = self._forward(token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=keep)
        finally:
            self._state.layout = None
            if self._fusions is not None:
                self._fusions.release()
        logits: Tensor = output.logits[0]
        return logits

    def _attach(self, module: nn.Module, spec: LayerSpec) -> LayerPages:
        pages = LayerPages(torch.empty(0), torch.empty(0), spec, self._state)
        register(pages)
        attach(module, pages)
        return pages

    def _allocate(self, scrap: int) -> None:
        self.drop_pool()  # before the new one comes
        slots = self.kv_tokens + scrap
        try:
            for pages in self._pages:
                spec = pages.spec
                pages.keys, pages.values = (
                    torch.empty(slots, spec.kv_heads, dim, dtype=self._kv_dtype, device=self.device)
                    for dim in (spec.key_dim, spec.value_dim)
                )
                pages.keys[self.kv_tokens :] = 0
                pages.values[self.kv_tokens :] = 0
        except Exception:
            self.drop_pool()
            raise
        self._scrap = scrap
        self._has_pool = True

    def _set_up_scales(self) -> None:
        """For pages in e4m3. The weights are native here, so both arms of a comparison of weights have the same."""
        if self._kv_dtype == self.dtype:
            for pages in self._pages:
                pages.scales = None
            return
        if self._calibrated_on is None:
            vocabulary = self.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
            drawn = np.random.default_rng(0).integers(vocabulary, size=_CALIBRATION_TOKENS)
            self._calibrate(drawn.tolist(), f"{_CALIBRATION_TOKENS} random tokens")
        for pages, scales in zip(self._pages, self._scales, strict=True):
            pages.scales = scales

    @torch.inference_mode()
    def _calibrate(self, token_ids: Sequence[int], named: str) -> None:
        layout = CalibrationLayout(_one_prompt(np.asarray(token_ids), sampled=1), self.device)
        ids, positions = torch.tensor(token_ids, device=self.device), torch.arange(len(token_ids), device=self.device)
        kept, self._forward = self._forward, self.model
        try:
            self._run(ids, positions, layout, 1)
        finally:
            self._forward = kept
        self._scales = [layout.scales(pages) for pages in self._pages]
        self._calibrated_on = named

    def _set_up_fusions(self, on: bool) -> None:
        if on and self._fusions is None:
            self._drop_graphs()  # they read the weights where they are now
            self._forward = self.model
            self._fusions = Fusions(self.model, self._probe)
        if self._fusions is not None:
            self._fusions.enable(on)

    def _set_up_packing(self, rows: int | None) -> None:
        if self._packed is not None:
            self._packed.enable(False)
        if rows is not None:
            if self._packed is None or self._packed.rows != rows:
                self._packed = None  # the old copies go before the new ones come
                self._packed = PackedLayers(self.model, rows)
            self._packed.enable(True)

    def _set_up_weights(self, config: EngineConfig) -> None:
        """Quantize, after the fusions, or put back what was quantized before under the same two settings."""
        if config.weights == "native":
            return
        if self._quantized is None or self._quantized_for != (config.weights, config.enable_fusion):
            self._quantized = None  # the old copies go before the new ones come
            self._drop_graphs()  # they read them
            self._config = None  # until it is set up: nobody may take the weights for quantized
            self._quantized = QuantizedLayers(self.model, config.weights, self.device)
            self._quantized_for = (config.weights, config.enable_fusion)
            self._config = config
        self._quantized.enable(True)

    def _set_up_compilation(self, on: bool) -> None:
        self._forward = self.model
        if not on or self._compile_failure:
            return
        if self._compiled is None:
            self._compiled = torch.compile(self.model, dynamic=True, backend=self._compiler)
        self._forward = self._compiled
        try:
            for tokens, sampled in ((1, 1), (2, 2), (3, 1), (3, 0)):  # torch.compile tells 0, 1 and more apart
                self._probe(tokens, sampled)
        except Exception as error:  # whatever the compiler meets in somebody else's code
            self._forward = self.model
            self._compile_failure = f"torch.compile was left out: {_reason(error)}"

    @torch.inference_mode()
    def _probe(self, tokens: int = 2, sampled: int = 2) -> Tensor:
        """Logits of the last `sampled` of the first token ids, computed as one prompt at the start of the pool."""
        return self._logits(_one_prompt(np.arange(tokens), sampled=sampled))

    def _set_up_graphs(self, config: EngineConfig) -> None:
        if self._new_capturer is None:
            self._graph_failure = "CUDA graphs were left out: they need a CUDA device"
            return
        if self._scrap < config.block_size:
            self._allocate(config.block_size)
        key = _Captured(
            attention_backend=config.attention_backend,
            enable_fusion=config.enable_fusion,
            compile=config.compile,
            weights=config.weights,
            kv_cache_dtype=config.kv_cache_dtype,
            block_size=config.block_size,
            table_width=-(-config.max_model_len // config.block_size),
            max_rows=config.max_num_seqs,
        )
        if key not in self._kept:
            while len(self._kept) >= _KEPT_GRAPHS:
                self._kept.popitem(last=False)
            self._kept[key] = self._capture(key, self._new_capturer)
        self._kept.move_to_end(key)
        kept = self._kept[key]
        self._graphs, self._graph_failure = (None, kept) if isinstance(kept, str) else (kept, None)

    @torch.inference_mode()
    def _capture(self, key: _Captured, new_capturer: Callable[[], Capturer]) -> DecodeGraphs | str:
        """The graphs, or why there are none."""
        try:
            inputs = DecodeInputs(
                rows=key.max_rows,
                table_width=key.table_width,
                block_size=key.block_size,
                scrap_block=-(-self.kv_tokens // key.block_size),
                device=self.device,
            )
            return DecodeGraphs(self._decode_logits, inputs, key.max_rows, new_capturer())
        except Exception as error:  # whatever the model's code does that a capture does not allow
            return f"CUDA graphs were left out, steps are launched operation by operation: {_reason(error)}"

    def _drop_graphs(self) -> None:
        """Forget the graphs, and give back to the device what nothing uses any more."""
        self._graphs = None
        self._kept.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _one_prompt(token_ids: Ints, *, sampled: int) -> StepInput:
    """A step of one prompt at the start of the pool, whose last `sampled` tokens sample."""
    positions = np.arange(len(token_ids))
    return StepInput(
        token_ids=token_ids,
        positions=positions,
        slots=positions,
        query_starts=np.array([0, len(token_ids)]),
        lengths=np.array([len(token_ids)]),
        block_tables=positions[None],
        sampled=positions[len(token_ids) - sampled :],
        block_size=1,
    )


def _reason(error: Exception) -> str:
    """The first line of what went wrong; of what the compiler's backend met, where it was that."""
    error = getattr(error, "inner_exception", error)
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"

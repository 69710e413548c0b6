"""The load-time gate: does this model, driven through the hook, give transformers' own logits?

Some architectures ignore the hook without a word, and some call it and are still wrong (their mask or state never
reaches it). So three things are asked, each before the next costs more: the rules of the configuration
(`models.support`), what the layers' attention calls look like on a model without weights (`probe`), and whether the
loaded model gives transformers' logits through the pages (`check_model`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from inferdoc.engine.attention.hook import record_layers
from inferdoc.engine.attention.layer import LayerSpec
from inferdoc.engine.attention.triton_launch import refuse_unsupported
from inferdoc.engine.config import AttentionBackend, EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.rotary import pin_rotary
from inferdoc.engine.runner import ModelRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.errors import ModelError
from inferdoc.models import model_without_weights
from inferdoc.models.quiet import silence

_LARGEST = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest difference of logits as a share of their spread. Far above rounding in each dtype (measured on the embedded
model in float32: below 1e-5; transformers' eager attention rounds its softmax to float32 in float64 models too), far
below what a wrong mask or a skipped layer gives (above 0.1).

In 16 bits rounding grows with a model's depth, up to what a wrong layer among many gives. There the model's own
sensitivity to roundings sets the bound (`_disturbed_logits`), on the root mean square difference, which varies less
from draw to draw than the largest one. Of the logits' spread, on a CPU, Llamas of random weights, hidden size 256:

                                                    the middle layer (of 2: the last)
    layers, dtype    this engine    disturbed       with a window of 12   without attention
    2,  bfloat16     0.0063-0.0066  0.016-0.021     0.37-0.51             0.53-0.61
    16, bfloat16     0.027-0.028    0.047-0.057     0.16                  0.31-0.32
    32, bfloat16     0.040-0.041    0.067-0.080     0.11                  0.22-0.23
    32, float16      0.0057-0.0059  0.0090-0.0099   0.11                  0.22-0.23

In 32 layers of bfloat16 a window of 24 or a scale 1.5 times too large in one layer gives 0.05 to 0.065, and passes."""
_MOST = 0.3
"""No sensitivity allows more: unrelated logits differ by 1.4."""
_DRAWS = 3
"""Disturbances tried before a model is refused: where a rounding decides between experts, one may not show it."""
_BLOCK_SIZE = 16
_CHUNKS = ((11, 13, 10, 1, 1, 1), (11, 8, 1, 1))
"""Tokens of each prompt in each step: chunks over what is in the pages, then decodes beside another prompt's chunk."""
_BLOCKS = ((6, 1, 4), (0, 5))


@dataclass(frozen=True)
class Probe:
    """What is known of a model before its weights are loaded.

    layers: the attention of each layer, in order; ``None`` where the model does not run without weights. note: why.
    """

    layers: tuple[LayerSpec, ...] | None
    note: str | None = None


@dataclass(frozen=True)
class GateResult:
    """The loaded model's check.

    largest_difference: of the logits, relative to the reference's standard deviation.
    first_divergence: (prompt, position) of the first token whose most likely successor differs; that is no failure,
        since rounding decides between near equals, and in 16 bits it often does.
    notes: on what runs otherwise than in transformers.
    """

    layers: int
    largest_difference: float
    first_divergence: tuple[int, int] | None
    notes: tuple[str, ...] = ()


def probe(
    model: str | Path,
    *,
    expected_layers: int,
    dtype: str,
    name: str,
    attention_backend: AttentionBackend = "torch",
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> Probe:
    """List every layer's attention from the configuration alone, in 0.1 to 2 s whatever the size of the weights.

    Raises:
        ModelError: the model cannot be measured by this engine, by name and with the reason.
    """
    try:
        # What is listed does not depend on the type, and grouped experts run without memory in this one alone.
        empty = model_without_weights(model, dtype="bfloat16", gguf_file=gguf_file, trust_remote_code=trust_remote_code)
        with silence():
            recorded = record_layers(empty)
    except Exception as error:
        # Code that reads values (experts chosen by count, remote code) cannot run without them.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Probe(None, f"checked after loading only; without weights it does not run ({reason})")
    check_layers(recorded, expected_layers=expected_layers, dtype=dtype, name=name, attention_backend=attention_backend)
    return Probe(tuple(spec for _, spec in recorded))


def check_layers(
    recorded: list[tuple[nn.Module, LayerSpec]],
    *,
    expected_layers: int,
    dtype: str,
    name: str,
    attention_backend: AttentionBackend = "torch",
) -> None:
    """Refuse a model whose attention calls are not one for each layer, or are beyond the backend.

    Raises:
        ModelError: by name and with the reason.
    """
    modules = len({id(module) for module, _ in recorded})
    if modules < len(recorded):
        raise ModelError(
            f"{name}: {modules} attention modules are called {len(recorded)} times in one forward; each call would "
            "need K/V of its own. Sizing and trace analysis still work"
        )
    if len(recorded) != expected_layers:
        raise ModelError(
            f"{name}: the attention of {len(recorded)} of {expected_layers} layers goes through the hook; "
            "the others would be measured without their K/V. Sizing and trace analysis still work"
        )
    if attention_backend == "triton":
        for _, spec in recorded:
            try:
                refuse_unsupported(spec, getattr(torch, dtype))
            except ModelError as error:
                raise ModelError(f"{name}: {error}") from None


def check_model(
    model: nn.Module,
    *,
    expected_layers: int,
    vocabulary: int,
    name: str,
    max_model_len: int | None = None,
    attention_backend: AttentionBackend = "torch",
) -> GateResult:
    """Compare packed, chunked, paged logits with transformers' own, one prompt at a time.

    Rotary frequencies that depend on the batch are pinned first, for both sides.

    Args:
        max_model_len: longest sequence to come; ``None`` for the longest that the configuration allows.

    Raises:
        ModelError: the model cannot be measured by this engine, by name and with the reason.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(vocabulary, (sum(chunks),), generator=generator).tolist() for chunks in _CHUNKS]
    parameter = next(model.parameters())
    longest = max_model_len or _longest(model)
    notes = pin_rotary(model, max_model_len=longest, name=name) if longest else []
    runner = ModelRunner(model, kv_tokens=_BLOCK_SIZE * 8)
    check_layers(
        runner.layers,
        expected_layers=expected_layers,
        dtype=str(parameter.dtype).removeprefix("torch."),
        name=name,
        attention_backend=attention_backend,
    )
    runner.configure(
        EngineConfig(
            max_model_len=max(map(len, prompts)),
            num_kv_blocks=8,
            block_size=_BLOCK_SIZE,
            max_num_seqs=len(prompts),
            attention_backend=attention_backend,
        )
    )
    ours = _chunked_logits(runner, prompts)
    _use_own_attention(model, runner.specs)
    ends = [[sum(chunks[: i + 1]) - 1 for i in range(len(chunks))] for chunks in _CHUNKS]
    reference = _own_logits(model, prompts, ends)
    largest = _largest(ours, reference)
    difference, bound = largest, _LARGEST.get(reference.dtype, 0.0)
    if reference.dtype not in _LARGEST:
        difference = _typical(ours, reference)
        for draw in range(_DRAWS):
            if difference <= bound or not difference <= _MOST:
                break
            disturbed = _disturbed_logits(model, [module for module, _ in runner.layers], prompts, ends, draw)
            bound = min(_MOST, max(bound, _typical(disturbed, reference)))
    if not difference <= bound:
        raise ModelError(
            f"{name}: logits through the paged engine differ from transformers' own by {difference:.2g} of their "
            f"spread (at most {bound or _MOST:.2g} in {reference.dtype}); it would measure another model. "
            "Sizing and trace analysis still work"
        )
    places = [(prompt, position) for prompt, at in enumerate(ends) for position in at]
    differs = (ours.argmax(-1) != reference.argmax(-1)).tolist()
    divergence = next((place for place, other in zip(places, differs, strict=True) if other), None)
    return GateResult(len(runner.layers), largest, divergence, tuple(notes))


def _own_logits(model: nn.Module, prompts: list[list[int]], ends: list[list[int]]) -> torch.Tensor:
    """Transformers' logits at these positions of each prompt [positions, vocabulary], one prompt at a time."""
    device = next(model.parameters()).device
    with torch.inference_mode():
        logits = [
            model(torch.tensor([prompt], device=device), use_cache=False).logits[0, at]
            for prompt, at in zip(prompts, ends, strict=True)
        ]
    return torch.cat(logits)


def _disturbed_logits(
    model: nn.Module, attention: list[nn.Module], prompts: list[list[int]], ends: list[list[int]], draw: int
) -> torch.Tensor:
    """The same with each number of the embeddings and of every attention's output moved as rounding moves it.

    A rounding's squared error is on average a twelfth of the last place's square. The numbers are rounded already, so
    one in twelve of them, drawn at random, moves by a whole place, up or down.
    """
    generator = torch.Generator().manual_seed(draw)

    def move(module: nn.Module, arguments: tuple[torch.Tensor, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            return (move(module, arguments, output[0]), *output[1:])
        drawn = torch.rand(output.shape, generator=generator).to(output.device)
        signs = (drawn < 1 / 24).to(output.dtype) - (drawn > 23 / 24).to(output.dtype)
        return output * (1 + torch.finfo(output.dtype).eps * signs)

    disturbed = [model.get_input_embeddings(), *attention]  # type: ignore[operator]
    handles = [module.register_forward_hook(move) for module in disturbed]
    try:
        return _own_logits(model, prompts, ends)
    finally:
        for handle in handles:
            handle.remove()


def _largest(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest difference as a share of the reference's spread."""
    return float((logits - reference).abs().max() / _spread(reference))


def _typical(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square difference as a share of the reference's spread."""
    return float((logits.float() - reference.float()).square().mean().sqrt() / _spread(reference))


def _spread(reference: torch.Tensor) -> torch.Tensor:
    return reference.float().std().clamp_min(1e-6)


def _longest(model: nn.Module) -> int | None:
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    return getattr(config, "max_position_embeddings", None)


def _use_own_attention(model: nn.Module, specs: list[LayerSpec]) -> None:
    """Let transformers compute the attention: fused where it offers that, else eager. Older releases offer the fused
    one for models with soft caps or sinks too, and then leave those out."""
    eager = any(spec.softcap is not None or spec.has_sinks for spec in specs)
    try:
        model.set_attn_implementation("eager" if eager else "sdpa")  # type: ignore[operator]
    except ValueError:
        model.set_attn_implementation("eager")  # type: ignore[operator]


def _chunked_logits(runner: ModelRunner, prompts: list[list[int]]) -> torch.Tensor:
    """Logits at the end of each chunk [chunks, vocabulary], prompt by prompt; computed packed together, on pages that
    are not in order."""
    requests = [Request(i, prompt, output_length=1) for i, prompt in enumerate(prompts)]
    for request, blocks in zip(requests, _BLOCKS, strict=True):
        request.block_ids = list(blocks)
    logits: list[list[torch.Tensor]] = [[] for _ in requests]
    for step in range(max(map(len, _CHUNKS))):
        rows = [
            Row(request, chunks[step], samples=True)
            for request, chunks in zip(requests, _CHUNKS, strict=True)
            if step < len(chunks)
        ]
        for row, values in zip(rows, runner.logits(Batch(rows, _BLOCK_SIZE)), strict=True):
            row.request.num_computed += row.num_tokens
            logits[row.request.id].append(values)
    return torch.cat([torch.stack(values) for values in logits])

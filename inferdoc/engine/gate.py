"""The load-time gate: does this model, driven through the hook, give transformers' own logits?

Some architectures ignore the hook without a word, and some call it and are still wrong (their mask or state never
reaches it). So layers are counted and logits compared before anything is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from inferdoc.engine.request import Request
from inferdoc.engine.runner import EagerRunner
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.errors import ModelError

_RELATIVE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 8e-2}
"""Largest difference of logits as a share of their spread. Far above rounding in each dtype (measured on the embedded
model in float32: below 1e-5; transformers' eager attention rounds its softmax to float32 in float64 models too), far
below what a wrong mask or a skipped layer gives (above 0.1)."""


@dataclass(frozen=True)
class GateResult:
    layers: int
    largest_difference: float
    """Of the logits, relative to the reference's standard deviation."""


def check_model(model: nn.Module, *, expected_layers: int, vocabulary: int, name: str) -> GateResult:
    """Compare packed, chunked, paged logits with transformers' own, one prompt at a time.

    Raises:
        ModelError: the model cannot be measured by this engine, by name and with the reason.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(vocabulary, (n,), generator=generator).tolist() for n in (37, 21)]
    device = next(model.parameters()).device
    _use_own_attention(model)
    with torch.inference_mode():
        reference = torch.stack(
            [model(torch.tensor([p], device=device), use_cache=False).logits[0, -1] for p in prompts]
        )
    runner = EagerRunner(model, kv_tokens=128)
    if len(runner.layers) != expected_layers:
        raise ModelError(
            f"{name}: the attention of {len(runner.layers)} of {expected_layers} layers goes through the hook; "
            "the others would be measured without their K/V. Sizing and trace analysis still work"
        )
    ours = _chunked_logits(runner, prompts)
    difference = float((ours - reference).abs().max() / reference.float().std().clamp_min(1e-6))
    bound = _RELATIVE[reference.dtype]
    if not difference <= bound:
        raise ModelError(
            f"{name}: logits through the paged engine differ from transformers' own by {difference:.2g} of their "
            f"spread (at most {bound:g} in {reference.dtype}); it would measure another model. "
            "Sizing and trace analysis still work"
        )
    return GateResult(len(runner.layers), difference)


def _use_own_attention(model: nn.Module) -> None:
    """Let transformers compute the attention: fused where it offers that (not with soft caps or sinks), else eager."""
    try:
        model.set_attn_implementation("sdpa")  # type: ignore[operator]
    except ValueError:
        model.set_attn_implementation("eager")  # type: ignore[operator]


def _chunked_logits(runner: EagerRunner, prompts: list[list[int]]) -> torch.Tensor:
    """Last logits of each prompt, computed packed together, in chunks, on pages that are not in order."""
    block_size, chunk = 8, 11
    blocks = iter([9, 2, 12, 5, 0, 7, 14, 3, 11, 1])
    requests = [Request(i, prompt, output_length=1) for i, prompt in enumerate(prompts)]
    for request in requests:
        request.block_ids = [next(blocks) for _ in range(0, request.prompt_length, block_size)]
    last: dict[int, torch.Tensor] = {}
    while len(last) < len(requests):
        rows = [
            Row(request, min(chunk, request.to_compute), samples=request.to_compute <= chunk)
            for request in requests
            if request.to_compute
        ]
        logits = iter(runner.logits(Batch(rows, block_size)))
        for row in rows:
            row.request.num_computed += row.num_tokens
            if row.samples:
                last[row.request.id] = next(logits)
    return torch.stack([last[request.id] for request in requests])

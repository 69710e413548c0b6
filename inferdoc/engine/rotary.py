"""Rotary positions that depend on the batch are pinned at load, so that a request's K/V never depend on its company.

Some rotary variants choose their frequencies by the largest position in the forward. In a packed step that position
belongs to some other request, and keys that are in the pages were rotated with an earlier choice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from inferdoc.errors import ModelError


def pin_rotary(model: nn.Module, *, max_model_len: int, name: str) -> list[str]:
    """Fix the frequencies to those of a sequence of `max_model_len` tokens, and check that nothing moves them.

    longrope (short factors up to its original length, long ones beyond) gets one of the two for every length, as vLLM
    does. dynamic NTK is left at its original frequencies, which `max_model_len` may not exceed.

    Returns:
        Notes on what runs otherwise than transformers would.

    Raises:
        ModelError: frequencies in 16 bits, dynamic NTK beyond its length, or a variant that cannot be pinned.
    """
    for label, buffer in model.named_buffers():
        if "inv_freq" in label and buffer.is_floating_point() and buffer.dtype.itemsize < 4:
            raise ModelError(
                f"{name}: {label} is {str(buffer.dtype).removeprefix('torch.')}: rotary frequencies rounded to 16 bits "
                "give wrong positions. Load the model with dtype=, do not cast it afterwards"
            )
    notes: list[str] = []
    with torch.no_grad():
        for module in model.modules():
            kinds = getattr(module, "rope_type", None)
            if isinstance(kinds, str):
                notes += _pin(module, kinds, None, max_model_len, name)
            elif isinstance(kinds, dict):
                for layer_type, kind in list(kinds.items()):
                    notes += _pin(module, kind, layer_type, max_model_len, name)
    return list(dict.fromkeys(notes))


def _pin(module: nn.Module, kind: str, layer_type: str | None, max_model_len: int, name: str) -> list[str]:
    if kind not in ("dynamic", "longrope"):
        return []
    parameters: dict[str, Any] = module.config.rope_parameters  # type: ignore[union-attr, assignment]
    if layer_type is not None:
        parameters = parameters[layer_type]
    if kind == "dynamic":
        original = int(module.original_max_seq_len)  # type: ignore[arg-type]
        if max_model_len > original:
            raise ModelError(
                f"{name}: its rotary frequencies (dynamic NTK) change once a sequence passes {original} tokens, and "
                f"with them the meaning of cached keys; --max-model-len {original} runs"
            )
    # The module itself makes the choice, at the last position there can be; relabelled, it makes no other.
    _rotate(module, [max_model_len - 1], layer_type)
    if layer_type is None:
        module.rope_type = "default"  # type: ignore[assignment]
    else:
        module.rope_type[layer_type] = "default"  # type: ignore[index, operator, assignment]
    short = _rotate(module, [0, 1, 2], layer_type)
    if not torch.equal(short, _rotate(module, [0, 1, 2, max_model_len - 1], layer_type)[:, :3]):
        raise ModelError(
            f"{name}: its rotary positions depend on the longest sequence in the batch and cannot be pinned; "
            f"--max-model-len {parameters.get('original_max_position_embeddings', 'of its original length')} runs"
        )
    if kind == "longrope" and max_model_len > parameters["original_max_position_embeddings"]:
        return [
            f"longrope: the long factors rotate every sequence, since --max-model-len {max_model_len} is above "
            f"{parameters['original_max_position_embeddings']}; below that length outputs differ from transformers'"
        ]
    return []


def _rotate(module: nn.Module, positions: list[int], layer_type: str | None) -> torch.Tensor:
    """Cosines and sines [2, positions, dim] of one sequence."""
    device = next((buffer.device for buffer in module.buffers()), torch.device("cpu"))
    extra = {} if layer_type is None else {"layer_type": layer_type}
    cos, sin = module(torch.zeros(1, device=device), torch.tensor([positions], device=device), **extra)
    return torch.cat((cos, sin))

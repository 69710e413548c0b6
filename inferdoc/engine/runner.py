"""Runs a batch on a model: the `Runner` of the engine that computes for real."""

from __future__ import annotations

import torch
from torch import nn

from inferdoc.engine.attention.hook import attach, record_layers
from inferdoc.engine.attention.layer import LayerPages, LayerSpec, StepState
from inferdoc.engine.attention.reference import TorchLayout
from inferdoc.engine.batch import StepInput
from inferdoc.engine.scheduler import Batch


class EagerRunner:
    """A transformers model on paged K/V, launched operation by operation.

    The K/V pages are flat ([slots, heads, dim]), so one pool serves every block size. Sampling is greedy.

    Args:
        model: a causal language model in eval mode; its attention implementation is replaced.
        kv_tokens: slots of the pool.
    """

    def __init__(self, model: nn.Module, kv_tokens: int) -> None:
        self.model = model
        parameter = next(model.parameters())
        self.device = parameter.device
        self.dtype = parameter.dtype
        self.layers = record_layers(model)
        self._state = StepState()
        self.resize(kv_tokens)

    @property
    def specs(self) -> list[LayerSpec]:
        return [spec for _, spec in self.layers]

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that this engine really stores for one token (a window frees nothing here)."""
        return sum(s.kv_heads * (s.key_dim + s.value_dim) for s in self.specs) * self.dtype.itemsize

    def resize(self, kv_tokens: int) -> None:
        """Give the model a pool of `kv_tokens` slots; what the old one held is gone."""
        self.kv_tokens = kv_tokens
        for module, spec in self.layers:
            attach(
                module,
                LayerPages(
                    keys=torch.empty(kv_tokens, spec.kv_heads, spec.key_dim, dtype=self.dtype, device=self.device),
                    values=torch.empty(kv_tokens, spec.kv_heads, spec.value_dim, dtype=self.dtype, device=self.device),
                    spec=spec,
                    state=self._state,
                ),
            )

    @torch.inference_mode()
    def logits(self, batch: Batch) -> torch.Tensor:
        """Logits [S, vocabulary] of the rows that sample."""
        step = StepInput.from_batch(batch)
        self._state.layout = TorchLayout(step, self.device)
        output = self.model(
            torch.from_numpy(step.token_ids).to(self.device)[None],
            position_ids=torch.from_numpy(step.positions).to(self.device)[None],
            use_cache=False,
            logits_to_keep=torch.from_numpy(step.sampled).to(self.device),
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def execute(self, batch: Batch) -> list[int]:
        tokens: list[int] = self.logits(batch).argmax(dim=-1).tolist()
        return tokens

"""A random model whose outputs vary, and what it gives each prompt by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def tiny_model(
    model_type: str = "llama",
    *,
    vocabulary: int,
    seed: int = 2,
    dtype: torch.dtype = torch.float64,
    noise: float | None = None,
    **options: int,
) -> torch.nn.Module:
    """Weights N(0, 0.25), the same ones in every dtype; a little noise leaves most outputs as with 0.0."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        model_type,
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **options,
    )
    model = AutoModelForCausalLM.from_config(config).double().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
            if noise is not None:
                parameter.data += noise * torch.randn_like(parameter)
    return model.to(dtype)


class Alone:
    """What a model gives each prompt by itself, computed by transformers in full at each token; remembered."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._logits: dict[tuple[int, ...], torch.Tensor] = {}

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """[vocabulary] after the last of `tokens`."""
        key = tuple(tokens)
        if key not in self._logits:
            self._logits[key] = self.model(torch.tensor([key]), use_cache=False).logits[0, -1]
        return self._logits[key]

    def generate(self, prompt: Sequence[int], length: int) -> list[int]:
        """The tokens of greedy decoding."""
        tokens = list(prompt)
        for _ in range(length):
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens[len(prompt) :]

"""How the engine computes a step, and how much of it: by the options, by the device, by what memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch

from inferdoc.devices import Device
from inferdoc.engine.attention.cpu import why_unavailable
from inferdoc.engine.attention.layer import LayerSpec
from inferdoc.engine.attention.triton_launch import refuse_unsupported
from inferdoc.engine.config import AttentionBackend
from inferdoc.errors import InputError
from inferdoc.options import Options


@dataclass(frozen=True)
class StepLimits:
    """What a step may hold: as asked for, else by the device, else less where memory does not hold that."""

    tokens: int
    """Token budget."""
    sequences: int
    largest: int
    """Tokens of the largest step of any arm: a whole prompt where one is not chunked, else the token budget."""

    @classmethod
    def of(cls, options: Options, device: Device, longest_prompt: int) -> StepLimits:
        tokens, sequences = (256, 8) if device.kind == "cpu" else (2048, 64)
        tokens = options.max_num_batched_tokens or max(tokens, options.max_num_seqs or 0, options.block_size)
        # Host memory is handed out page by page, so a larger step finds room there without being planned for.
        largest = tokens if device.kind == "cpu" else max(tokens, longest_prompt)
        return cls(tokens, options.max_num_seqs or min(sequences, tokens), largest)

    def less(self, options: Options) -> StepLimits | None:
        """Without whole prompts, then half of what the user left open; ``None`` where that changes nothing."""
        if self.largest > self.tokens:
            return replace(self, largest=self.tokens)
        sequences = options.max_num_seqs or min(self.sequences, max(2, self.sequences // 2))
        least = max(options.block_size, sequences)
        tokens = options.max_num_batched_tokens or min(self.tokens, max(least, self.tokens // 2))
        smaller = StepLimits(tokens, sequences, tokens)
        return smaller if smaller != self else None


@dataclass(frozen=True)
class Switches:
    """How this engine computes a step: the same in both arms of every comparison."""

    attention_backend: AttentionBackend
    enforce_eager: bool
    enable_fusion: bool
    compile: bool
    notes: tuple[str, ...] = ()
    """What was not to be had."""

    @classmethod
    def choose(cls, options: Options, device: Device, layers: Sequence[LayerSpec], dtype: torch.dtype) -> Switches:
        """As asked for, else by the device: on a card Triton attention, graphs and fusions; on a CPU the C function.

        Raises:
            ModelError: Triton attention is asked for and cannot run a layer of this model, or its type.
            InputError: Triton attention or the C function is asked for and not to be had.
        """
        on_card = device.kind == "cuda"
        notes = []
        backend: AttentionBackend = "torch"
        if options.attention_backend == "triton" or (options.attention_backend == "auto" and on_card):
            try:
                for layer in layers:
                    refuse_unsupported(layer, dtype)
                if find_spec("triton") is None:
                    raise InputError(
                        "the package triton (Linux) is not installed; attention_backend 'torch' runs anywhere"
                    )
                backend = "triton"
            except InputError as error:
                if options.attention_backend == "triton":
                    raise
                notes.append(f"attention in torch: {error}")
        elif options.attention_backend != "torch":
            reason = why_unavailable(dtype, torch.device(device.torch_name))
            if reason is None:
                backend = "cpu"
            elif options.attention_backend == "cpu":
                raise InputError(f"--attention-backend cpu is not available here: {reason}; use torch (or auto)")
            else:
                notes.append(f"attention in torch: {reason}")
        eager = options.enforce_eager
        if eager is None:
            # Captured, attention in torch would gather the longest sequence's K/V for every row.
            eager = backend != "triton"
            if eager and on_card:
                notes.append("eager: with attention in torch graphs are captured by --no-enforce-eager only")
        fusion = options.enable_fusion if options.enable_fusion is not None else on_card
        return cls(backend, eager, fusion, options.compile, tuple(notes))

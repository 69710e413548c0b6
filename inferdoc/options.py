"""What a diagnosis is asked for, and what of it cannot run whatever the model."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from inferdoc.devices import Device
from inferdoc.engine.config import AttentionBackend
from inferdoc.errors import InputError
from inferdoc.evidence import Objective, Slo
from inferdoc.models import EMBEDDED, ModelSpec, embedded_draft_path, embedded_path
from inferdoc.probes.context import Settings

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
    requests: int | None = None
    """Of the measured slice, so that two diagnoses serve the same; ``None``: as many as the budget allows."""
    memory_bytes: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    kv_blocks: int | None = None
    attention_backend: AttentionBackend | Literal["auto"] = "auto"
    enforce_eager: bool | None = None
    enable_fusion: bool | None = None
    compile: bool = False
    length_scale: Fraction = Fraction(1)
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"
    gguf_file: str | None = None
    trust_remote_code: bool = False
    seed: int = 0
    draft_model: str | None = None
    num_speculative_tokens: int = 4
    max_quality_loss: float | None = None
    """By which share of itself the perplexity may rise; ``None``: as the rules say."""
    student: str | None = None
    """A smaller model to measure beside this one."""
    questions: tuple[int, ...] = ()
    """Numbers of the questions whose comparisons are run; empty: all."""
    command: str = "inferdoc diagnose"

    @property
    def model_location(self) -> str:
        return str(embedded_path()) if self.model == EMBEDDED else self.model

    @property
    def draft_location(self) -> str | None:
        """The draft model; ``None``: without one."""
        return str(embedded_draft_path()) if self.draft_model == EMBEDDED else self.draft_model

    @property
    def settings(self) -> Settings:
        return Settings(
            objective=self.objective,
            slo=self.slo,
            budget_s=self.budget_s,
            load=self.load,
            replicas=self.replicas,
            requests=self.requests,
            seed=self.seed,
            memory_given=self.memory_bytes is not None,
            num_speculative_tokens=self.num_speculative_tokens,
        )


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


def check_options(options: Options, device: Device) -> None:
    """Refuses what cannot run whatever the model, before anything is loaded.

    Raises:
        InputError: by flag, with what would do.
    """
    size, tokens = options.block_size, options.max_num_batched_tokens
    if size < 1 or size & (size - 1):
        raise InputError(f"--block-size {size} is not a power of two; 16, 32 and 64 are usual")
    if tokens is not None and tokens < size:
        raise InputError(
            f"--max-num-batched-tokens {tokens} is below --block-size {size}: a step could not fill one block; "
            f"give at least {size} tokens"
        )
    if tokens is not None and options.max_num_seqs is not None and tokens < options.max_num_seqs:
        raise InputError(
            f"--max-num-batched-tokens {tokens} is below --max-num-seqs {options.max_num_seqs}: a step could not hold "
            "one token for each running request"
        )
    if device.kind == "cpu" and options.attention_backend == "triton":
        raise InputError("--attention-backend triton needs a CUDA card; on a CPU use torch (or auto)")
    if device.kind == "cpu" and options.enforce_eager is False:
        raise InputError("--no-enforce-eager asks for CUDA graphs, which need a CUDA card; on a CPU leave it out")

"""The engine's switches. One frozen object a run; an off/on pair differs in exactly one field."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.errors import InputError

AttentionBackend = Literal["torch", "cpu", "triton"]
WeightScheme = Literal[
    "native", "int8_weight_only", "int8_dynamic", "fp8_weight_only", "fp8_dynamic", "int4_weight_only", "sparse_24"
]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the engine does with a load. Field names follow vLLM's flags where vLLM has one.

    Raises:
        InputError: a combination that cannot run.
    """

    max_model_len: int
    """Longest sequence (prompt and output) in tokens."""
    num_kv_blocks: int
    """KV pool in blocks; both arms of a comparison have the same."""
    block_size: int = 16
    """Tokens a block; a power of two. Also the unit of prefix hashing."""
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    """Token budget of a step, decodes included."""
    batching: Literal["continuous", "prefill-first", "static"] = "continuous"
    """Continuous: prompts and decodes share a step. Prefill-first: decodes wait while a prompt can be computed.
    Static: a new batch starts when every request of the last one is done; finished rows go on as padding."""
    enable_chunked_prefill: bool = True
    """Off: a prompt is computed whole in one step, beside the running decodes, whatever the token budget."""
    reservation: Literal["paged", "peak-forecast", "max-model-len", "per-request"] = "paged"
    """Paged takes blocks as they fill; peak-forecast does too, but admits a request only where the forecast peak of all
    running ones fits. The other two reserve consecutive blocks at admission: `max_model_len` tokens, or the prompt with
    its declared maximum (without one, the output rounded up to a power of two)."""
    enable_prefix_caching: bool = False
    attention_backend: AttentionBackend = "torch"
    """Torch gathers K/V and runs anywhere. The other two read the pages in place: Triton on a card, a compiled C
    function on a CPU."""
    enforce_eager: bool = True
    """Off: decode steps are replayed as CUDA graphs, by batch-size bucket."""
    enable_fusion: bool = False
    """Merged QKV, merged gate-up and fused RMSNorm, where they were verified at load."""
    compile: bool = False
    """The model's forward through torch.compile."""
    pack_weights: bool = False
    """On a CPU: a second copy of the linear layers' weights, laid out for steps of `max_num_seqs` tokens."""
    weights: WeightScheme = "native"
    """How the linear layers' weights are kept; embeddings and head stay as they are."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """Fp8: e4m3, with a scale for the keys and one for the values of each layer."""
    speculative_config: SpeculativeConfig | None = None
    """Tokens drafted for running requests, and checked by the model in one step."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "num_kv_blocks", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise InputError(f"block_size is {self.block_size}; it must be a power of two")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs ({self.max_num_seqs}): "
                "a step could not hold one token for each running request"
            )
        if self.speculative_config is not None and self.max_num_batched_tokens == self.max_num_seqs:
            raise InputError(
                f"speculative_config needs max_num_batched_tokens above max_num_seqs ({self.max_num_seqs}): a step "
                "keeps one token for each request, and has none left for drafts"
            )
        if self.pack_weights and self.weights != "native":
            raise InputError(f"pack_weights packs native weights, not {self.weights}: choose one of the two")
        if self.enable_prefix_caching and self.reservation not in ("paged", "peak-forecast"):
            raise InputError(
                "enable_prefix_caching needs reservation 'paged' or 'peak-forecast': a contiguous region cannot share "
                "blocks"
            )

    @property
    def kv_tokens(self) -> int:
        return self.num_kv_blocks * self.block_size

    def describe(self) -> dict[str, Any]:
        return asdict(self)

    def difference(self, other: EngineConfig) -> list[str]:
        """Names of the fields in which two configurations differ."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]

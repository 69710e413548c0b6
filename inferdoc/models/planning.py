"""Does a model fit a card, with how much KV, and over how many cards: worked out from shapes, nothing is loaded.

    card × utilization |-- weights / ranks --|-- activations --|-- context, libraries, graphs --|------ KV ------|

A card's share is the one that vLLM's ``gpu_memory_utilization`` means: of all its memory, weights included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferdoc.errors import ModelError
from inferdoc.evidence import Contract
from inferdoc.models.quantization import RECIPE_BITS
from inferdoc.models.sizing import element_bytes
from inferdoc.models.spec import ModelSpec
from inferdoc.models.splitting import MOST_CARDS, NODE, OUTSIDE_BYTES, Layout, Split, refused_sizes

if TYPE_CHECKING:
    from inferdoc.devices.cards import CardSpec

WEIGHT_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "int8": "int8",
    "fp8": "fp8",
    "int4": "int4",
}
"""Types of weights that can be asked for, by the name that `ModelSpec.weight_bytes` takes."""
KV_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}
_SHOWN = ("bf16", "int8", "fp8", "int4")

STEP_TOKENS = 8192
STEP_SEQUENCES = 256

ASSUMPTIONS = (
    "activations (modelled): the larger of step tokens × (3 × hidden + 3 × MLP width / TP; of a mixture, of every "
    "picked expert) × 2 B and step sequences × vocabulary × 10 B",
    f"outside (assumed): {OUTSIDE_BYTES // 2**20:,} MiB a card for CUDA context, libraries, communicators and graphs",
    "weights over ranks (modelled): split evenly by TP, by layers in PP, embedding on the first stage and head on the "
    "last; KV bytes follow the layers and heads of each rank exactly",
    f"TP divides the query heads, and KV heads divide or are copied; at most {NODE} ranks, one node; beyond {NODE} "
    "cards whole nodes",
    "TP divides the padded vocabulary, attention outputs and MLP widths into shares of whole blocks of scales, as vLLM "
    "and SGLang demand; EP: experts are spread over those ranks whole, with the same bytes a rank",
    "KV tokens are those of sequences as long as the context; blocks of a paged cache round each up a little",
)
"""What the sizes rest on, for a reader."""


class KvSize(Contract):
    """Bytes of KV for one sequence on all ranks of one copy of the model: what TP copies is not in it."""

    growing_bytes: int
    """Keys and values, or latents, of the layers that keep every token."""
    index_bytes: int
    """Index keys of sparse attention, which grow with every token too."""
    windowed_bytes: int
    fixed_bytes: int
    total_bytes: int
    bytes_per_token: int
    """What one more token adds while the sequence is shorter than every window."""


class Plan(Contract):
    """The sizes of one model on cards of one kind. Sizes in bytes; ``exact`` where no estimate entered."""

    model: str
    architecture: str
    parameters: int
    active_parameters: int
    vision_parameters: int
    parameters_exact: bool
    quantization: str | None
    weight_dtype: str
    """``stored``: as the checkpoint has them."""
    weight_bytes: int
    weight_bytes_stored: int | None
    """``None``: the checkpoint's own scheme is one that cannot be sized."""
    weight_bytes_by_dtype: dict[str, int]
    context_tokens: int
    model_context_tokens: int | None
    kv_dtype: str
    kv: KvSize
    batch: int
    split: Split | None
    """On the cards that were asked for, else on the fewest that hold it: the first of `splits`, else the nearest."""
    splits: list[Split]
    """Of as many cards as `split` has, all that fit, most tensor parallelism first."""
    fewest_gpus: int | None
    fewest_split: Split | None
    notes: list[str]


def estimate(
    spec: ModelSpec,
    card: CardSpec,
    context_tokens: int,
    *,
    gpus: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    gpu_memory_utilization: float = 0.9,
    step_tokens: int = STEP_TOKENS,
    step_sequences: int = STEP_SEQUENCES,
) -> Plan:
    """Sizes `spec` on cards like `card` for sequences of `context_tokens` tokens.

    Args:
        gpus: cards at hand; ``None`` for the fewest that hold the model and `batch` sequences.
        batch: sequences that must be held at once.
        dtype: a key of `WEIGHT_DTYPES`; ``None`` as the checkpoint stores them.
        kv_dtype: a key of `KV_DTYPES`; ``None`` for what the checkpoint asks for, else 16 bits.
        gpu_memory_utilization: share of the card's memory that weights, overhead and KV may take together.
        step_tokens, step_sequences: the largest step that the server runs; they set the activations.

    Raises:
        ModelError: the weights' own scheme cannot be sized and no type was named, or a type that is not known.
    """
    for name, known in ((dtype, WEIGHT_DTYPES), (kv_dtype, KV_DTYPES)):
        if name is not None and name not in known:
            raise ModelError(f"unknown type {name!r}; known are {', '.join(known)}")
    stored = _stored(spec)
    weights = spec.weight_bytes(WEIGHT_DTYPES[dtype] if dtype else None)
    cache = KV_DTYPES[kv_dtype] if kv_dtype else spec.kv_dtype or "bfloat16"
    layout = Layout(
        spec=spec,
        weights=weights,
        element=_plain_element(spec, dtype),
        cache=cache,
        context=context_tokens,
        batch=batch,
        budget=math.floor(card.memory_bytes * gpu_memory_utilization),
        step=(step_tokens, step_sequences),
    )
    fewest = layout.fewest()
    at_hand = layout.splits(gpus) if gpus is not None else fewest
    parts = spec.kv_parts(context_tokens, dtype=cache)
    return Plan(
        model=spec.name,
        architecture=spec.architecture,
        parameters=spec.parameters,
        active_parameters=spec.active_parameters,
        vision_parameters=spec.vision_parameters,
        parameters_exact=spec.parameters_exact,
        quantization=spec.quantization,
        weight_dtype=dtype or "stored",
        weight_bytes=weights,
        weight_bytes_stored=stored,
        weight_bytes_by_dtype={name: spec.weight_bytes(WEIGHT_DTYPES[name]) for name in _SHOWN},
        context_tokens=context_tokens,
        model_context_tokens=spec.context_length,
        kv_dtype="fp8" if cache == "fp8" else "bf16",
        kv=KvSize(
            growing_bytes=parts.growing,
            index_bytes=parts.index,
            windowed_bytes=parts.windowed,
            fixed_bytes=parts.fixed,
            total_bytes=parts.total,
            bytes_per_token=spec.kv_bytes_per_token(dtype=cache),
        ),
        batch=batch,
        split=at_hand[0] if at_hand else None,
        splits=[split for split in at_hand if split.fits],
        fewest_gpus=fewest[0].gpus if fewest else None,
        fewest_split=fewest[0] if fewest else None,
        notes=[*_notes(spec, context_tokens, dtype, gpus if not at_hand else None, fits=bool(fewest)), *spec.notes],
    )


def _stored(spec: ModelSpec) -> int | None:
    try:
        return spec.weight_bytes()
    except ModelError:
        return None


def _plain_element(spec: ModelSpec, dtype: str | None) -> int:
    """Bytes of an element outside the quantized layers."""
    if dtype is None:
        return spec.stored_element_bytes
    return 2 if dtype in RECIPE_BITS else element_bytes(WEIGHT_DTYPES[dtype])


def _notes(
    spec: ModelSpec, context: int, dtype: str | None, impossible_gpus: int | None, *, fits: bool
) -> Iterator[str]:
    if spec.context_length is not None and context > spec.context_length:
        yield (
            f"the context is longer than the model's own of {spec.context_length:,} tokens: sized all the same, but a "
            "server refuses it unless positions are scaled"
        )
    refused = refused_sizes(spec)
    if refused:
        told = "; ".join(f"TP{ranks}: {why}" for ranks, why in refused.items())
        yield f"splits that servers refuse are left out: {told}"
    if not fits:
        yield f"no split over up to {MOST_CARDS} of these cards holds it"
    if impossible_gpus is not None:
        yield f"its heads and layers cannot be spread over {impossible_gpus} cards"
    if dtype is not None and spec.quantization is not None:
        yield f"the checkpoint holds {spec.quantization} weights; they are sized as if it held {dtype}"
    if dtype is None and spec.quantization is None and spec.dtype == "float32":
        yield "float32 as stored; servers mostly load it in 16 bits: --dtype bf16 sizes that"

"""What a model is, as far as memory goes: parameters, layers, types. Read from a configuration, never from a name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferdoc.errors import ModelError
from inferdoc.models.counting import ParameterCount, active_parameters, count_parameters, step_width
from inferdoc.models.cuts import Cut, read_cuts
from inferdoc.models.fields import Fields, shown
from inferdoc.models.layers import LayerSpec, read_layers
from inferdoc.models.quantization import RECIPE_BITS, Scheme
from inferdoc.models.quantization_blocks import read_scheme
from inferdoc.models.sizing import DTYPE_BYTES, KvBytes, StepWidth, element_bytes, kv_parts
from inferdoc.models.support import refusal


@dataclass(frozen=True)
class ModelSpec:
    """One model. Sizes in elements or bytes; a byte count is exact for the shapes that the file states.

    name: as the user gave it, without folders. architecture, model_type: as the file says.
    parameters: all that memory holds, every expert and any vision tower, tied tensors once.
    active_parameters: those that one token of text goes through. vision_parameters: part of `parameters`.
    linear_parameters: in the matrices that a quantization recipe covers.
    parameters_exact: False where a formula estimated the count.
    layers: what each layer keeps for a sequence, in order. attention_heads: of queries, 0 without attention.
    step_width: what a layer holds of each token while it computes.
    context_length: tokens; None where neither file nor class says. dtype: of the 16- or 32-bit weights.
    quantization: the checkpoint's own scheme, None where it has none. kv_dtype: cache type that it asks for.
    quantized_bits: of a weight that it covers, on average; None where it cannot be sized, and unsized_because says why.
    cuts: widths that tensor parallelism divides, and what a rank's share of each must be a multiple of.
    state_dtype: type of recurrent matrices where the file fixes one.
    unsupported: why the engine cannot run it; None where no rule is against it.
    """

    name: str
    architecture: str
    model_type: str
    parameters: int
    active_parameters: int
    vision_parameters: int
    linear_parameters: int
    parameters_exact: bool
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    vocab_size: int
    context_length: int | None
    dtype: str
    tied_embeddings: bool
    attention_heads: int
    step_width: StepWidth
    quantization: str | None = None
    quantized_parameters: int = 0
    quantized_bits: float | None = None
    unsized_because: str | None = None
    cuts: tuple[Cut, ...] = ()
    kv_dtype: str | None = None
    state_dtype: str | None = None
    unsupported: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        name: str,
        *,
        companion: Mapping[str, Any] | None = None,
        stored_dtype: str | None = None,
        code: str | None = None,
    ) -> ModelSpec:
        """Reads a parsed config.json.

        Args:
            config: the file as parsed.
            name: what messages call the model.
            companion: a parsed ``hf_quant_config.json``, where a vendor keeps the quantization outside the file.
            stored_dtype: type of the stored weights, for a file that names none.
            code: directory or hub id whose own code may be run to count a class that transformers lacks.

        Raises:
            ModelError: sizes are missing or senseless, or a layer type cannot be sized.
        """
        fields = Fields(config, name)
        layers = read_layers(fields)
        scheme = read_scheme(config, companion, name)
        count = count_parameters(fields, layers, scheme, code=code)
        dtype, dtype_note = _dtype(fields, scheme, stored_dtype)
        latent = any(layer.latent_dim for layer in layers)
        defaults = fields.class_defaults(latent=latent, experts=count.experts > 0)
        notes = [
            note for note in (count.note, _default_note(fields, defaults), dtype_note, *_layer_notes(layers)) if note
        ]
        return cls(
            name=name,
            architecture=fields.architecture,
            model_type=fields.model_type,
            parameters=count.total,
            active_parameters=active_parameters(fields, count),
            vision_parameters=count.vision,
            linear_parameters=count.linear,
            parameters_exact=count.exact and not defaults,
            layers=layers,
            hidden_size=fields.hidden_size,
            vocab_size=fields.vocab_size,
            context_length=fields.context_length,
            dtype=dtype,
            tied_embeddings=count.tied,
            quantization=scheme.name if scheme else None,
            quantized_parameters=sum(count.covered.values()),
            quantized_bits=_bits(scheme, count),
            unsized_because=(scheme.why if scheme else None) or count.why,
            cuts=read_cuts(fields, layers, scheme),
            kv_dtype=scheme.kv_dtype if scheme else None,
            state_dtype=_state_dtype(fields),
            unsupported=refusal(fields, layers),
            notes=tuple(notes),
            attention_heads=fields.heads if any(layer.kv_heads for layer in layers) else 0,
            step_width=step_width(fields),
        )

    @property
    def uses_latent_cache(self) -> bool:
        """True for MLA, which the bundled engine stores uncompressed."""
        return any(layer.kind == "mla" for layer in self.layers)

    @property
    def state_elements_per_sequence(self) -> int:
        """Elements of fixed state that a sequence keeps whatever its length."""
        return sum(layer.state_elements for layer in self.layers)

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes of fixed state that a sequence keeps whatever its length, with 16-bit activations."""
        return self.kv_bytes(0)

    @property
    def stored_element_bytes(self) -> int:
        """Bytes of an element of the weights that no scheme covers.

        Raises:
            ModelError: the file names a type that is none of 8 to 64 bits.
        """
        if self.dtype not in DTYPE_BYTES:
            raise ModelError(
                f"{self.name}: its dtype is {shown(self.dtype)}, which cannot be sized without a quantization_config; "
                f"known are {', '.join(sorted(DTYPE_BYTES))}: name a type"
            )
        return DTYPE_BYTES[self.dtype]

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Bytes of the weights in memory.

        Args:
            dtype: ``float32``, ``bfloat16``, ``float16``: every parameter in it. ``int8``, ``fp8``, ``int4``: the
                linear layers with their scales (int4: groups of 128, a 16-bit scale and a 4-bit zero point; the others
                a 16-bit scale for an output row), embeddings, head, norms and routers in 16 bits. ``None``: as the
                checkpoint stores them.

        Raises:
            ModelError: unknown type, or the checkpoint's scheme is one that this version cannot size.
        """
        if dtype in RECIPE_BITS:
            return self._mixed_bytes(self.linear_parameters, RECIPE_BITS[dtype], "bfloat16")
        if dtype is not None:
            return self.parameters * element_bytes(dtype)
        if self.quantization is None:
            return self.parameters * self.stored_element_bytes
        if self.quantized_bits is None:
            why = f" ({self.unsized_because})" if self.unsized_because else ""
            raise ModelError(f"{self.name}: weights quantized by {self.quantization} cannot be sized{why}; name a type")
        _ = self.stored_element_bytes
        return self._mixed_bytes(self.quantized_parameters, self.quantized_bits, self.dtype)

    def kv_bytes(
        self,
        tokens: int,
        *,
        dtype: str | None = "bfloat16",
        tensor_parallel: int = 1,
        uncompressed: bool = False,
    ) -> int:
        """Bytes that one sequence of `tokens` tokens keeps on one rank, fixed state included (`sizing.kv_parts`).

        Args:
            dtype: type of the cache; ``None`` for the model's own.
            uncompressed: MLA as the bundled engine stores it, keys and values of every head.
        """
        return self.kv_parts(tokens, dtype=dtype, tensor_parallel=tensor_parallel, uncompressed=uncompressed).total

    def kv_parts(
        self,
        tokens: int,
        *,
        dtype: str | None = "bfloat16",
        tensor_parallel: int = 1,
        uncompressed: bool = False,
        layers: slice = slice(None),
    ) -> KvBytes:
        """`kv_bytes` by how it depends on the length; of some of the layers only, as a pipeline stage has them."""
        return kv_parts(
            self.layers[layers],
            tokens,
            dtype=dtype or self.dtype,
            state_dtype=self.state_dtype,
            tensor_parallel=tensor_parallel,
            uncompressed=uncompressed,
        )

    def kv_bytes_per_token(
        self, *, dtype: str | None = "bfloat16", tensor_parallel: int = 1, uncompressed: bool = False
    ) -> int:
        """Bytes that one more token adds on one rank while the sequence is shorter than every window.

        Also what each token costs in an engine that does not free what lies outside a window (ours does not).
        """
        first = self.kv_bytes(1, dtype=dtype, tensor_parallel=tensor_parallel, uncompressed=uncompressed)
        return first - self.kv_bytes(0, dtype=dtype, tensor_parallel=tensor_parallel, uncompressed=uncompressed)

    def _mixed_bytes(self, covered: int, bits: float, rest: str) -> int:
        return math.ceil(covered * bits / 8) + (self.parameters - covered) * element_bytes(rest)


def _dtype(fields: Fields, scheme: Scheme | None, stored: str | None) -> tuple[str, str | None]:
    if fields.dtype is not None:
        return fields.dtype, None
    if stored is not None:
        return stored, None
    if scheme is not None and scheme.name is not None:
        return "bfloat16", "the configuration names no type: weights that are not quantized are taken as bfloat16"
    return "float32", "the configuration names no type: float32, the default of transformers, is taken"


def _state_dtype(fields: Fields) -> str | None:
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        value = fields.written(name)
        if value in (None, "", "auto"):
            continue
        if not isinstance(value, str) or value.removeprefix("torch.") not in DTYPE_BYTES:
            raise ModelError(f"{fields.name}: {name} is {shown(value)}; known are {', '.join(sorted(DTYPE_BYTES))}")
        return value.removeprefix("torch.")
    return None


def _bits(scheme: Scheme | None, count: ParameterCount) -> float | None:
    """Bits of a covered weight: the one number where all are alike, else their mean."""
    if scheme is None or not scheme.parts or count.why is not None:
        return None
    covered = count.covered
    if len(covered) == 1:
        return next(iter(covered))
    return sum(bits * weights for bits, weights in covered.items()) / max(1, sum(covered.values()))


def _default_note(fields: Fields, defaults: list[str]) -> str | None:
    if not defaults:
        return None
    named = type(fields.text_class_config).__name__
    return f"the file leaves out sizes; the defaults of {named} are taken: {', '.join(defaults)}"


def _layer_notes(layers: tuple[LayerSpec, ...]) -> list[str]:
    notes = []
    if any(layer.kind == "mla" for layer in layers):
        whole = kv_parts(layers, 1, dtype="bfloat16", uncompressed=True).growing
        times = whole / kv_parts(layers, 1, dtype="bfloat16").growing
        notes.append(
            "MLA: the latent cache is sized; the bundled engine stores keys and values of every head, uncompressed: "
            f"{times:.3g} x what the latent cache holds, so its capacity numbers do not transfer"
        )
    index = kv_parts(layers, 1, dtype="bfloat16").index
    if index:
        notes.append(
            f"sparse attention: the KV holds {index:,} B a token of index keys, as vLLM lays them out (FP8 and a "
            "float32 scale for 128); other engines may keep them in 16 bits"
        )
    if any(layer.window for layer in layers):
        notes.append("sliding windows: the bundled engine does not free the tokens outside a window")
    return notes

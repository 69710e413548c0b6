"""Widths that tensor parallelism cuts into equal shares, and what a share must be a multiple of."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferdoc.models.counting import EXPERTS, mlp_widths
from inferdoc.models.fields import Fields
from inferdoc.models.layers import LayerSpec
from inferdoc.models.quantization import Scheme

_PADDED = 64
"""vLLM and SGLang round a vocabulary up to this before they cut it."""
_SOME_DENSE = ("first_k_dense_replace", "intermediate_size_mlp", "mlp_only_layers", "moe_layer_freq")
"""Settings of mixtures in which some layers have an MLP instead of experts."""


@dataclass(frozen=True)
class Cut:
    """One width.

    what: of which matrices. width: elements, whole. multiple: of what a rank's share must be a multiple: the block or
    group of weights that share a scale, else 1. expert: whole on a rank where experts are spread instead of cut.
    """

    what: str
    width: int
    multiple: int = 1
    expert: bool = False

    def refuses(self, ranks: int) -> str | None:
        """Why servers do not cut it for so many ranks; ``None`` where they do.

        vLLM and SGLang stop at loading: "The output_size of gate's and up's weight = 192 is not divisible by weight
        quantization block_n = 128" (FP8 blocks), "The input size is not aligned with the quantized weight shape" (GPTQ
        and AWQ groups), "151936 is not divisible by 3".
        """
        share, rest = divmod(self.width, ranks)
        if rest:
            return f"{self.what} of {self.width:,} does not divide by {ranks}"
        if ranks > 1 and share % self.multiple:
            return f"{self.what} of {self.width:,} / {ranks} = {share:,} is no multiple of a block of {self.multiple}"
        return None


def read_cuts(fields: Fields, layers: tuple[LayerSpec, ...], scheme: Scheme | None) -> tuple[Cut, ...]:
    """The widths of the model: vocabulary, attention outputs, and MLPs of each kind."""
    cuts = [Cut("the padded vocabulary", -(-fields.vocab_size // _PADDED) * _PADDED)]
    widths = {layer.head_dim_v for layer in layers if layer.kv_heads}
    for width in sorted(widths):
        heads = fields.heads * width
        cuts.append(Cut("attention output", heads, _multiple(scheme, layers, "self_attn.o_proj")))
    if fields.written("block_configs"):
        return tuple(cuts)  # widths differ by layer, and are made for cuts
    experts = (fields.number(*EXPERTS) or 1) > 1
    # Where every layer has a width of its own: their greatest common divisor cuts as all of them do.
    dense = math.gcd(*mlp_widths(fields))
    routed = fields.number("moe_intermediate_size") or dense
    if experts and routed:
        cuts.append(Cut("expert width", routed, _multiple(scheme, layers, "mlp.experts", expert=True), expert=True))
    if dense and (not experts or any(fields.written(name) for name in _SOME_DENSE)):
        width = fields.number("intermediate_size_mlp") or dense
        cuts.append(Cut("MLP width", width, _multiple(scheme, layers, "mlp.down_proj")))
    shared = (
        fields.number("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size") if experts else None
    )
    copies = fields.number("n_shared_experts") or 0
    if experts and not shared and routed:
        shared = copies * routed
    if shared:
        cuts.append(Cut("shared expert width", shared, _multiple(scheme, layers, "mlp.shared_experts.down_proj")))
    return tuple(cuts)


def _multiple(scheme: Scheme | None, layers: tuple[LayerSpec, ...], module: str, *, expert: bool = False) -> int:
    """What a cut through `module` must respect: in the layer where the scheme's scales cover most."""
    if scheme is None:
        return 1
    found = [
        scheme.part_of(f"model.layers.{position}.{module}", expert=expert, leaf="down_proj")
        for position in range(len(layers))
    ]
    return max((max(part.rows, part.columns) for part in found if part is not None), default=1)

"""How many parameters a model has, by part.

Exact where transformers knows the class: it is built on the meta device, where tensors have a shape and no memory.
Elsewhere a formula for the decoder shape that the file describes, and the count says that it is an estimate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from inferdoc.errors import ModelError
from inferdoc.models.fields import Fields, in_short, shown
from inferdoc.models.layers import LayerSpec
from inferdoc.models.quantization import Scheme
from inferdoc.models.quiet import silence
from inferdoc.models.sizing import StepWidth

if TYPE_CHECKING:
    import torch

_OTHER_SENSES = re.compile(r"(^|\.)(vision\w*|visual|audio\w*|multi_modal_projector|embed_vision|embed_audio)(\.|$)")
ROUTER = re.compile(r"(^|\.)(gate|router|shared_expert_gate)(\.|$)")
_EXPERT = re.compile(r"(^|\.)experts(\.|$)")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_MOST_MULTIPLE = 1_000
_PICKED = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk")


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by part; tied tensors count once.

    total: all that is in memory, every expert included. vision: towers for other inputs than text, part of `total`.
    experts: in routed experts. linear: in matrices that a quantization recipe covers (no embeddings, head, norms,
    routers, vision). covered: in matrices that the checkpoint's own scheme covers, by bits of a weight.
    note: what the count leaves out or rests on. why: what keeps the scheme from being sized.
    """

    total: int
    vision: int
    experts: int
    linear: int
    tied: bool
    exact: bool
    covered: Mapping[float, int] = field(default_factory=dict)
    note: str | None = None
    why: str | None = None


def count_parameters(
    fields: Fields, layers: tuple[LayerSpec, ...], scheme: Scheme | None, *, code: str | None = None
) -> ParameterCount:
    """Counts from the class, else from the formula.

    Args:
        code: directory or hub id whose own code may be run for a class that transformers lacks; ``None`` to refuse.
    """
    with silence():
        model = _meta_model(fields) if code is None else _meta_model_from_code(code)
    if not isinstance(model, str):
        counted = _count_model(model, scheme)
        if fields.model_type == "llama4":
            return replace(counted, note="the language part only: the vision tower is not counted")
        if fields.config.get("vision_config") is not None and not counted.vision:
            return replace(counted, note="the language part only: transformers does not know the vision part")
        return counted
    return _formula(fields, layers, scheme, model)


def _meta_model(fields: Fields) -> torch.nn.Module | str:
    """The model without memory, or why there is none."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )

    whole, text = fields.class_config, fields.text_class_config
    if fields.model_type in ("llama4", "kimi_k25"):
        whole = text  # their files do not describe the vision part in full
    if _has_unknown_class(fields):
        return "transformers does not know this class"
    why = fields.class_refusal or "transformers does not know this class"
    for config in (whole, text):
        if config is None:
            continue
        auto: Any
        has_towers = config is whole and fields.text is not fields.config
        if has_towers and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            auto = AutoModelForImageTextToText
        elif type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            auto = AutoModelForCausalLM
        else:
            continue
        try:
            with torch.device("meta"):
                model = auto.from_config(config, trust_remote_code=False)
                model.tie_weights()
        except Exception as error:
            # a class that cannot be built from this file (values of a later release): the formula counts
            why = f"its class cannot be built from it: {in_short(error)}"
            continue
        return model if isinstance(model, torch.nn.Module) else why
    return why


def _meta_model_from_code(code: str) -> torch.nn.Module | str:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(code, trust_remote_code=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
            model.tie_weights()
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{code}: the code beside the weights cannot build the model: {reason}") from None
    return model if isinstance(model, torch.nn.Module) else "the code beside the weights makes no torch module"


def _has_unknown_class(fields: Fields) -> bool:
    """A file may name a family that transformers has and a class that it has not, such as a speculation head."""
    return "eagle" in fields.architecture.lower() or fields.written("block_configs") is not None


def _count_model(model: torch.nn.Module, scheme: Scheme | None) -> ParameterCount:
    import torch

    head = getattr(model, "get_output_embeddings", lambda: None)()
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    tied = head is not None and embedding is not None and head.weight is embedding.weight
    modules = dict(model.named_modules())
    totals = dict.fromkeys(("total", "vision", "experts", "linear"), 0)
    covered: Counter[float] = Counter()
    for name, parameter in model.named_parameters():
        owner_name, _, leaf = name.rpartition(".")
        owner = modules[owner_name]
        count = parameter.numel()
        expert = _EXPERT.search(name) is not None
        totals["total"] += count
        totals["experts"] += count if expert else 0
        if _OTHER_SENSES.search(name):
            totals["vision"] += count
            continue
        matrix = leaf == "weight" and (isinstance(owner, torch.nn.Linear) or type(owner).__name__ == "Conv1D")
        stacked = expert and parameter.ndim == 3
        if not (matrix or stacked) or owner is head or ROUTER.search(owner_name):
            continue
        totals["linear"] += count
        part = scheme.part_of(owner_name, expert=expert, leaf=leaf) if scheme is not None else None
        if part is not None and part.bits is not None:
            covered[part.bits] += count
    return ParameterCount(
        total=totals["total"],
        vision=totals["vision"],
        experts=totals["experts"],
        linear=totals["linear"],
        tied=tied,
        exact=True,
        covered=covered,
    )


def _formula(fields: Fields, layers: tuple[LayerSpec, ...], scheme: Scheme | None, why: str) -> ParameterCount:
    """Count of a pre-norm decoder with rotary positions, no biases and a gated MLP (the Llama shape)."""
    hidden = fields.hidden_size
    blocks = fields.written("block_configs")
    is_draft_head = "eagle" in fields.architecture.lower()
    fused = 2 if is_draft_head else 1  # an EAGLE-3 layer reads its embedding beside the target's hidden state
    linear = experts = 0
    norms = hidden
    for position, layer in enumerate(layers):
        if layer.kind != "none":
            query = fields.heads * layer.head_dim_k
            linear += hidden * fused * (query + layer.kv_heads * (layer.head_dim_k + layer.head_dim_v))
            linear += fields.heads * layer.head_dim_v * hidden
            norms += hidden * fused
        width, copies = _mlp_width(fields, blocks[position] if isinstance(blocks, list) and blocks else None)
        linear += 3 * hidden * width * copies
        experts += 3 * hidden * width * copies if copies > 1 else 0
        norms += hidden if width else 0
    tied = fields.get("tie_word_embeddings") is True
    if is_draft_head:
        linear += 3 * hidden * hidden
        outside = hidden * (fields.number("draft_vocab_size") or fields.vocab_size)
        note = f"{fields.architecture}: estimated; its embedding is the target model's and is not counted again"
    else:
        outside = fields.vocab_size * hidden * (1 if tied else 2)
        note = f"{fields.architecture}: {why}; the count is an estimate by formula"
    if _width_given(fields) is None and not blocks:
        note += f"; no MLP width is given: 4 × hidden size, {4 * hidden:,}, is taken"
    count = ParameterCount(linear + norms + outside, 0, experts, linear, tied, exact=False, note=note)
    if scheme is None or not scheme.parts:
        return count
    bits = scheme.parts[0].bits
    if bits is None or not scheme.is_uniform:
        return replace(count, why="its layers differ in bits, and without the class's names they cannot be told apart")
    return replace(count, covered={bits: experts if scheme.experts_only else linear})


def _mlp_width(fields: Fields, block: Any) -> tuple[int, int]:
    """Inner width of one MLP and how many copies (experts) the layer holds."""
    if isinstance(block, Mapping):
        feed_forward = block.get("ffn")
        if not isinstance(feed_forward, Mapping) or feed_forward.get("no_op"):
            return 0, 1
        multiple = feed_forward.get("ffn_mult")
        if multiple:
            if not isinstance(multiple, int | float) or not 0 < multiple < _MOST_MULTIPLE:
                raise ModelError(f"{fields.name}: ffn_mult is {shown(multiple)}; a positive number is needed")
            # two thirds of the multiple, rounded up to 256, as the published code of these files does
            exact = int(2 * multiple * fields.hidden_size / 3)
            return -(-exact // 256) * 256, 1
    copies = fields.number("num_experts", "num_local_experts", "n_routed_experts") or 1
    width = (fields.number("moe_intermediate_size") if copies > 1 else None) or _width_given(fields)
    return width or 4 * fields.hidden_size, copies


def mlp_widths(fields: Fields) -> list[int]:
    """The MLP's width, or each layer's where the file has a list of them; empty where it gives none.

    Raises:
        ModelError: something else than positive whole numbers.
    """
    names = ("intermediate_size", "n_inner", "ffn_dim")
    given = fields.get(*names)
    widths = given if isinstance(given, list) else [] if given is None else [given]
    return [width for width in (fields.whole(names[0], each) for each in widths) if width]


def _width_given(fields: Fields) -> int | None:
    widths = mlp_widths(fields)
    return sum(widths) // len(widths) if widths else None


def active_parameters(fields: Fields, count: ParameterCount) -> int:
    """Parameters that one token of text goes through: of the routed experts only those that the router picks."""
    text = count.total - count.vision
    experts, picked = fields.number(*EXPERTS), fields.number(*_PICKED)
    if not count.experts or not experts or not picked:
        return text
    return text - count.experts + count.experts * picked // experts


def step_width(fields: Fields) -> StepWidth:
    """Elements a token that the widest layer holds at once: hidden states, and a gated MLP's two inputs and output.

    A fused mixture holds these of every picked expert, and each one's result before they are added up.
    """
    hidden = fields.hidden_size
    inner = [fields.get(name) for name in ("intermediate_size", "intermediate_size_mlp", "n_inner", "ffn_dim")]
    widths = [width for width in inner if isinstance(width, int)]
    dense = StepWidth(3 * hidden, 3 * max(widths, default=4 * hidden))
    picked, expert = fields.get(*_PICKED), fields.get("moe_intermediate_size", "intermediate_size")
    if not fields.get(*EXPERTS) or not isinstance(picked, int) or not isinstance(expert, int):
        return dense
    mixed = StepWidth((3 + picked) * hidden, 3 * picked * expert)
    return max(dense, mixed, key=lambda width: width.whole + width.split)

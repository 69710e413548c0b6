"""Which models the bundled engine refuses, by the rules that a configuration alone decides.

The engine hooks transformers' attention function. These families never call it, or keep something beside keys and
values, and would give wrong tokens without an error; the engine's own load-time check catches what no rule names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferdoc.errors import ModelError
from inferdoc.models.fields import Fields
from inferdoc.models.layers import LayerSpec, layer_types

if TYPE_CHECKING:
    from inferdoc.models.spec import ModelSpec

_OWN_ATTENTION = {
    "big_bird",
    "bloom",
    "falcon",
    "RefinedWeb",
    "RefinedWebModel",
    "gpt_neo",
    "gpt_neox_japanese",
    "mpt",
    "openai-gpt",
    "reformer",
    "roformer",
    "xglm",
    "xlnet",
}
_RECURRENT = {
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "jamba",
    "lfm2",
    "lfm2_moe",
    "mamba",
    "mamba2",
    "minimax",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
    "zamba",
    "zamba2",
}
_HANDLED_TYPES = {"full_attention", "sliding_attention"}


def refusal(fields: Fields, layers: tuple[LayerSpec, ...]) -> str | None:
    """Why the engine cannot run this model; ``None`` where no rule is against it."""
    if "eagle" in fields.architecture.lower():
        return "it is a speculation head and reads the hidden states of its target model"
    if fields.text_type in _OWN_ATTENTION:
        return "its attention does not go through transformers' attention interface"
    if fields.text_type in _RECURRENT or any(layer.state_elements for layer in layers):
        return "its convolution or recurrent layers carry state from one packed sequence into the next"
    if fields.written("attention_chunk_size") is not None or fields.text_type == "llama4_text":
        return "its chunked attention exists only in the mask, which the engine does not receive"
    attention = fields.text.get("attn_config")
    if fields.written("alibi") or (isinstance(attention, dict) and attention.get("alibi")):
        return "its attention adds a position bias (ALiBi)"
    if fields.written("position_embedding_type") in ("alibi", "relative_key", "relative_key_query"):
        return "its attention adds a position bias"
    if fields.config.get("is_encoder_decoder"):
        return "it is an encoder-decoder model"
    odd = sorted(set(layer_types(fields) or ()) - _HANDLED_TYPES)
    if odd:
        return f"its layers of type {', '.join(odd)} are not ordinary attention"
    if not _has_class(fields):
        return "transformers has no causal language model class for it"
    return None


def check_supported(spec: ModelSpec) -> None:
    """Refuses a model that the engine would run wrongly.

    Raises:
        ModelError: with the architecture, the reason, and what still works.
    """
    if spec.unsupported is not None:
        raise ModelError(
            f"{spec.name}: the engine cannot run {spec.architecture}: {spec.unsupported}. "
            f"Sizing and trace analysis still work"
        )


def _has_class(fields: Fields) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if fields.config.get("auto_map"):
        return True  # its own code can be run when the user allows it
    return fields.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

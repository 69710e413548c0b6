"""What each layer of a model keeps for a sequence: keys and values, a compressed latent, a fixed state, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from inferdoc.errors import ModelError
from inferdoc.models.fields import Fields, shown

LayerKind = Literal["full", "sliding", "mla", "state", "none"]

_KIND_OF_TYPE: dict[str, LayerKind] = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "indexed_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "state",
    "mamba": "state",
    "conv": "state",
    "hybrid": "full",
    "mlp": "none",
    "moe": "none",
}
_KIND_OF_LETTER: dict[str, LayerKind] = {"M": "state", "*": "full", "-": "none", "E": "none"}


@dataclass(frozen=True)
class LayerSpec:
    """One layer. Elements, not bytes; the cache type decides the bytes.

    kind: full (keys and values of every token), sliding (of at most `window` tokens, also chunked attention), mla (one
        latent a token, shared by all heads), state (a fixed size), none (skipped, or shares another layer's cache).
    kv_heads, head_dim_k, head_dim_v: as an engine without latent caching stores them; 0 where there is no attention.
    latent_dim: elements a token of the compressed MLA form (``kv_lora_rank + qk_rope_head_dim``), else 0.
    index_dim: elements a token of the key by which sparse attention picks tokens (its indexer's), else 0.
    conv_elements, recurrent_elements: fixed elements a sequence (convolution window; recurrent matrix), else 0.
    """

    kind: LayerKind
    kv_heads: int = 0
    head_dim_k: int = 0
    head_dim_v: int = 0
    window: int | None = None
    latent_dim: int = 0
    index_dim: int = 0
    conv_elements: int = 0
    recurrent_elements: int = 0

    @property
    def state_elements(self) -> int:
        return self.conv_elements + self.recurrent_elements


_NOTHING = LayerSpec("none")


def read_layers(fields: Fields) -> tuple[LayerSpec, ...]:
    """The layers in order.

    Raises:
        ModelError: a layer type whose cache this version cannot size.
    """
    blocks = fields.written("block_configs")
    if isinstance(blocks, list) and blocks:
        return tuple(_block_layer(fields, block) for block in blocks)
    if fields.written("linear_attn_config"):
        raise ModelError(f"{fields.name}: layers set by linear_attn_config cannot be sized by this version")
    if fields.written("kv_lora_rank"):
        return _with_index_keys(fields, (_latent_layer(fields),) * fields.layer_count)
    layers = [_layer(fields, kind, position) for position, kind in enumerate(_kinds(fields))]
    shared = fields.number("num_kv_shared_layers") or 0
    return _with_index_keys(fields, tuple(layers[: max(0, len(layers) - shared)] + [_NOTHING] * shared))


def layer_types(fields: Fields) -> list[str] | None:
    """Type of each layer as the file or the transformers class names it; ``None`` where all are alike."""
    for name in ("layer_types", "layers_block_type"):
        value = fields.get(name)
        if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
            return list(value)
    return None


def _with_index_keys(fields: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Sparse attention (DeepSeek-V3.2, GLM-5): a layer with an indexer of its own also keeps one index key a token."""
    size = fields.written("index_head_dim")
    if size is None:
        return layers
    size = fields.whole("index_head_dim", size)
    modes, types = fields.get("indexer_types"), layer_types(fields) or []
    modes = modes if isinstance(modes, list) else []

    def picks(position: int) -> bool:
        if position < len(modes) and modes[position] == "shared":
            return False  # goes by the choice of an earlier layer
        return "indexed_attention" not in types or types[position : position + 1] == ["indexed_attention"]

    return tuple(
        replace(layer, index_dim=size) if layer.kv_heads and picks(position) else layer
        for position, layer in enumerate(layers)
    )


def _kinds(fields: Fields) -> list[LayerKind]:
    count = fields.layer_count
    letters = fields.written("hybrid_override_pattern")
    if isinstance(letters, str) and letters:
        return [_letter_kind(fields, letter) for letter in letters]
    switches = fields.written("hybrid_layer_pattern")
    if isinstance(switches, list) and switches:
        return ["sliding" if slides else "full" for slides in switches]
    period = fields.written("attn_layer_period")
    if period:
        period = fields.whole("attn_layer_period", period)
        offset = fields.number("attn_layer_offset") or 0
        return ["full" if position % period == offset else "state" for position in range(count)]
    types = layer_types(fields)
    if types is not None:
        return [_type_kind(fields, name) for name in types]
    interval = fields.written("full_attention_interval")
    if interval:
        interval = fields.whole("full_attention_interval", interval)
        return ["full" if (position + 1) % interval == 0 else "state" for position in range(count)]
    if fields.text_type in ("mamba", "mamba2", "falcon_mamba"):
        return ["state"] * count
    if _window(fields) is not None:
        first = fields.number("max_window_layers") if fields.written("use_sliding_window") else None
        return ["full" if first is not None and position < first else "sliding" for position in range(count)]
    return ["full"] * count


def _letter_kind(fields: Fields, letter: str) -> LayerKind:
    if letter not in _KIND_OF_LETTER:
        raise ModelError(
            f"{fields.name}: hybrid_override_pattern holds {shown(letter)}, which this version cannot size"
        )
    return _KIND_OF_LETTER[letter]


def _type_kind(fields: Fields, name: str) -> LayerKind:
    if name not in _KIND_OF_TYPE:
        raise ModelError(f"{fields.name}: layers of type {shown(name)} cannot be sized by this version")
    return _KIND_OF_TYPE[name]


def _window(fields: Fields) -> int | None:
    """Tokens that a sliding or chunked layer keeps; ``None`` where there is no limit below the context."""
    if fields.get("use_sliding_window") is False:
        return None
    window = fields.number("sliding_window", "attention_chunk_size")
    context = fields.context_length
    if not window or (context is not None and window >= context):
        return None
    return window


def _layer(fields: Fields, kind: LayerKind, position: int) -> LayerSpec:
    if kind == "none":
        return _NOTHING
    if kind == "state":
        return _state_layer(fields)
    window = _window(fields) if kind == "sliding" else None
    if fields.written("hybrid_layer_pattern") is not None and kind == "sliding":
        heads = fields.number("swa_num_key_value_heads") or fields.kv_heads
        key = fields.number("swa_head_dim") or fields.head_dim
        value = fields.number("swa_v_head_dim") or key
    elif kind == "full" and fields.written("global_head_dim"):
        heads = fields.number("num_global_key_value_heads") or fields.kv_heads
        key = value = fields.required("global_head_dim")
    else:
        heads, key = fields.kv_heads, fields.head_dim
        value = fields.number("v_head_dim") or key
    layer = LayerSpec("sliding" if window else "full", heads, key, value, window)
    types = layer_types(fields)
    if types is not None and position < len(types) and types[position] == "hybrid":
        state = _state_layer(fields)
        return replace(layer, conv_elements=state.conv_elements, recurrent_elements=state.recurrent_elements)
    return layer


def _latent_layer(fields: Fields) -> LayerSpec:
    rotary = fields.required("qk_rope_head_dim")
    return LayerSpec(
        "mla",
        kv_heads=fields.heads,
        head_dim_k=fields.required("qk_nope_head_dim") + rotary,
        head_dim_v=fields.required("v_head_dim"),
        latent_dim=fields.required("kv_lora_rank") + rotary,
    )


def _block_layer(fields: Fields, block: Any) -> LayerSpec:
    attention = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(attention, Mapping):
        raise ModelError(f"{fields.name}: an entry of block_configs has no attention part")
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return _NOTHING
    group = attention.get("n_heads_in_group")
    heads = fields.heads // fields.whole("n_heads_in_group", group) if group else fields.kv_heads
    window = fields.whole("window_length", attention.get("window_length") or 0)
    return LayerSpec("sliding" if window else "full", heads, fields.head_dim, fields.head_dim, window or None)


def _state_layer(fields: Fields) -> LayerSpec:
    """Fixed state of a layer without keys and values, by the shapes that the transformers caches allocate."""
    value_heads = fields.whole("linear_num_value_heads", fields.written("linear_num_value_heads") or 0)
    if value_heads:
        key_dim = fields.required("linear_key_head_dim")
        value_dim = fields.required("linear_value_head_dim")
        channels = 2 * fields.required("linear_num_key_heads") * key_dim + value_heads * value_dim
        kernel = fields.required("linear_conv_kernel_dim")
        return LayerSpec("state", conv_elements=channels * kernel, recurrent_elements=value_heads * key_dim * value_dim)
    kernel_size = fields.number("mamba_d_conv", "conv_kernel", "d_conv")
    state = fields.number("mamba_d_state", "ssm_state_size", "state_size")
    if kernel_size and state:
        heads = fields.number("mamba_num_heads", "mamba_n_heads") or (
            fields.number("num_heads") if fields.text_type == "mamba2" else None
        )
        if heads:
            inner = heads * fields.required("mamba_head_dim", "mamba_d_head", "head_dim")
            groups = fields.number("n_groups", "mamba_n_groups") or 1
            channels = inner + 2 * groups * state
        else:
            expand = fields.number("mamba_expand", "expand") or 2
            inner = channels = (
                fields.number("intermediate_size") if "mamba" in fields.text_type else None
            ) or expand * fields.hidden_size
        return LayerSpec("state", conv_elements=channels * kernel_size, recurrent_elements=inner * state)
    if fields.text_type == "minimax":
        return LayerSpec("state", recurrent_elements=fields.heads * fields.head_dim**2)
    window = fields.number("conv_L_cache")
    if window:
        return LayerSpec("state", conv_elements=fields.hidden_size * window)
    raise ModelError(f"{fields.name}: the state that {fields.text_type} layers keep cannot be sized by this version")

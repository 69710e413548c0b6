"""Reads a config.json by meaning: one name for a size, whatever the model family calls it.

Order of authority: the value in the file (in `text_config` first, where sizes are nested), then the default of the
transformers class of this family. Absence is not zero and not false: a key that a file leaves out has a class default.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from inferdoc.errors import ModelError
from inferdoc.models.quiet import silence

# Families that publish their own code under another name, with the same shape as a class that transformers has.
_SAME_SHAPE = {
    "kimi_k2": "deepseek_v3",
    "RefinedWebModel": "falcon",
    "RefinedWeb": "falcon",
    "phi-msft": "phi",
    "internlm2": "llama",
    "chatglm": "qwen2",
}
# Key names of those files that the class of the same shape does not read.
_RENAMED = {
    "phi-msft": {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_head_kv": "num_key_value_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
    },
    "chatglm": {
        "num_layers": "num_hidden_layers",
        "ffn_hidden_size": "intermediate_size",
        "multi_query_group_num": "num_key_value_heads",
        "padded_vocab_size": "vocab_size",
        "seq_length": "max_position_embeddings",
    },
    "RefinedWebModel": {"n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
    "RefinedWeb": {"n_head": "num_attention_heads", "n_layer": "num_hidden_layers", "n_head_kv": "num_kv_heads"},
}
# Defaults that the published code of those families sets where the class of the same shape has another one.
_OWN_DEFAULTS = {
    "RefinedWeb": {"new_decoder_architecture": True},
    "chatglm": {"tie_word_embeddings": False, "use_sliding_window": False},
}
_NOT_FOR_CLASSES = ("quantization_config", "auto_map", "architectures", "model_type", "transformers_version")

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
# Counts of things that a class builds one by one (a layer, an expert), in any part of the file.
_COUNT = re.compile(r"^(?:n|num)_(?:\w+_)?(?:layers?|experts|blocks)$|(?:^|_)depth$")
_MOST_COUNT = 10_000
_MOST = 10**12
_DEEPEST = 50
# Fields of a class that decide how many parameters there are or what a sequence keeps.
_SIZE = re.compile(
    r"(?:^|_)(?:vocab_size|intermediate_size|ffn_dim|n_inner|heads|n_head|head_dim|rank|experts|experts_per_tok|"
    r"d_state|state_size|d_conv|conv_kernel|expand|nope_head_dim|rope_head_dim|kernel_dim)$"
)
# Other names of a size, where a class may read none of them.
_ALSO = {"head_dim": ("attention_head_dim", "kv_channels")}
_OF_EXPERTS = re.compile(r"expert|moe")
_DTYPE_ALIASES = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def shown(value: Any) -> str:
    """`value` as a message can show it: a file may hold numbers of a thousand digits and lists in lists."""
    return _SHORT.repr(value)


def in_short(error: Exception) -> str:
    """What `error` says, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


@dataclass(frozen=True)
class Fields:
    """A config.json, read by meaning. `config` is the file as parsed; `name` is what error messages call the model."""

    config: Mapping[str, Any]
    name: str

    def __post_init__(self) -> None:
        self._check_counts(self.config, depth=0)
        missing = [names[0] for names in (_LAYERS, _HIDDEN) if self._written(names) is None]
        if missing:
            raise ModelError(
                f"{self.name}: the configuration does not say {' and '.join(missing)}; sizes cannot be guessed from a "
                f"name, so give the config.json that stands beside the weights"
            )
        _ = self.layer_count, self.hidden_size  # whole numbers, before a class is asked for what the file lacks

    @cached_property
    def text(self) -> Mapping[str, Any]:
        """The part of the file that describes the language model."""
        for key in ("text_config", "llm_config", "language_config"):
            nested = self.config.get(key)
            if isinstance(nested, Mapping):
                return nested
        return self.config

    @property
    def model_type(self) -> str:
        """Family as the file says it."""
        return str(self.config.get("model_type") or self.text.get("model_type") or "unknown")

    @property
    def text_type(self) -> str:
        return str(self.text.get("model_type") or self.model_type)

    @property
    def architecture(self) -> str:
        """First entry of `architectures`; where the file has none, the class that transformers gives this family."""
        written = self.config.get("architectures") or self.text.get("architectures")
        if isinstance(written, list) and written:
            return str(written[0])
        if self.class_config is not None:
            from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

            named = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(self.class_config.model_type)
            if named:
                return str(named)
        return self.model_type

    @cached_property
    def class_config(self) -> Any | None:
        """The transformers configuration object of the whole model; ``None`` where the family is not known."""
        return _class_config(self.config)[0]

    @cached_property
    def text_class_config(self) -> Any | None:
        """The transformers configuration object of the language model; ``None`` where the family is not known."""
        if self.text is not self.config:
            found, _ = _class_config(self.text)
            if found is not None:
                return found
        return None if self.class_config is None else self.class_config.get_text_config()

    @property
    def class_refusal(self) -> str | None:
        """What the class of this family did not take from the file; ``None`` where it is not known, or took it all."""
        parts = [self.config] if self.text is self.config else [self.text, self.config]
        return next((refusal for _, refusal in map(_class_config, parts) if refusal), None)

    def class_defaults(self, *, latent: bool, experts: bool) -> list[str]:
        """Sizes that the file leaves out, by the class's names, with what the class takes: its own number, or for KV
        heads the number of heads.

        latent, experts: whether the model has a compressed cache and routed experts; else their sizes do not matter.
        """
        filled = self.text_class_config
        if filled is None:
            return []
        given = self._names_given(type(filled))
        found = []
        for name in getattr(type(filled), "__dataclass_fields__", ()):
            usual, value = getattr(type(filled), name, None), _attribute(filled, name)
            if name in given or not _SIZE.search(name) or not isinstance(value, int) or isinstance(value, bool):
                continue
            if (name == "head_dim" and latent) or (_OF_EXPERTS.search(name) and not experts):
                continue
            if name == "num_key_value_heads" and usual is None:
                found.append(f"{name} {value:,} (one for each head)")
            elif value == usual and self.written(*_ALSO.get(name, (name,))) != value:
                found.append(f"{name} {value:,}")
        return found

    def written(self, *names: str) -> Any:
        """The first of `names` that the file itself gives, else ``None``. ``null`` counts as not given."""
        return self._written(names)

    def get(self, *names: str) -> Any:
        """The first of `names` that the file gives, else the class default, else ``None``."""
        value = self._written(names)
        if value is not None or self.text_class_config is None:
            return value
        renamed = _RENAMED.get(self.text_type, {})
        for name in names:
            value = _attribute(self.text_class_config, renamed.get(name, name))
            if value is not None:
                return value
        return None

    def number(self, *names: str) -> int | None:
        """`get` as a whole number.

        Raises:
            ModelError: the value is not a positive whole number.
        """
        value = self.get(*names)
        return None if value is None else self.whole(names[0], value)

    def whole(self, name: str, value: Any) -> int:
        """`value`, which the file gives under `name`, as a whole number.

        Raises:
            ModelError: it is not one, or is negative.
        """
        if not _is_whole(value) or value < 0:
            raise ModelError(f"{self.name}: {name} is {shown(value)}; a whole number is needed")
        if value > _MOST:
            raise ModelError(f"{self.name}: {name} is {shown(value)}; no model has so many")
        return int(value)

    def required(self, *names: str) -> int:
        """`number`, refused where it is missing or zero."""
        value = self.number(*names)
        if not value:
            raise ModelError(f"{self.name}: the configuration does not say {names[0]}, which sizing needs")
        return value

    @property
    def layer_count(self) -> int:
        return self.required(*_LAYERS)

    @property
    def hidden_size(self) -> int:
        return self.required(*_HIDDEN)

    @property
    def heads(self) -> int:
        return self.required(*_HEADS)

    @property
    def head_dim(self) -> int:
        """Size of one head: as given, else the class default, else hidden size ÷ heads."""
        heads = self.heads
        return self.number("head_dim", "attention_head_dim", "kv_channels") or self.hidden_size // heads

    @property
    def kv_heads(self) -> int:
        """Key/value heads of an ordinary attention layer (grouped-query, multi-query or one for each head)."""
        if self.text_type in ("falcon", "RefinedWebModel", "RefinedWeb"):
            if self.get("new_decoder_architecture"):
                return self.number("num_kv_heads", "n_head_kv") or self.heads
            return 1 if self.get("multi_query") else self.heads
        if self.text_type == "gpt_bigcode":
            return 1 if self.get("multi_query") else self.heads
        attention = self.text.get("attn_config")
        if isinstance(attention, Mapping) and attention.get("kv_n_heads"):
            return self.whole("kv_n_heads", attention["kv_n_heads"])
        given = self.number("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
        if given:
            return given
        return 1 if self.written("multi_query") is True else self.heads

    @property
    def context_length(self) -> int | None:
        """Longest sequence the model was made for; ``None`` where neither file nor class says."""
        return self.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length") or None

    @property
    def vocab_size(self) -> int:
        return self.required("vocab_size", "padded_vocab_size")

    @property
    def dtype(self) -> str | None:
        """Type that the file names, without the ``torch.`` prefix; ``None`` where it names none."""
        for part in (self.text, self.config):
            value = part.get("dtype") or part.get("torch_dtype")
            if isinstance(value, str) and value != "auto":
                named = value.removeprefix("torch.")
                return _DTYPE_ALIASES.get(named, named)
        return None

    def _written(self, names: tuple[str, ...]) -> Any:
        for part in (self.text, self.config):
            for name in names:
                value = part.get(name)
                if value is not None:
                    return value
        return None

    def _names_given(self, filled: type) -> set[str]:
        """Names of the class's fields that the file gives, under whichever of their names."""
        old = _RENAMED.get(self.text_type, {})
        written = {old.get(key, key) for part in (self.config, self.text) for key in part}
        written |= set(_OWN_DEFAULTS.get(self.text_type, {}))
        renamed = getattr(filled, "attribute_map", {})
        return written | {own for standard, own in renamed.items() if {standard, own} & written}

    def _check_counts(self, part: Mapping[str, Any], *, depth: int) -> None:
        """Refuses what would keep a class busy for hours, wherever in the file it stands."""
        if depth > _DEEPEST:
            raise ModelError(f"{self.name}: the configuration is nested too deeply")
        for key, value in part.items():
            if isinstance(value, Mapping):
                self._check_counts(value, depth=depth + 1)
            elif _COUNT.search(str(key)) and _is_whole(value) and value > _MOST_COUNT:
                raise ModelError(f"{self.name}: {key} is {shown(value)}; no model has so many")


def class_arguments(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The transformers `model_type` of the same shape, and the file's values under the names that class reads."""
    model_type = str(config.get("model_type") or "")
    renamed = _RENAMED.get(model_type, {})
    arguments: dict[str, Any] = dict(_OWN_DEFAULTS.get(model_type, {}))
    for key, value in config.items():
        if key in _NOT_FOR_CLASSES or (key in renamed and value is None):
            continue
        arguments[renamed.get(key, key)] = value
    if model_type == "phi-msft":
        width = arguments.get("hidden_size")
        arguments.setdefault(
            "intermediate_size", 4 * width if isinstance(width, int) else None
        )  # a null n_inner means this
    return _SAME_SHAPE.get(model_type, model_type), arguments


def _class_config(config: Mapping[str, Any]) -> tuple[Any | None, str | None]:
    """The configuration object, or why the class of this family did not make one (no reason: there is no class)."""
    from transformers import CONFIG_MAPPING

    model_type, arguments = class_arguments(config)
    if model_type not in CONFIG_MAPPING:
        return None, None
    try:
        with silence():
            return CONFIG_MAPPING[model_type].from_dict(arguments), None
    except Exception as error:
        # A class may refuse a file of its own family (renamed keys, values of a later release). Sizing then goes on
        # from the file alone, and the count says that it is an estimate and what was refused.
        refused = next(
            (key for key in arguments if _is_taken_without(CONFIG_MAPPING[model_type], arguments, key)), None
        )
        what = "it" if refused is None else f"{refused} {shown(arguments[refused])}"
        return None, f"{CONFIG_MAPPING[model_type].__name__} refuses {what}: {in_short(error)}"


def _is_taken_without(of_class: Any, arguments: Mapping[str, Any], key: str) -> bool:
    try:
        with silence():
            of_class.from_dict({name: value for name, value in arguments.items() if name != key})
    except Exception:
        return False
    return True


def _attribute(config: Any, name: str) -> Any:
    """A value of a configuration object; ``None`` where it has none, or has one for each layer."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None  # transformers refuses to name one value where layers differ; the file's own names say them


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

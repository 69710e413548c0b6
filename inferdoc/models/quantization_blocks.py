"""Reads `quantization_config` and ``hf_quant_config.json``: what each method's block says, checked value by value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from inferdoc.errors import ModelError
from inferdoc.models.fields import shown
from inferdoc.models.quantization import RECIPE_BITS, ROW, Part, Scheme

# Block formats fix their scales: MXFP4 one byte for 32 values (OCP Microscaling 1.0), NVFP4 one byte for 16. The one
# 32-bit scale that NVFP4 has for a whole matrix is below a millionth of it.
_MXFP4 = Part(4 + 8 / 32, columns=32)
_MXFP8 = Part(8 + 8 / 32, columns=32)
_NVFP4 = Part(4 + 8 / 16, columns=16)
_EIGHT = Part(RECIPE_BITS["fp8"])
# NF4 with double quantization: an 8-bit scale for 64 weights and a 32-bit one for 256 of those (arXiv 2305.14314, 3).
_NF4_DOUBLE = Part(4 + 8 / 64 + 32 / (64 * 256))
_NF4 = Part(4 + 32 / 64)
# NVIDIA ModelOpt's names (modelopt.torch.export); AWQ there has groups of 128 and no zero points.
_ALGORITHMS = {
    "NVFP4": _NVFP4,
    "NVFP4_AWQ": _NVFP4,
    "MXFP4": _MXFP4,
    "MXFP8": _MXFP8,
    "FP8": _EIGHT,
    "FP8_PER_CHANNEL_PER_TOKEN": _EIGHT,
    "FP8_PB_WO": Part(8 + 32 / 128**2, rows=128, columns=128),
    "INT8": _EIGHT,
    "W8A16": _EIGHT,
    "W8A8_SQ_PER_CHANNEL": _EIGHT,
    "W4A16_AWQ": Part(RECIPE_BITS["int4"], columns=128),
    "W4A8_AWQ": Part(RECIPE_BITS["int4"], columns=128),
}
_EXCLUDED = ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules")
# torchao's classes and the names that they had before: bits of a weight, default group, bits of a group's scales.
# Int4 has a 16-bit scale and a 16-bit zero point for a group. Those that torchao keeps unpacked, a byte for each weight
# of fewer bits, are left out: their size depends on its version.
_TORCHAO: dict[str, tuple[int, int | None, int]] = {
    "Int4WeightOnlyConfig": (4, 128, 32),
    "int4_weight_only": (4, 128, 32),
    "Float8DynamicActivationInt4WeightConfig": (4, 128, 32),
    **dict.fromkeys(
        (
            "Int8WeightOnlyConfig",
            "int8_weight_only",
            "Int8DynamicActivationInt8WeightConfig",
            "int8_dynamic_activation_int8_weight",
            "Int8StaticActivationInt8WeightConfig",
            "Float8WeightOnlyConfig",
            "float8_weight_only",
            "Float8DynamicActivationFloat8WeightConfig",
            "float8_dynamic_activation_float8_weight",
            "Float8StaticActivationFloat8WeightConfig",
        ),
        (8, None, 16),
    ),
}


def read_scheme(config: Mapping[str, Any], companion: Mapping[str, Any] | None, name: str) -> Scheme | None:
    """The scheme in `quantization_config` (or in the text part), and in the ``hf_quant_config.json`` beside it.

    The configuration goes before the companion; what it does not say (excluded modules, type of the cache), or a method
    that it names without saying enough to size it, comes from the companion.

    Raises:
        ModelError: a value that no such file can mean, with its name.
    """
    text = config.get("text_config")
    beside = _companion_scheme(companion, name)
    for part in (config, text if isinstance(text, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            block = part.get(key)
            if block is not None and not isinstance(block, Mapping):
                raise ModelError(f"{name}: {key} is {shown(block)}; an object is needed")
            if block:
                return _completed(_Block(block, key, name).scheme(), beside)
    return beside


def _companion_scheme(companion: Mapping[str, Any] | None, name: str) -> Scheme | None:
    inner = companion.get("quantization") if companion else None
    if inner is None:
        return None
    if not isinstance(inner, Mapping):
        raise ModelError(f"{name}: quantization in hf_quant_config.json is {shown(inner)}; an object is needed")
    return _Block(inner, "quantization", name).modelopt()


def _completed(scheme: Scheme, beside: Scheme | None) -> Scheme:
    if beside is None:
        return scheme
    if not scheme.parts and beside.parts:
        return beside
    return replace(scheme, excluded=scheme.excluded or beside.excluded, kv_dtype=scheme.kv_dtype or beside.kv_dtype)


@dataclass(frozen=True)
class _Block:
    """One block of a file. key: where it stands. model: what messages call the model."""

    values: Mapping[str, Any]
    key: str
    model: str

    def scheme(self) -> Scheme:
        method = self._method()
        read = {
            "mxfp4": self._mxfp4,
            "fp8": self._fp8,
            "fbgemm_fp8": self._fp8,
            "gptq": self._grouped,
            "awq": self._grouped,
            "bitsandbytes": self._bitsandbytes,
            "compressed-tensors": self._compressed_tensors,
            "torchao": self._torchao,
        }.get(method)
        if read is not None:
            return read(method)
        if method.startswith("modelopt"):
            by_name = self.values.get("quant_algo") is not None or not self.values.get("config_groups")
            return self.modelopt() if by_name else self._compressed_tensors(method)
        return Scheme(method, excluded=self._excluded())

    def modelopt(self) -> Scheme:
        """The names of NVIDIA ModelOpt, in its own file or as the method of a `quantization_config`."""
        algorithm = self._text("quant_algo")
        cache = self._text("kv_cache_quant_algo")
        kv = "fp8" if (cache or "").upper() == "FP8" or self._narrow_cache() else None
        if algorithm is None and "quant_algo" in self.values and kv is not None:
            return Scheme(None, kv_dtype=kv)
        plain = Scheme((algorithm or "modelopt").lower(), excluded=self._excluded(), kv_dtype=kv)
        if algorithm == "MIXED_PRECISION":
            return self._per_layer(plain)
        part = _ALGORITHMS.get(algorithm or "")
        if part is None:
            return replace(plain, why=f"quant_algo {algorithm} is not known" if algorithm else "it has no quant_algo")
        return replace(plain, parts=(part,))

    def _per_layer(self, plain: Scheme) -> Scheme:
        layers = self._object("quantized_layers")
        named: dict[str, list[str]] = {}
        for module, settings in layers.items():
            algorithm = settings.get("quant_algo") if isinstance(settings, Mapping) else None
            if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
                return replace(plain, why=f"quant_algo {shown(algorithm)} of {module} is not known")
            named.setdefault(algorithm, []).append(module)
        parts = tuple(replace(_ALGORITHMS[algorithm], targets=tuple(names)) for algorithm, names in named.items())
        return replace(plain, parts=parts, why=None if parts else "quantized_layers names none")

    def _mxfp4(self, method: str) -> Scheme:
        # servers pad the experts to whole blocks, so any cut between ranks is one they take
        return Scheme(method, (replace(_MXFP4, columns=1),), self._excluded(), experts_only=True)

    def _fp8(self, method: str) -> Scheme:
        if self.values.get("weight_block_size") is None:
            return Scheme(method, (_EIGHT,), self._excluded())
        rows, columns = self._pair("weight_block_size", self.values["weight_block_size"])
        part = Part(8 + 32 / (rows * columns), rows=rows, columns=columns)
        return Scheme(f"fp8 (blocks of {rows} x {columns})", (part,), self._excluded())

    def _grouped(self, method: str) -> Scheme:
        """GPTQ and AWQ: a 16-bit scale and a zero point of as many bits as a weight for each group of a row."""
        bits, group = self._value("bits", "w_bit"), self._value("group_size", "q_group_size")
        if bits is None:
            return Scheme(method, excluded=self._excluded(), why="it does not say bits")
        bits = self._bits("bits", bits)
        part = _group_part(bits, self._group("group_size", group), 16 + bits)
        excluded, overrides = list(self._excluded()), []
        for pattern, settings in self._object("dynamic").items():
            # GPTQModel: "-:" leaves the modules out, "+:" or none gives them settings of their own
            name = f"re:{re.sub('^[+-]:', '', pattern)}"
            self._compiled("dynamic", name)
            if pattern.startswith("-:") or not isinstance(settings, Mapping):
                excluded.append(name)
                continue
            own = self._bits(f"dynamic {pattern} bits", settings.get("bits", bits))
            size = self._group(f"dynamic {pattern} group_size", settings.get("group_size", group))
            overrides.append(replace(_group_part(own, size, 16 + own), targets=(name,)))
        return Scheme(f"{method} ({bits} bits)", (*overrides, part), tuple(excluded))

    def _bitsandbytes(self, method: str) -> Scheme:
        if not self.values.get("load_in_4bit", self.values.get("_load_in_4bit")):
            return Scheme(f"{method} int8", (_EIGHT,), self._excluded())
        part = _NF4_DOUBLE if self.values.get("bnb_4bit_use_double_quant") else _NF4
        return Scheme(f"{method} {self._text('bnb_4bit_quant_type') or 'fp4'}", (part,), self._excluded())

    def _compressed_tensors(self, method: str) -> Scheme:
        plain = Scheme(method, excluded=self._excluded(), kv_dtype="fp8" if self._narrow_cache() else None)
        groups = {
            label: self._inner(f"config_groups {label}", group)
            for label, group in self._object("config_groups").items()
            if group is not None
        }
        parts, widths = [], []
        for label, group in groups.items():
            if group.get("weights") is None:
                continue  # a group of activations alone
            weights = self._inner(f"config_groups {label} weights", group["weights"])
            bits = self._bits(f"config_groups {label} num_bits", weights.get("num_bits"))
            if weights.get("strategy") == "tensor_group" and bits != 4:
                return replace(plain, why=f"config_groups {label} has {bits}-bit weights in tensor_group")
            targets = self._names(f"config_groups {label} targets", group.get("targets")) or ("Linear",)
            parts.append(replace(self._group_of(label, bits, weights), targets=targets))
            widths.append(bits)
        if not parts:
            return replace(plain, why="no entry of config_groups has weights")
        parts, why = self._sparse(parts)
        told = " and ".join(str(bits) for bits in dict.fromkeys(widths))
        return replace(plain, name=f"{method} ({told} bits)", parts=() if why else tuple(parts), why=why)

    def _group_of(self, label: str, bits: int, weights: Mapping[str, Any]) -> Part:
        """A group's scale is 16-bit; of 4-bit floats one byte: e4m3 (NVFP4, groups of 16), e8m0 (MXFP4, of 32)."""
        if weights.get("strategy") == "block" and weights.get("block_structure") is not None:
            rows, columns = self._pair(f"config_groups {label} block_structure", weights["block_structure"])
            return Part(bits + 16 / (rows * columns), rows=rows, columns=columns)
        group = self._group(f"config_groups {label} group_size", weights.get("group_size"))
        if weights.get("type") == "float" and group is not None and (bits == 4 or group == 32):
            return _group_part(bits, group, 8)
        return _group_part(bits, group, 16 + (bits if weights.get("symmetric") is False else 0))

    def _sparse(self, parts: list[Part]) -> tuple[list[Part], str | None]:
        """2:4 keeps half of the weights and, for every four, two indices of 2 bits."""
        sparsity = self._object("sparsity_config")
        kind = sparsity.get("format", "dense")
        if kind == "dense":
            return parts, None
        if kind != "sparse-24-bitmask":
            return parts, f"sparsity_config format {shown(kind)} is not known"
        return [replace(part, bits=part.bits / 2 + 1) for part in parts if part.bits is not None], None

    def _torchao(self, method: str) -> Scheme:
        plain = Scheme(method, excluded=self._excluded())
        kind: Any = self.values.get("quant_type")
        if isinstance(kind, Mapping):
            if list(kind) != ["default"]:
                return replace(plain, why=f"quant_type has {shown(list(kind))} where default is known")
            kind = kind["default"]
        else:
            kind = {"_type": kind, "_data": self.values.get("quant_type_kwargs")}
        settings = kind.get("_data") if isinstance(kind, Mapping) else None
        modules = None
        if isinstance(settings, Mapping):
            modules = settings.get("fqn_to_config", settings.get("module_fqn_to_config"))
        entries = modules if isinstance(modules, Mapping) else {"_default": kind}
        parts = []
        for name, entry in entries.items():
            part, why = self._torchao_part(name, entry)
            if part is None:
                return replace(plain, why=why)
            parts.append(part)
        named = {part.bits for part in parts if part.bits is not None}
        told = f" ({' and '.join(f'{math.floor(bits)}' for bits in sorted(named))} bits)" if named else ""
        return replace(plain, name=f"{method}{told}", parts=tuple(parts))

    def _torchao_part(self, name: str, entry: Any) -> tuple[Part | None, str | None]:
        targets = ("Linear",) if name == "_default" else (name,)
        self._compiled("quant_type", name)
        if entry is None:
            return Part(None, targets=targets), None
        kind = entry.get("_type") if isinstance(entry, Mapping) else entry
        if not isinstance(kind, str) or kind not in _TORCHAO:
            return None, f"quant_type {shown(kind)} is not known"
        bits, usual, scales = _TORCHAO[kind]
        settings = entry.get("_data") if isinstance(entry, Mapping) else None
        given = settings.get("group_size") if isinstance(settings, Mapping) else None
        group = self._group("quant_type group_size", usual if given is None else given)
        return replace(_group_part(bits, group, scales), targets=targets), None

    def _method(self) -> str:
        method = self._text("quant_method")
        if method is not None:
            return method
        if any(key.lstrip("_") in ("load_in_4bit", "load_in_8bit") for key in self.values):
            return "bitsandbytes"  # files from before the key
        return "modelopt" if "quant_algo" in self.values else "unknown"

    def _narrow_cache(self) -> bool:
        cache = self.values.get("kv_cache_scheme")
        return isinstance(cache, Mapping) and cache.get("num_bits") == 8

    def _excluded(self) -> tuple[str, ...]:
        key = next((key for key in _EXCLUDED if self.values.get(key)), None)
        return () if key is None else self._names(key, self.values[key])

    def _names(self, label: str, value: Any) -> tuple[str, ...]:
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            self._refuse(label, value, "a list of module names is needed")
        for item in value:
            self._compiled(label, item)
        return tuple(value)

    def _compiled(self, label: str, name: str) -> None:
        if not name.startswith("re:"):
            return
        try:
            re.compile(name[3:])
        except (re.error, RecursionError, OverflowError) as error:
            self._refuse(label, name, f"not a regular expression: {error}")

    def _value(self, *keys: str) -> Any:
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def _text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self._refuse(key, value, "a name is needed")
        return value or None

    def _object(self, key: str) -> Mapping[str, Any]:
        return self._inner(key, self.values.get(key) or {})

    def _inner(self, label: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            self._refuse(label, value, "an object is needed")
        return dict(value)

    def _bits(self, label: str, value: Any) -> int:
        if not _is_whole(value) or not 1 <= value <= 16:
            self._refuse(label, value, "a whole number from 1 to 16 is needed")
        return int(value)

    def _group(self, label: str, value: Any) -> int | None:
        """Weights that share a scale; ``None`` for a whole row, which files write as null or -1."""
        if value is None or (_is_whole(value) and value == -1):
            return None
        if not _is_whole(value) or not 0 < value <= 2**31:
            self._refuse(label, value, "a positive whole number is needed, or -1 for a row")
        return int(value)

    def _pair(self, label: str, value: Any) -> tuple[int, int]:
        if (
            not isinstance(value, list | tuple)
            or len(value) != 2
            or not all(_is_whole(size) and 0 < size <= 2**31 for size in value)
        ):
            self._refuse(label, value, "two positive whole numbers are needed")
        rows, columns = value
        return rows, columns

    def _refuse(self, label: str, value: Any, mend: str) -> NoReturn:
        raise ModelError(f"{self.model}: {self.key}: {label} is {shown(value)}; {mend}")


def _group_part(bits: int, group: int | None, scales: int) -> Part:
    return Part(bits + scales / (group or ROW), columns=group or 1)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

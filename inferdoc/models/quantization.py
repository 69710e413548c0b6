"""Which weights a checkpoint keeps in fewer bits, and how many bits each of them takes, scales included."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_SIXTEEN = 16.0
# Bits a weight of the recipes that sizing can ask about. int8 and fp8: one 16-bit scale for an output row of about
# 4,096 weights. int4: groups of 128 with a 16-bit scale and a 4-bit zero point, as GPTQ and AWQ store them.
RECIPE_BITS = {"int8": 8 + 16 / 4096, "fp8": 8 + 16 / 4096, "int4": 4 + 20 / 128}
# Block formats fix their scales: MXFP4 one byte for 32 values (OCP Microscaling 1.0), NVFP4 one byte for 16.
_MXFP4_BITS = 4 + 8 / 32
_NVFP4_BITS = 4 + 8 / 16
# NF4 with double quantization: an 8-bit scale for 64 weights and a 32-bit one for 256 of those (arXiv 2305.14314, 3).
_NF4_DOUBLE_BITS = 4 + 8 / 64 + 32 / (64 * 256)
_NF4_BITS = 4 + 32 / 64


@dataclass(frozen=True)
class Scheme:
    """One checkpoint's quantization.

    name: as the file says it, for example ``fp8`` or ``gptq (4 bits)``.
    bits: bits a covered weight, scales included; ``None`` where this version does not know the method.
    excluded: patterns of modules that stay 16-bit. experts_only: the method covers routed experts alone.
    kv_dtype: cache type that the file asks for, ``fp8`` or ``None``.
    """

    name: str
    bits: float | None
    excluded: tuple[str, ...] = ()
    experts_only: bool = False
    kv_dtype: str | None = None

    def covers(self, module: str, *, expert: bool) -> bool:
        """Whether the linear module `module` (dotted name, routed experts as one module) is quantized."""
        if self.experts_only and not expert:
            return False
        parts = _plain(module).split(".")
        runs = {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}
        if not self._excluded_names.isdisjoint(runs):
            return False
        return not any(_matches(pattern, module) for pattern in self._excluded_patterns)

    @cached_property
    def _excluded_names(self) -> frozenset[str]:
        """Excluded names without wildcards; files list thousands of them, one for each layer and expert."""
        return frozenset(_plain(name) for name in self.excluded if not _is_pattern(name))

    @cached_property
    def _excluded_patterns(self) -> tuple[str, ...]:
        return tuple(name for name in self.excluded if _is_pattern(name))


def read_scheme(config: Mapping[str, Any], companion: Mapping[str, Any] | None = None) -> Scheme | None:
    """The scheme in `quantization_config` (or in the text part), else in the ``hf_quant_config.json`` beside it."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        block = part.get("quantization_config")
        if isinstance(block, Mapping) and block:
            return _from_block(block)
    inner = companion.get("quantization") if companion else None
    return _from_companion(inner) if isinstance(inner, Mapping) else None


def _from_companion(block: Mapping[str, Any]) -> Scheme:
    algorithm = str(block.get("quant_algo") or "unknown")
    kv = str(block.get("kv_cache_quant_algo") or "")
    bits = {"NVFP4": _NVFP4_BITS, "FP8": RECIPE_BITS["fp8"], "W4A16_AWQ": RECIPE_BITS["int4"]}.get(algorithm)
    return Scheme(
        name=algorithm.lower(),
        bits=bits,
        excluded=_strings(block.get("exclude_modules")),
        kv_dtype="fp8" if kv.upper() == "FP8" else None,
    )


def _from_block(block: Mapping[str, Any]) -> Scheme:
    method = str(block.get("quant_method") or "unknown")
    excluded = _strings(
        block.get("modules_to_not_convert") or block.get("ignore") or block.get("llm_int8_skip_modules")
    )
    if method == "mxfp4":
        return Scheme("mxfp4", _MXFP4_BITS, excluded, experts_only=True)
    if method in ("fp8", "fbgemm_fp8"):
        rows = block.get("weight_block_size")
        if isinstance(rows, Sequence) and len(rows) == 2:
            return Scheme(f"fp8 (blocks of {rows[0]} x {rows[1]})", 8 + 32 / (rows[0] * rows[1]), excluded)
        return Scheme(method, RECIPE_BITS["fp8"], excluded)
    if method in ("gptq", "awq"):
        bits, group = block.get("bits"), block.get("group_size")
        if not isinstance(bits, int):
            return Scheme(method, None, excluded)
        grouped = group if isinstance(group, int) and group > 0 else 4096
        return Scheme(f"{method} ({bits} bits)", bits + (16 + bits) / grouped, excluded)
    if method == "bitsandbytes":
        if block.get("load_in_4bit"):
            double = bool(block.get("bnb_4bit_use_double_quant"))
            kind = block.get("bnb_4bit_quant_type", "fp4")
            return Scheme(f"bitsandbytes {kind}", _NF4_DOUBLE_BITS if double else _NF4_BITS, excluded)
        return Scheme("bitsandbytes int8", RECIPE_BITS["int8"], excluded)
    if method == "compressed-tensors":
        return _from_groups(block, excluded)
    return Scheme(method, None, excluded)


def _from_groups(block: Mapping[str, Any], excluded: tuple[str, ...]) -> Scheme:
    groups = block.get("config_groups")
    weights = [
        group.get("weights") for group in (groups.values() if isinstance(groups, Mapping) else ()) if group is not None
    ]
    if len(weights) != 1 or not isinstance(weights[0], Mapping) or not isinstance(weights[0].get("num_bits"), int):
        return Scheme("compressed-tensors", None, excluded)
    bits, group = weights[0]["num_bits"], weights[0].get("group_size")
    scaled = bits + 16 / (group if isinstance(group, int) and group > 0 else 4096)
    kv = block.get("kv_cache_scheme")
    eight = isinstance(kv, Mapping) and kv.get("num_bits") == 8
    return Scheme(f"compressed-tensors ({bits} bits)", scaled, excluded, kv_dtype="fp8" if eight else None)


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _is_pattern(name: str) -> bool:
    return "*" in name or name.startswith("re:")


def _matches(pattern: str, module: str) -> bool:
    """A pattern is ``re:`` and an expression over the whole name, or has wildcards for a module or what is in it."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    wanted, name = _plain(pattern), _plain(module)
    return fnmatch.fnmatch(name, wanted) or fnmatch.fnmatch(name, f"{wanted}.*")


def _plain(name: str) -> str:
    """`name` without the wrappers that differ between a checkpoint and the class that reads it."""
    return re.sub(r"^(?:model|language_model|transformer)\.", "", re.sub(r"^(?:model|language_model)\.", "", name))

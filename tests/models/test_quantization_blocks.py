"""What each quantization block is worth in bits, and which values it may not hold."""

from __future__ import annotations

from typing import Any

import pytest

from inferdoc.errors import ModelError
from inferdoc.models import ModelSpec

ATTENTION = 2 * (2 * 64 * 64 + 2 * 64 * 32)
MLP = 2 * 3 * 64 * 128
LINEAR = ATTENTION + MLP


def sized(config: dict[str, Any], block: Any, companion: dict[str, Any] | None = None) -> ModelSpec:
    return ModelSpec.from_config(config | {"quantization_config": block}, "mine", companion=companion)


def tensors(**weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


@pytest.mark.parametrize(
    ("block", "bits"),
    [
        (tensors(num_bits=4, group_size=16, type="float", strategy="tensor_group"), 4.5),  # NVFP4: e4m3 for 16
        (tensors(num_bits=4, group_size=32, type="float", strategy="group"), 4.25),  # MXFP4: e8m0 for 32
        (tensors(num_bits=8, group_size=32, type="float", strategy="group"), 8.25),  # MXFP8
        (tensors(num_bits=4, group_size=128, type="int", symmetric=True), 4 + 16 / 128),
        (tensors(num_bits=4, group_size=128, type="int", symmetric=False), 4 + 20 / 128),
        (tensors(num_bits=8, type="float", strategy="block", block_structure=[128, 128]), 8 + 16 / 128**2),
        (tensors(num_bits=8, type="int") | {"sparsity_config": {"format": "sparse-24-bitmask"}}, 5 + 8 / 4096),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8 + 16 / 4096),
        ({"quant_algo": "FP8_PB_WO"}, 8 + 32 / 128**2),
        (tensors(num_bits=4, group_size=16, type="float") | {"quant_method": "modelopt"}, 4.5),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {}}, 4 + 32 / 128),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}},
            },
            4 + 32 / 64,
        ),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4.5),
    ],
)
def test_bits_of_a_weight(llama_config: dict[str, Any], block: dict[str, Any], bits: float) -> None:
    spec = sized(llama_config, block)
    assert (spec.quantized_parameters, spec.quantized_bits) == (LINEAR, bits)


def test_groups_of_different_bits_by_their_targets(llama_config: dict[str, Any]) -> None:
    block = {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "wide": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "group_size": 128}},
            "narrow": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 128}},
            "cache": {"targets": ["LlamaAttention"], "weights": None},
        },
    }
    spec = sized(llama_config, block)
    expected = (ATTENTION * 8.125 + MLP * 4.125) / 8
    assert spec.weight_bytes() == pytest.approx(expected + (spec.parameters - LINEAR) * 2, abs=1)
    assert spec.quantization == "compressed-tensors (8 and 4 bits)"
    with pytest.raises(ModelError, match="cannot be told apart"):
        sized(llama_config | {"model_type": "novel"}, block).weight_bytes()


def test_layers_of_different_bits_by_name(llama_config: dict[str, Any]) -> None:
    layers = {
        "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
        "model.layers.1.mlp.up_proj": {"quant_algo": "NVFP4"},
    }
    companion = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    spec = ModelSpec.from_config(llama_config, "mine", companion=companion)
    assert spec.quantized_parameters == 2 * 64 * 128
    assert spec.quantized_bits == (8 + 16 / 4096 + 4.5) / 2
    by_torchao = {"_default": {"_type": "Int8WeightOnlyConfig", "_data": {}}, "model.layers.0.mlp.up_proj": None}
    kind = {"default": {"_type": "FqnToConfig", "_data": {"fqn_to_config": by_torchao}}}
    assert (
        sized(llama_config, {"quant_method": "torchao", "quant_type": kind}).quantized_parameters == LINEAR - 64 * 128
    )


def test_overrides_of_gptq(llama_config: dict[str, Any]) -> None:
    own = {r"-:.*\.0\..*": {}, r"+:.*down_proj": {"bits": 8}}
    spec = sized(llama_config, {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": own})
    down = 64 * 128
    assert spec.quantized_parameters == LINEAR // 2
    assert spec.quantized_bits == pytest.approx(
        ((LINEAR // 2 - down) * (4 + 20 / 32) + down * (8 + 24 / 32)) / (LINEAR // 2)
    )


def test_companion_completes_what_the_block_leaves_out(llama_config: dict[str, Any]) -> None:
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*mlp*"]}}
    spec = sized(llama_config, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, beside)
    assert (spec.quantized_bits, spec.quantized_parameters, spec.kv_dtype) == (4.5, ATTENTION, "fp8")
    spec = sized(llama_config, {"quant_method": "modelopt"}, beside)
    assert (spec.quantization, spec.quantized_parameters, spec.kv_dtype) == ("fp8", ATTENTION, "fp8")


def test_companion_of_a_narrow_cache_alone(llama_config: dict[str, Any]) -> None:
    beside = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    spec = ModelSpec.from_config(llama_config, "mine", companion=beside)
    assert (spec.quantization, spec.kv_dtype, spec.weight_bytes()) == (None, "fp8", 2 * spec.parameters)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"quant_method": "fp8", "weight_block_size": [0, 0]}, r"weight_block_size is \[0, 0\]"),
        ({"quant_method": "fp8", "weight_block_size": ["a", "b"]}, r"weight_block_size is \['a', 'b'\]"),
        ({"quant_method": "fp8", "weight_block_size": "ab"}, "weight_block_size is 'ab'"),
        ({"quant_method": "gptq", "bits": 0}, "bits is 0"),
        ({"quant_method": "gptq", "bits": -4}, "bits is -4"),
        ({"quant_method": "gptq", "bits": True}, "bits is True"),
        ({"quant_method": "gptq", "bits": 10**400}, "bits is 1000"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size is 0"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "x"}, "group_size is 'x'"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}}, r"dynamic is 're:\('"),
        (tensors(num_bits=4) | {"ignore": ["re:("]}, r"ignore is 're:\('; not a regular expression"),
        (tensors(num_bits=4) | {"ignore": "lm_head"}, "ignore is 'lm_head'; a list"),
        (tensors(num_bits=4) | {"config_groups": {"a": "x"}}, "config_groups a is 'x'"),
        (tensors(num_bits=4) | {"config_groups": [1]}, r"config_groups is \[1\]"),
        (tensors(num_bits=4.5), "num_bits is 4.5"),
        (tensors(num_bits=8, strategy="block", block_structure=[1]), r"block_structure is \[1\]"),
        ({"quant_method": ["fp8"]}, r"quant_method is \['fp8'\]"),
        ([1], r"quantization_config is \[1\]"),
        ("fp8", "quantization_config is 'fp8'"),
    ],
)
def test_senseless_values_are_named(llama_config: dict[str, Any], block: Any, message: str) -> None:
    with pytest.raises(ModelError, match=f"^mine: .*{message}"):
        sized(llama_config, block)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "IntxWeightOnlyConfig"}}}, "IntxWeightOnly"),
        ({"quant_method": "modelopt", "quant_algo": "W2"}, "quant_algo W2 is not known"),
        (tensors(num_bits=8) | {"sparsity_config": {"format": "odd"}}, "format 'odd' is not known"),
        (tensors(num_bits=8) | {"config_groups": {}}, "no entry of config_groups has weights"),
        ({"quant_method": "gptq"}, "does not say bits"),
    ],
)
def test_what_cannot_be_sized_has_a_reason(llama_config: dict[str, Any], block: dict[str, Any], reason: str) -> None:
    spec = sized(llama_config, block)
    with pytest.raises(ModelError, match=f"mine: weights quantized by .*{reason}.*name a type"):
        spec.weight_bytes()
    assert spec.weight_bytes("bfloat16") == 2 * spec.parameters


def test_type_of_fewer_bits_without_a_scheme_names_the_model(llama_config: dict[str, Any]) -> None:
    spec = ModelSpec.from_config(llama_config | {"dtype": "int4"}, "mine")
    with pytest.raises(ModelError, match=r"^mine: its dtype is 'int4'"):
        spec.weight_bytes()
    assert spec.weight_bytes("bfloat16") == 2 * spec.parameters
    with pytest.raises(ModelError, match=r"^mine: mamba_ssm_dtype is 'int4'"):
        ModelSpec.from_config(llama_config | {"mamba_ssm_dtype": "int4"}, "mine")


@pytest.mark.parametrize(("written", "read"), [("half", "float16"), ("torch.bf16", "bfloat16"), ("auto", "float32")])
def test_other_names_of_types(llama_config: dict[str, Any], written: str, read: str) -> None:
    assert ModelSpec.from_config(llama_config | {"dtype": written}, "mine").dtype == read

"""Weight bytes by type and by the checkpoint's own quantization."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from inferdoc.errors import ModelError
from inferdoc.models import ModelSpec, read_spec

GIB = 1024**3


@cache
def published(shared: Path, name: str) -> ModelSpec:
    return read_spec(str(shared / "model_configs" / f"{name}.json"))


def test_all_experts_count_and_active_ones_are_told_apart(shared: Path) -> None:
    # jranaraki/vllm-fit#27: 93.4 GB = 87.0 GiB, not the 13 B that one token uses
    spec = published(shared, "mixtral-8x7b")
    assert spec.weight_bytes("bfloat16") == 93_405_585_408
    assert round(spec.weight_bytes() / GIB, 1) == 87.0
    # by hand: 32 layers x 8 experts of 3 x 4,096 x 14,336; a token uses 2 of 8
    experts = 32 * 8 * 3 * 4_096 * 14_336
    assert spec.active_parameters == 46_702_792_704 - experts + experts // 4


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen3-30b-a3b", 3.3), ("deepseek-v3", 37.5), ("kimi-k2-instruct", 32.8), ("llama-4-scout-17b-16e", 17.2)],
)
def test_active_parameters_agree_with_model_cards(shared: Path, name: str, billions: float) -> None:
    assert published(shared, name).active_parameters / 1e9 == pytest.approx(billions, abs=0.1)


def test_mxfp4_experts_match_the_published_checkpoint(shared: Path) -> None:
    # llm-d-planner's integration test: 12.816 GiB
    spec = published(shared, "gpt-oss-20b")
    assert spec.weight_bytes() == 13_761_264_768
    assert round(spec.weight_bytes() / GIB, 3) == 12.816


def test_gptq_leaves_embeddings_and_head_in_16_bits(shared: Path) -> None:
    spec = published(shared, "qwen2.5-7b-instruct-gptq-int4")
    assert round(spec.weight_bytes() / GIB, 2) == 5.19
    embeddings = 2 * 152_064 * 3_584
    assert spec.weight_bytes() > embeddings * 2 + (7_615_616_512 - embeddings) // 2


def test_int4_recipe_by_hand() -> None:
    # one layer: q, k, v, o of 64 x 64 and an MLP of 3 x 64 x 128; 4 bits + a 16-bit scale and 4-bit zero for 128
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "dtype": "float16",
    }
    spec = ModelSpec.from_config(config, "one layer")
    linear = 4 * 64 * 64 + 3 * 64 * 128
    rest = 2 * 100 * 64 + 3 * 64
    assert spec.linear_parameters == linear
    assert spec.parameters == linear + rest
    assert spec.weight_bytes("int4") == linear * 4.15625 / 8 + rest * 2
    assert spec.weight_bytes("float32") == 4 * (linear + rest)
    # one scale of 2 bytes for about 4,096 weights
    assert spec.weight_bytes("int8") == linear + linear * 2 // 4_096 + rest * 2


def test_fp8_blocks_are_about_half_of_16_bits(shared: Path) -> None:
    plain, blocks = published(shared, "qwen3-32b"), published(shared, "qwen3-32b-fp8")
    assert blocks.quantization == "fp8 (blocks of 128 x 128)"
    linear = 64 * (2 * 5_120 * 8_192 + 2 * 5_120 * 1_024 + 3 * 5_120 * 25_600)
    assert blocks.quantized_parameters == linear
    assert blocks.weight_bytes() == pytest.approx(linear * (1 + 4 / 128**2) + (plain.parameters - linear) * 2, abs=1)
    assert 0.5 < blocks.weight_bytes() / plain.weight_bytes() < 0.54


def test_nf4_with_double_quantization(shared: Path) -> None:
    # QLoRA: 0.127 bits a weight beside the 4
    spec = published(shared, "llama-3.1-8b-bnb-nf4")
    linear = 32 * (2 * 4_096 * 4_096 + 2 * 4_096 * 1_024 + 3 * 4_096 * 14_336)
    assert spec.quantized_parameters == linear
    assert spec.weight_bytes() == pytest.approx(linear * 4.127 / 8 + (8_030_261_248 - linear) * 2, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "scheme", "kv"),
    [
        ("llama-3.1-70b-instruct-fp8-modelopt", "fp8", "fp8"),
        ("qwen3-235b-a22b-nvfp4", "nvfp4", "fp8"),
        ("nemotron-3-super-120b-a12b-nvfp4", "nvfp4", "fp8"),
    ],
)
def test_quantization_in_the_companion_file_is_found(shared: Path, name: str, scheme: str, kv: str) -> None:
    spec = published(shared, name)
    assert (spec.quantization, spec.kv_dtype) == (scheme, kv)
    assert spec.weight_bytes() < spec.weight_bytes("bfloat16") * 0.65


def test_excluded_modules_stay_in_16_bits(shared: Path) -> None:
    # the scheme of Kimi K2.5 leaves out attention, shared experts and the dense MLP: what remains are routed experts
    spec = published(shared, "kimi-k2.5")
    assert spec.quantized_parameters == 60 * 384 * 3 * 7_168 * 2_048
    # Llama 4 Scout's list leaves out attention and the router, not the shared expert
    scout = published(shared, "llama-4-scout-17b-16e-fp8-dynamic")
    assert scout.quantized_parameters == 48 * 17 * 3 * 5_120 * 8_192


@pytest.mark.parametrize("name", ["gpt2", "gemma-2-2b-it", "llama-3.2-1b-instruct"])
def test_tied_head_is_counted_once(shared: Path, name: str) -> None:
    # pytorch/torchtitan PR#3225, huggingface/transformers#14960
    counts = {"gpt2": 124_439_808, "gemma-2-2b-it": 2_614_341_888, "llama-3.2-1b-instruct": 1_235_814_400}
    spec = published(shared, name)
    assert spec.parameters == counts[name]
    assert spec.tied_embeddings


def test_file_without_a_type_is_float32_and_says_so(shared: Path) -> None:
    spec = published(shared, "gpt2")
    assert spec.weight_bytes() == 497_759_232
    assert any("names no type" in note for note in spec.notes)


def test_unknown_quantization_is_refused_not_guessed() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "vocab_size": 100,
        "quantization_config": {"quant_method": "novel"},
    }
    spec = ModelSpec.from_config(config, "novel model")
    with pytest.raises(ModelError, match="quantized by novel"):
        spec.weight_bytes()
    assert spec.weight_bytes("bfloat16") == 2 * spec.parameters


@pytest.mark.parametrize("dtype", ["int3", "Q4_K"])
def test_unknown_weight_type_is_refused(shared: Path, dtype: str) -> None:
    with pytest.raises(ModelError, match=dtype):
        published(shared, "gpt2").weight_bytes(dtype)

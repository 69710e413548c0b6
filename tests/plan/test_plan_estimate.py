"""Plans of small models against sums made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferdoc.devices.cards import CardSpec
from inferdoc.errors import ModelError
from inferdoc.models import ModelSpec, read_spec
from inferdoc.models.planning import estimate
from inferdoc.models.sizing import StepWidth, activation_bytes
from inferdoc.models.splitting import OUTSIDE_BYTES, tensor_parallel_sizes

MakeCard = Callable[[int], CardSpec]
GIB = 2**30
WEIGHTS = 2 * 90_432
SEQUENCE = 2 * 2 * 32 * 2 * 100
"""KV bytes of 100 tokens: layers, heads, key and value, bytes."""
STEP = {"step_tokens": 16, "step_sequences": 4}
ACTIVATIONS = 16 * (3 * 64 + 3 * 128) * 2


@pytest.fixture
def small(small_config: dict[str, Any]) -> ModelSpec:
    return ModelSpec.from_config(small_config, "small")


def test_what_is_left_for_kv_and_what_fits_in_it(small: ModelSpec, card: MakeCard) -> None:
    memory = WEIGHTS + ACTIVATIONS + OUTSIDE_BYTES + 10 * SEQUENCE + 5_000
    plan = estimate(small, card(memory), 100, gpu_memory_utilization=1.0, **STEP)
    assert plan.split is not None
    assert plan.weight_bytes == WEIGHTS
    assert plan.kv.total_bytes == SEQUENCE
    assert plan.split.activation_bytes == ACTIVATIONS
    assert plan.split.kv_free_bytes == 10 * SEQUENCE + 5_000
    assert plan.split.largest_batch == 10
    assert plan.split.kv_tokens == (10 * SEQUENCE + 5_000) * 100 // SEQUENCE == 1_019
    assert plan.fewest_gpus == 1


def test_share_is_of_all_memory_with_the_weights_in_it(small: ModelSpec, card: MakeCard) -> None:
    # NVIDIA/TensorRT-LLM#1400: an 80 GiB card, 16 GiB of weights, 4 GiB of other things: 0.9 leaves 52 GiB
    model = replace(small, parameters=8 * GIB, step_width=StepWidth(whole=3 * GIB // 2 // 16, split=0))
    plan = estimate(model, card(80 * GIB), 100, gpu_memory_utilization=0.9, **STEP)
    assert plan.split is not None
    assert plan.split.activation_bytes + plan.split.outside_bytes == 4 * GIB
    assert plan.split.kv_free_bytes == 52 * GIB


def test_tensor_parallelism_divides_weights_heads_and_mlp(small: ModelSpec, card: MakeCard) -> None:
    plan = estimate(small, card(2 * GIB), 100, gpus=2, **STEP)
    two = next(split for split in plan.splits if split.tensor_parallel == 2)
    assert two.weight_bytes == WEIGHTS // 2
    assert two.activation_bytes == 16 * (3 * 64 + 3 * 128 // 2) * 2
    assert two.largest_batch == two.kv_free_bytes // (SEQUENCE // 2)


def test_pipeline_stages_hold_their_layers_and_a_table_at_each_end(small: ModelSpec, card: MakeCard) -> None:
    plan = estimate(small, card(2 * GIB), 100, gpus=2, **STEP)
    two = next(split for split in plan.splits if split.pipeline_parallel == 2)
    table = 256 * 64 * 2
    # tied: one table on one card, a copy on the first and the last stage of two
    assert two.weight_bytes == (WEIGHTS - table) // 2 + table
    assert two.largest_batch == two.kv_free_bytes // (SEQUENCE // 2)


def test_uneven_stages_are_bound_by_the_fullest(small_config: dict[str, Any], card: MakeCard) -> None:
    model = ModelSpec.from_config(small_config | {"num_hidden_layers": 5}, "five")
    plan = estimate(model, card(2 * GIB), 100, gpus=2, **STEP)
    two = next(split for split in plan.splits if split.pipeline_parallel == 2)
    table, layer = 256 * 64 * 2, (5 * 36_992 + 64) * 2 / 5
    assert two.weight_bytes == pytest.approx(3 * layer + table, abs=1)
    assert two.largest_batch == two.kv_free_bytes // (3 * SEQUENCE // 2)


def test_heads_fewer_than_ranks_are_copied(small_config: dict[str, Any], card: MakeCard) -> None:
    model = ModelSpec.from_config(small_config | {"num_attention_heads": 8, "head_dim": 16}, "copied")
    plan = estimate(model, card(2 * GIB), 100, gpus=4, **STEP)
    four = next(split for split in plan.splits if split.tensor_parallel == 4)
    assert four.largest_batch == four.kv_free_bytes // (SEQUENCE // 2)  # one of two heads on each of four ranks


@pytest.mark.parametrize(
    ("heads", "kv_heads", "sizes"),
    [
        (40, 10, [1, 2, 5]),  # Phi-4: 4 and 8 divide the 40 query heads, not the 10 KV heads
        (71, 1, [1]),  # Falcon 7B: a prime number of query heads
        (15, 5, [1, 5]),  # SmolLM 360M
        (16, 2, [1, 2, 4, 8]),  # Qwen2.5 3B: copied beyond 2
        (64, 8, [1, 2, 4, 8]),
        (24, 24, [1, 2, 3, 4, 6, 8]),
    ],
)
def test_ranks_that_the_heads_allow(small_config: dict[str, Any], heads: int, kv_heads: int, sizes: list[int]) -> None:
    change = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 16}
    change |= {"intermediate_size": 840, "vocab_size": 64 * 840}  # what every number of ranks up to 8 divides
    assert tensor_parallel_sizes(ModelSpec.from_config(small_config | change, "heads")) == sizes


def test_latent_is_whole_on_every_rank(card: MakeCard) -> None:
    config = {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 48,
        "q_lora_rank": None,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "vocab_size": 256,
        "max_position_embeddings": 256,
        "dtype": "bfloat16",
    }
    plan = estimate(ModelSpec.from_config(config, "latent"), card(2 * GIB), 100, gpus=2, **STEP)
    assert plan.kv.total_bytes == 2 * (48 + 16) * 2 * 100
    by_tensor = next(split for split in plan.splits if split.tensor_parallel == 2)
    by_stage = next(split for split in plan.splits if split.pipeline_parallel == 2)
    assert by_tensor.largest_batch == by_tensor.kv_free_bytes // plan.kv.total_bytes
    assert by_stage.largest_batch == by_stage.kv_free_bytes // (plan.kv.total_bytes // 2)
    assert by_stage.kv_tokens > by_tensor.kv_tokens


def test_fewest_cards_and_the_splits_of_that_many(small: ModelSpec, card: MakeCard) -> None:
    # One card lacks a byte for one sequence; two hold it either way.
    memory = WEIGHTS + ACTIVATIONS + OUTSIDE_BYTES + SEQUENCE - 1
    plan = estimate(small, card(memory), 100, gpu_memory_utilization=1.0, **STEP)
    assert plan.fewest_gpus == 2
    assert [(split.tensor_parallel, split.pipeline_parallel) for split in plan.splits] == [(2, 1), (1, 2)]
    assert plan.split == plan.splits[0]
    one = estimate(small, card(memory + 1), 100, gpu_memory_utilization=1.0, **STEP)
    assert one.fewest_gpus == 1


def test_asked_cards_that_do_not_hold_it_say_what_is_lacking(small: ModelSpec, card: MakeCard) -> None:
    memory = WEIGHTS + ACTIVATIONS + OUTSIDE_BYTES - 7
    plan = estimate(small, card(memory), 100, gpus=1, gpu_memory_utilization=1.0, **STEP)
    assert plan.split is not None
    assert not plan.split.fits
    assert (plan.split.kv_free_bytes, plan.split.kv_tokens, plan.split.largest_batch) == (-7, 0, 0)
    assert plan.splits == []
    assert plan.fewest_gpus == 2


def test_no_number_of_cards_is_said(small: ModelSpec, card: MakeCard) -> None:
    plan = estimate(small, card(OUTSIDE_BYTES // 2), 100, gpus=5, **STEP)
    assert plan.fewest_gpus is None
    assert plan.split is None
    assert any("no split over up to 128" in note for note in plan.notes)
    assert any("cannot be spread over 5 cards" in note for note in plan.notes)


def test_batch_must_fit_at_once(small: ModelSpec, card: MakeCard) -> None:
    memory = WEIGHTS + ACTIVATIONS + OUTSIDE_BYTES + 10 * SEQUENCE
    assert estimate(small, card(memory), 100, batch=10, gpu_memory_utilization=1.0, **STEP).fewest_gpus == 1
    assert estimate(small, card(memory), 100, batch=11, gpu_memory_utilization=1.0, **STEP).fewest_gpus == 2


def test_fit_is_monotone_in_the_context_at_a_fixed_step(small_config: dict[str, Any], card: MakeCard) -> None:
    # vllm-project/vllm#10517: 20,000 tokens fitted, 29,000 did not, 35,000 did: the step had grown with the context
    model = ModelSpec.from_config(small_config | {"max_position_embeddings": 10**6}, "long")
    memory = WEIGHTS + ACTIVATIONS + OUTSIDE_BYTES + 256 * 30_000
    plans = [
        estimate(model, card(memory), context, gpus=1, gpu_memory_utilization=1.0, **STEP)
        for context in (20_000, 29_000, 30_000, 30_001, 35_000, 100_000)
    ]
    assert [plan.split is not None and plan.split.fits for plan in plans] == [True, True, True, False, False, False]


def test_activations_reproduce_a_published_log() -> None:
    # vllm-project/vllm#10517: 17.98 GiB at the peak of a step of 29,000 tokens, 14.9888 GiB of it weights
    width = StepWidth(whole=3 * 4096, split=3 * 14_336)
    size = activation_bytes(width, hidden_size=4096, vocab_size=128_256, tokens=29_000, sequences=1)
    assert size / GIB == pytest.approx(17.98 - 14.9888, abs=0.02)


def test_sampling_of_a_large_vocabulary_can_be_the_peak() -> None:
    size = activation_bytes(StepWidth(10, 10), hidden_size=4, vocab_size=1000, tokens=64, sequences=32)
    assert size == 32 * (1000 * 10 + 4 * 2)
    fewer = activation_bytes(StepWidth(10, 10), hidden_size=4, vocab_size=1000, tokens=8, sequences=32)
    assert fewer == 8 * (1000 * 10 + 4 * 2)  # no more rows than tokens


def test_a_mixture_holds_every_picked_expert(small_config: dict[str, Any]) -> None:
    change = {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    assert ModelSpec.from_config(small_config | change, "mixed").step_width == StepWidth(5 * 64, 2 * 3 * 128)


def test_types_that_are_asked_for(small: ModelSpec, card: MakeCard) -> None:
    plan = estimate(small, card(2 * GIB), 100, dtype="int4", kv_dtype="fp8", **STEP)
    linear = 2 * 36_864
    assert plan.weight_bytes == plan.weight_bytes_by_dtype["int4"] == linear * 4.15625 / 8 + (90_432 - linear) * 2
    assert plan.weight_bytes_stored == WEIGHTS
    assert (plan.kv_dtype, plan.kv.total_bytes) == ("fp8", SEQUENCE // 2)


@pytest.mark.parametrize("names", [{"dtype": "int3"}, {"kv_dtype": "int8"}])
def test_types_that_are_not_known(small: ModelSpec, card: MakeCard, names: dict[str, str]) -> None:
    with pytest.raises(ModelError, match="unknown type"):
        estimate(small, card(2 * GIB), 100, **names)


def test_checkpoint_that_asks_for_a_narrow_cache_gets_it(small_config: dict[str, Any], card: MakeCard) -> None:
    companion = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    model = ModelSpec.from_config(small_config, "narrow", companion=companion)
    assert estimate(model, card(2 * GIB), 100, **STEP).kv.total_bytes == SEQUENCE // 2
    plan = estimate(model, card(2 * GIB), 100, kv_dtype="bf16", dtype="bf16", **STEP)
    assert plan.kv.total_bytes == SEQUENCE
    assert any("sized as if it held bf16" in note for note in plan.notes)


def test_own_scheme_that_cannot_be_sized_needs_a_type(small_config: dict[str, Any], card: MakeCard) -> None:
    model = ModelSpec.from_config(small_config | {"quantization_config": {"quant_method": "novel"}}, "novel")
    with pytest.raises(ModelError, match="quantized by novel cannot be sized; name a type"):
        estimate(model, card(2 * GIB), 100, **STEP)
    plan = estimate(model, card(2 * GIB), 100, dtype="bf16", **STEP)
    assert (plan.weight_bytes, plan.weight_bytes_stored) == (WEIGHTS, None)


def test_trap_altered_file_is_sized_by_what_it_says_not_by_its_name(
    small_config: dict[str, Any], tmp_path: Path
) -> None:
    # public repositories hold shrunken files under real names, such as a Mistral 7B with one KV head
    altered = small_config | {"model_type": "mistral", "num_key_value_heads": 1}
    path = tmp_path / "mistral-7b-v0.1.json"
    path.write_text(json.dumps(altered))
    assert read_spec(path).kv_bytes_per_token() == 2 * 1 * 32 * 2


def test_trap_bare_infinity_in_a_file_of_ones_own(small_config: dict[str, Any], tmp_path: Path, card: MakeCard) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(small_config | {"time_step_limit": [0.0, float("inf")]}))
    assert "Infinity" in path.read_text()
    plan = estimate(read_spec(path), card(2 * GIB), 100, **STEP)
    assert "Infinity" not in json.dumps(plan.model_dump(mode="json"), allow_nan=False)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "num_key_value_heads"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1, "many", [4], 1.5])
def test_senseless_sizes_are_refused_by_name(small_config: dict[str, Any], key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"mine.*{key}"):
        ModelSpec.from_config(small_config | {key: value}, "mine")


def test_empty_block_configs_are_as_if_absent(small_config: dict[str, Any], card: MakeCard) -> None:
    model = ModelSpec.from_config(small_config | {"block_configs": []}, "empty")
    assert model.parameters == 90_432
    assert estimate(model, card(2 * GIB), 100, **STEP).kv.total_bytes == SEQUENCE


@pytest.mark.parametrize(
    "change",
    [
        {"attn_config": {"kv_n_heads": "two"}},
        {"attn_layer_period": 1.5},
        {"full_attention_interval": "four"},
        {"block_configs": [{"attention": {"n_heads_in_group": "x"}}] * 2},
        {"block_configs": [{"attention": {"window_length": -1}}] * 2},
        {"layer_types": ["linear_attention"] * 2, "linear_num_value_heads": float("inf")},
    ],
)
def test_senseless_nested_sizes_are_refused_by_name(small_config: dict[str, Any], change: dict[str, Any]) -> None:
    del small_config["num_key_value_heads"]
    with pytest.raises(ModelError, match="a whole number is needed"):
        ModelSpec.from_config(small_config | {"model_type": "novel"} | change, "mine")


@pytest.mark.parametrize("multiple", ["x", float("inf"), -1])
def test_senseless_width_of_a_block_is_refused(small_config: dict[str, Any], multiple: Any) -> None:
    blocks = [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": multiple}}] * 2
    with pytest.raises(ModelError, match="ffn_mult is"):
        ModelSpec.from_config(small_config | {"block_configs": blocks}, "mine")


def test_interval_of_zero_is_none(small_config: dict[str, Any]) -> None:
    zero = {"model_type": "novel", "attn_layer_period": 0, "full_attention_interval": 0}
    assert [layer.kind for layer in ModelSpec.from_config(small_config | zero, "zero").layers] == ["full", "full"]


def test_more_layers_than_any_model_has_are_refused(small_config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="mine: num_hidden_layers is 10000000"):
        ModelSpec.from_config(small_config | {"num_hidden_layers": 10_000_000}, "mine")


def test_trap_weights_in_two_formats_count_once(small_config: dict[str, Any], tmp_path: Path, card: MakeCard) -> None:
    # kaito's catalogue adds gpt-oss's two copies; the plan goes by the configuration, whatever lies in the folder
    folder = tmp_path / "twice"
    (folder / "original").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(small_config))
    (folder / "original" / "model.safetensors").write_bytes(bytes(1_000_000))
    (folder / "pytorch_model.bin").write_bytes(bytes(1_000_000))
    assert estimate(read_spec(folder), card(2 * GIB), 100, **STEP).weight_bytes == WEIGHTS

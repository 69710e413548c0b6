"""The traps and rules that the README beside the published configurations lists, as plans.

Expected numbers are that table's (status C: confirmed by an independent public source; R: by the reference class), or
are worked out here from the rule. The context is 8,192 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inferdoc.devices.cards import find_card_spec
from inferdoc.models import read_spec
from inferdoc.models.listing import PlanReport
from inferdoc.models.planning import Plan, estimate

Published = Callable[[str], Plan]
CONTEXT = 8192

# file, parameters, weight bytes, KV bytes per token
CONFIRMED = [
    ("gemma-2-2b-it", 2_614_341_888, 5_228_683_776, 106_496),
    ("gemma-2-9b-it", 9_241_705_984, 18_483_411_968, 344_064),
    ("gemma-2b", 2_506_172_416, 5_012_344_832, 18_432),
    ("gpt-oss-20b", 20_914_757_184, 13_761_264_768, 49_152),
    ("gpt2", 124_439_808, 497_759_232, 36_864),
    ("llama-2-7b", 6_738_415_616, 13_476_831_232, 524_288),
    ("llama-3.1-8b", 8_030_261_248, 16_060_522_496, 131_072),
    ("mistral-7b-v0.1", 7_241_732_096, 14_483_464_192, 131_072),
    ("mixtral-8x7b", 46_702_792_704, 93_405_585_408, 131_072),
    ("phi-4-mini-instruct", 3_836_021_760, 7_672_043_520, 131_072),
    ("qwen2.5-7b-instruct", 7_615_616_512, 15_231_233_024, 57_344),
    ("qwen3-8b", 8_190_735_360, 16_381_470_720, 147_456),
    ("qwen3.5-122b-a10b", 122_562_817_776, 245_125_635_552, 24_576),
]
# weight bytes at 2 bytes a parameter, KV bytes per token; None: the table gives no number
BY_REFERENCE = [
    ("aya-23-8b", 16_056_066_048, 131_072),
    ("codellama-34b-instruct", 67_487_940_608, 196_608),
    ("deepseek-v2-lite", 31_412_968_448, 31_104),
    ("exaone-4.0-32b", 64_006_432_768, 262_144),
    ("gemma-3-1b-it", 1_999_771_904, 26_624),
    ("gpt-bigcode-santacoder", 2_249_773_056, 12_288),
    ("gpt-j-6b", 12_101_765_568, 458_752),
    ("internlm2.5-7b-chat", 15_475_417_088, 131_072),
    ("llama-2-13b", 26_031_728_640, 819_200),
    ("llama-2-70b", 137_953_296_384, 327_680),
    ("llama-3.2-1b-instruct", 2_471_628_800, 32_768),
    ("llama-3.2-3b-instruct", 6_425_499_648, 114_688),
    ("llama-4-maverick-17b-128e", 801_423_697_920, None),
    ("mixtral-8x22b", 281_241_268_224, 229_376),
    ("mpt-7b", 13_298_573_312, 524_288),
    ("nemotron-h-56b-base", 112_648_700_928, 40_960),
    ("olmo-2-32b", 64_468_559_872, 262_144),
    ("olmo-2-7b", 14_597_234_688, 524_288),
    ("olmo-3.1-32b-instruct", 64_467_044_352, 262_144),
    ("phi-2-msft", 5_559_367_680, 327_680),
    ("phi-mini-moe-instruct", 15_295_265_408, 131_072),
    ("qwen2.5-3b-instruct", 6_171_877_376, 36_864),
    ("qwen3-0.6b", 1_192_099_840, 114_688),
    ("qwen3-14b", 29_536_614_400, 163_840),
    ("qwen3-32b", 65_524_246_528, 262_144),
    ("qwen3-vl-8b-instruct", 17_534_247_392, 147_456),
    ("qwen3.5-27b", 54_713_457_120, 65_536),
    ("redpajama-incite-3b", 5_551_728_640, 327_680),
]


def test_every_published_model_gets_a_row_and_companions_are_skipped(listing: PlanReport) -> None:
    assert len(listing.models) == 86
    assert [entry.reason for entry in listing.models if entry.plan is None] == []
    assert len(listing.skipped) == 3
    for entry in listing.models:
        assert entry.plan is not None
        assert entry.plan.parameters >= entry.plan.active_parameters > 0
        assert entry.plan.weight_bytes > 0
        assert entry.plan.fewest_gpus is not None


@pytest.mark.parametrize(("name", "parameters", "weights", "kv"), CONFIRMED)
def test_confirmed_rows_of_the_table(published: Published, name: str, parameters: int, weights: int, kv: int) -> None:
    plan = published(name)
    assert plan.parameters_exact
    assert (plan.parameters, plan.weight_bytes, plan.kv.bytes_per_token) == (parameters, weights, kv)
    assert plan.weight_bytes == plan.weight_bytes_stored


@pytest.mark.parametrize(("name", "weights", "kv"), BY_REFERENCE)
def test_reference_rows_of_the_table(published: Published, name: str, weights: int, kv: int | None) -> None:
    plan = published(name)
    assert plan.weight_bytes_by_dtype["bf16"] == 2 * plan.parameters == weights
    if kv is not None:
        assert plan.kv.bytes_per_token == kv


def test_trap_absent_tie_setting_counts_the_head_once_where_the_class_ties(published: Published) -> None:
    # The file of Falcon 7B on disk holds the head beside the embedding: 14,434,379,520 bytes; memory holds it once.
    assert published("falcon-7b").weight_bytes == 14_434_379_520 - 2 * 65_024 * 4_544
    # 256,000 x 4,096 once (Command-R ties), and 32,000 x 4,096 twice (Llama does not)
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336)
    assert published("aya-23-8b").parameters == linear + 256_000 * 4096 + 33 * 4096
    linear = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11_008)
    assert published("llama-2-7b").parameters == linear + 2 * 32_000 * 4096 + 65 * 4096


@pytest.mark.parametrize("name", ["nemotron-h-56b-base", "nemotron-3-super-120b-a12b-nvfp4"])
def test_trap_bare_infinity_is_read(shared: Path, published: Published, name: str) -> None:
    assert "Infinity" in (shared / "model_configs" / f"{name}.json").read_text()
    assert published(name).parameters_exact


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("llama-3.1-70b-instruct-fp8-modelopt", "fp8"),
        ("qwen3-235b-a22b-nvfp4", "nvfp4"),
        ("nemotron-3-super-120b-a12b-nvfp4", "nvfp4"),
    ],
)
def test_trap_quantization_stands_only_in_the_companion(published: Published, name: str, scheme: str) -> None:
    plan = published(name)
    assert plan.quantization == scheme
    assert plan.weight_bytes < 0.65 * plan.weight_bytes_by_dtype["bf16"]
    assert plan.kv_dtype == "fp8"  # all three ask for it


def test_trap_companion_of_llama_covers_linear_layers_and_leaves_the_head(published: Published) -> None:
    linear = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28_672)
    rest = 2 * 128_256 * 8192 + 161 * 8192
    plan = published("llama-3.1-70b-instruct-fp8-modelopt")
    assert plan.parameters == linear + rest
    assert plan.weight_bytes == linear * (1 + 2 / 4096) + rest * 2


@pytest.mark.parametrize("name", ["qwen2.5-3b-instruct", "qwen2.5-7b-instruct", "qwen1.5-moe-a2.7b"])
def test_trap_window_present_and_unused(published: Published, name: str) -> None:
    plan = published(name)
    assert plan.kv.windowed_bytes == 0
    assert plan.kv.total_bytes == CONTEXT * plan.kv.bytes_per_token


def test_trap_window_longer_than_the_context_is_no_limit(published: Published) -> None:
    assert published("phi-3.5-mini-instruct").kv.windowed_bytes == 0


@pytest.mark.parametrize(
    ("name", "growing", "windowed"),
    [
        # layers x KV heads x (key + value) x bytes x tokens
        ("mistral-7b-v0.1", 0, 4096 * 131_072),
        ("gemma-3-1b-it", 4 * 1024 * CONTEXT, 22 * 1024 * 512),
        ("gemma-2-2b-it", 13 * 4 * 512 * 2 * CONTEXT, 13 * 4 * 512 * 2 * 4096),
        ("gpt-oss-20b", 12 * 8 * 128 * 2 * CONTEXT, 12 * 8 * 128 * 2 * 128),
        ("exaone-4.0-32b", 16 * 8 * 256 * 2 * CONTEXT, 48 * 8 * 256 * 2 * 4096),
        ("mimo-v2-flash", 9 * 4 * 320 * 2 * CONTEXT, 39 * 8 * 320 * 2 * 128),
        ("llama-4-scout-17b-16e", 12 * 8 * 256 * 2 * CONTEXT, 36 * 8 * 256 * 2 * CONTEXT),
        ("starcoder2-7b", 0, 32 * 4 * 256 * 2 * 4096),
        ("phi-mini-moe-instruct", 0, 32 * 8 * 256 * 2 * 2047),
    ],
)
def test_rule_sliding_and_chunked_layers_are_a_part_of_their_own(
    published: Published, name: str, growing: int, windowed: int
) -> None:
    kv = published(name).kv
    assert (kv.growing_bytes, kv.windowed_bytes, kv.fixed_bytes) == (growing, windowed, 0)
    assert kv.total_bytes == growing + windowed


@pytest.mark.parametrize(
    ("name", "layers", "heads", "head"),
    [
        ("gemma-3-27b-it", 62, 16, 128),
        ("qwen3-vl-8b-instruct", 36, 8, 128),
        ("qwen3.5-27b", 16, 4, 256),
        ("qwen3.5-122b-a10b", 12, 2, 256),
        ("llama-4-maverick-17b-128e", 48, 8, 128),
    ],
)
def test_trap_sizes_nested_in_text_config(published: Published, name: str, layers: int, heads: int, head: int) -> None:
    assert published(name).kv.bytes_per_token == 2 * layers * heads * head * 2


def test_trap_nested_latent_attention_is_found(published: Published) -> None:
    assert published("kimi-k2.5").kv.bytes_per_token == 61 * (512 + 64) * 2


@pytest.mark.parametrize(
    ("name", "layers", "heads", "head"),
    [
        ("gpt2", 12, 12, 64),  # n_layer, n_embd, n_head
        ("gpt-j-6b", 28, 16, 256),
        ("phi-2-msft", 32, 32, 80),  # n_head_kv is null
        ("mpt-7b", 32, 32, 128),  # d_model, n_layers, n_heads
        ("chatglm3-6b", 28, 2, 128),  # num_layers, kv_channels, multi_query_group_num
        ("falcon-7b", 32, 1, 64),  # multi_query
        ("falcon-40b", 60, 8, 64),  # multi_query and new_decoder_architecture: the second wins
        ("gpt-bigcode-santacoder", 24, 1, 128),
    ],
)
def test_trap_older_names_of_sizes(published: Published, name: str, layers: int, heads: int, head: int) -> None:
    assert published(name).kv.bytes_per_token == 2 * layers * heads * head * 2


def test_trap_shortened_vision_part_is_left_out_and_said(published: Published) -> None:
    plan = published("llama-4-maverick-17b-128e")
    assert (plan.parameters, plan.vision_parameters) == (400_711_848_960, 0)
    assert any("language part only" in note for note in plan.notes)


@pytest.mark.parametrize(("name", "vision"), [("gemma-4-26b-a4b", 572_792_112), ("qwen3-vl-8b-instruct", 576_388_336)])
def test_vision_is_in_the_total_and_no_text_token_goes_through_it(published: Published, name: str, vision: int) -> None:
    plan = published(name)
    assert plan.vision_parameters == vision
    assert plan.active_parameters <= plan.parameters - vision


@pytest.mark.parametrize(("name", "head"), [("mistral-nemo-instruct-2407", 163_840), ("qwen3-32b", 262_144)])
def test_rule_head_size_is_the_given_one(published: Published, name: str, head: int) -> None:
    assert published(name).kv.bytes_per_token == head


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-v2-lite", 27 * 576 * 2),
        ("deepseek-v3", 61 * 576 * 2),
        ("deepseek-v3.2", 61 * 576 * 2),
        ("kimi-k2-instruct", 61 * 576 * 2),
        ("glm-5-fp8", 78 * 576 * 2),
    ],
)
def test_rule_latent_has_no_factor_two_and_no_heads(published: Published, name: str, expected: int) -> None:
    plan = published(name)
    assert plan.kv.growing_bytes == CONTEXT * expected
    assert any("latent" in note for note in plan.notes)


@pytest.mark.parametrize(("name", "layers"), [("deepseek-v3.2", 61), ("glm-5-fp8", 78)])
def test_index_keys_of_sparse_attention_are_a_part_of_their_own(published: Published, name: str, layers: int) -> None:
    # vLLM's DeepseekV32IndexerCache: 128 elements in FP8 and a float32 scale, in every layer
    kv = published(name).kv
    assert kv.index_bytes == CONTEXT * layers * 132
    assert kv.bytes_per_token == layers * (576 * 2 + 132)
    assert kv.total_bytes == CONTEXT * kv.bytes_per_token
    assert any(f"{layers * 132:,} B a token of index keys" in note for note in published(name).notes)
    assert published("deepseek-v3").kv.index_bytes == 0


@pytest.mark.parametrize("name", ["qwen3-235b-a22b-fp8", "minimax-m2.5"])
def test_split_through_a_block_of_scales_needs_expert_parallelism(shared: Path, name: str) -> None:
    # vLLM: "The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128"
    spec = read_spec(shared / "model_configs" / f"{name}.json")
    plan = estimate(spec, find_card_spec("h200_sxm"), CONTEXT, gpus=8)
    needs = {split.tensor_parallel: split.needs for split in plan.splits}
    assert {ranks for ranks, need in needs.items() if need is None} == {1, 2, 4}
    assert needs[8] is not None
    assert "expert parallelism" in needs[8]
    assert "1,536 / 8 = 192" in needs[8]
    assert plan.split is not None
    assert plan.split.tensor_parallel == 4


@pytest.mark.parametrize(
    ("name", "ranks", "reason"), [("phi-4", 5, "vocabulary of 100,352"), ("llama-2-13b", 5, "MLP width of 13,824")]
)
def test_split_that_servers_refuse_is_left_out_and_said(
    published: Published, name: str, ranks: int, reason: str
) -> None:
    assert any(f"TP{ranks}: " in note and reason in note for note in published(name).notes)


@pytest.mark.parametrize(
    ("name", "growing", "fixed"),
    [
        # 16 of 64 layers attend; 48 keep a 10,240-channel window of 4 in 16 bits and 48 x 128 x 128 in float32
        ("qwen3.5-27b", 65_536 * CONTEXT, 48 * (10_240 * 4 * 2 + 48 * 128 * 128 * 4)),
        # 10 of 118 layers attend; 230,916,096 fixed elements in 16 bits
        ("nemotron-h-56b-base", 40_960 * CONTEXT, 230_916_096 * 2),
        ("granite-4.0-h-small", 4 * 8 * 256 * 2 * CONTEXT, 38_965_248 * 2),
        ("jamba-1.5-mini", 4 * 8 * 256 * 2 * CONTEXT, 4_587_520 * 2),
    ],
)
def test_rule_hybrids_keep_a_fixed_part(published: Published, name: str, growing: int, fixed: int) -> None:
    kv = published(name).kv
    assert (kv.growing_bytes, kv.windowed_bytes, kv.fixed_bytes) == (growing, 0, fixed)


def test_rule_skipped_layers_store_nothing(published: Published) -> None:
    # 49 of the 80 entries of block_configs attend, with 8 KV heads of 128
    plan = published("llama-3.3-nemotron-super-49b")
    assert plan.kv.bytes_per_token == 49 * 8 * 256 * 2
    assert not plan.parameters_exact


def test_rule_all_experts_count_for_memory(published: Published) -> None:
    plan = published("mixtral-8x7b")
    experts = 32 * 8 * 3 * 4096 * 14_336
    assert plan.weight_bytes == 93_405_585_408
    assert plan.active_parameters == 46_702_792_704 - experts * 6 // 8


@pytest.mark.parametrize(
    ("name", "covered", "bits"),
    [
        # linear layers; embeddings, head, norms and routers stay 16-bit; scales by the format
        ("qwen3-32b-fp8", 64 * (2 * 5120 * 8192 + 2 * 5120 * 1024 + 3 * 5120 * 25_600), 8 + 32 / 128**2),
        ("qwen2.5-7b-instruct-gptq-int4", 28 * (2 * 3584**2 + 2 * 3584 * 512 + 3 * 3584 * 18_944), 4 + 20 / 128),
        ("qwen3-8b-awq", 36 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 12_288), 4 + 20 / 128),
        (
            "llama-3.1-8b-bnb-nf4",
            32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336),
            4 + 8 / 64 + 32 / (64 * 256),
        ),
        ("kimi-k2.5", 60 * 384 * 3 * 7168 * 2048, 4 + 16 / 32),
        ("llama-4-scout-17b-16e-fp8-dynamic", 48 * 17 * 3 * 5120 * 8192, 8 + 16 / 4096),
        ("gpt-oss-20b", 24 * 32 * (3 * 2880 * 2880 + 3 * 2880), 4 + 8 / 32),
    ],
)
def test_rule_quantization_covers_what_the_file_does_not_exclude(
    published: Published, name: str, covered: int, bits: float
) -> None:
    plan = published(name)
    expected = covered * bits / 8 + (plan.parameters - covered) * 2
    if name == "gpt-oss-20b":
        # the biases of the experts are not in blocks; the published sum of safetensors is 13,761,264,768
        covered = 24 * 32 * 3 * 2880 * 2880
        expected = covered * bits / 8 + (plan.parameters - covered) * 2
        assert expected == 13_761_264_768
    assert plan.weight_bytes == pytest.approx(expected, abs=1)


def test_rule_bytes_are_bytes(published: Published) -> None:
    # vllm-project/vllm#10517 logs 14.9888 GiB (1024^3) for the loaded weights
    assert round(published("llama-3.1-8b").weight_bytes / 2**30, 2) == 14.96
    # kaito's catalogue: 232.99 GiB with the prediction layer that is not loaded
    assert published("qwen3.5-122b-a10b").weight_bytes < 232.99 * 2**30


def test_context_beyond_the_models_own_is_sized_and_said(published: Published) -> None:
    plan = published("llama-2-13b")
    assert plan.model_context_tokens == 2048
    assert plan.kv.total_bytes == 8192 * 819_200
    assert any("longer than the model's own of 2,048" in note for note in plan.notes)
    assert not any("longer than the model's own" in note for note in published("llama-3.1-8b").notes)

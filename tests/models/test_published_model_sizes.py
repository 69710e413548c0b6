"""Parameter counts and KV bytes per token of published configurations.

The numbers are those of the table that stands beside the configurations: counts of the reference class or of a paper,
KV bytes by hand; many of them confirmed by an independent public source. ``None``: the table gives no number.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from inferdoc.models import ModelSpec, read_spec

# file, parameters, KV bytes per token with a 16-bit cache
TABLE = [
    ("aya-23-8b", 8_028_033_024, 131_072),
    ("codellama-34b-instruct", 33_743_970_304, 196_608),
    ("deepseek-v2-lite", 15_706_484_224, 31_104),
    ("eagle3-draft-llama-3-8b", None, 4_096),
    ("eagle3-draft-qwen3-8b", None, 4_096),
    ("exaone-4.0-32b", 32_003_216_384, 262_144),
    ("falcon-7b", 6_921_720_704, 8_192),
    ("gemma-2-2b-it", 2_614_341_888, 106_496),
    ("gemma-2-9b-it", 9_241_705_984, 344_064),
    ("gemma-2b", 2_506_172_416, 18_432),
    ("gemma-3-1b-it", 999_885_952, 26_624),
    ("gemma-4-26b-a4b", 25_805_933_872, None),
    ("glm-5-fp8", 743_911_199_232, 89_856 + 78 * 132),
    ("gpt-bigcode-santacoder", 1_124_886_528, 12_288),
    ("gpt-j-6b", 6_050_882_784, 458_752),
    ("gpt-oss-20b", 20_914_757_184, 49_152),
    ("gpt2", 124_439_808, 36_864),
    ("internlm2.5-7b-chat", 7_737_708_544, 131_072),
    ("llama-2-13b", 13_015_864_320, 819_200),
    ("llama-2-70b", 68_976_648_192, 327_680),
    ("llama-2-7b", 6_738_415_616, 524_288),
    ("llama-3.1-8b", 8_030_261_248, 131_072),
    ("llama-3.1-8b-bnb-nf4", 8_030_261_248, 131_072),
    ("llama-3.2-1b-instruct", 1_235_814_400, 32_768),
    ("llama-3.2-3b-instruct", 3_212_749_824, 114_688),
    ("llama-4-maverick-17b-128e", 400_711_848_960, None),
    ("mimo-v2-flash", 308_778_768_832, 222_720),
    ("mistral-7b-v0.1", 7_241_732_096, 131_072),
    ("mixtral-8x22b", 140_620_634_112, 229_376),
    ("mixtral-8x7b", 46_702_792_704, 131_072),
    ("mpt-7b", 6_649_286_656, 524_288),
    ("nemotron-3-super-120b-a12b-nvfp4", 120_668_687_360, None),
    ("nemotron-h-56b-base", 56_324_350_464, 40_960),
    ("olmo-2-32b", 32_234_279_936, 262_144),
    ("olmo-2-7b", 7_298_617_344, 524_288),
    ("olmo-3.1-32b-instruct", 32_233_522_176, 262_144),
    ("phi-2-msft", 2_779_683_840, 327_680),
    ("phi-4-mini-instruct", 3_836_021_760, 131_072),
    ("phi-mini-moe-instruct", 7_647_632_704, 131_072),
    ("qwen2.5-3b-instruct", 3_085_938_688, 36_864),
    ("qwen2.5-7b-instruct", 7_615_616_512, 57_344),
    ("qwen2.5-7b-instruct-gptq-int4", 7_615_616_512, 57_344),
    ("qwen3-0.6b", 596_049_920, 114_688),
    ("qwen3-14b", 14_768_307_200, 163_840),
    ("qwen3-32b", 32_762_123_264, 262_144),
    ("qwen3-32b-fp8", 32_762_123_264, 262_144),
    ("qwen3-8b", 8_190_735_360, 147_456),
    ("qwen3-vl-8b-instruct", 8_767_123_696, 147_456),
    ("qwen3.5-122b-a10b", 122_562_817_776, 24_576),
    ("qwen3.5-27b", 27_356_728_560, 65_536),
    ("redpajama-incite-3b", 2_775_864_320, 327_680),
]
# A language part whose file has a shortened vision part: the table counts the language part only.
LANGUAGE_ONLY = {"llama-4-maverick-17b-128e"}


@cache
def spec_of(shared: Path, name: str) -> ModelSpec:
    return read_spec(str(shared / "model_configs" / f"{name}.json"))


@pytest.mark.parametrize(("name", "parameters"), [(name, count) for name, count, _ in TABLE if count is not None])
def test_parameter_count_equals_the_reference(shared: Path, name: str, parameters: int) -> None:
    spec = spec_of(shared, name)
    assert spec.parameters == parameters
    assert spec.parameters_exact
    if name in LANGUAGE_ONLY:
        assert any("language part only" in note for note in spec.notes)


@pytest.mark.parametrize(("name", "expected"), [(name, kv) for name, _, kv in TABLE if kv is not None])
def test_kv_bytes_per_token_equal_the_rule(shared: Path, name: str, expected: int) -> None:
    assert spec_of(shared, name).kv_bytes_per_token() == expected


def test_every_configuration_is_read(shared: Path) -> None:
    files = [path for path in (shared / "model_configs").glob("*.json") if "hf_quant_config" not in path.name]
    assert len(files) == 86
    for path in files:
        spec = spec_of(shared, path.stem)
        assert spec.parameters >= spec.active_parameters > 0
        assert spec.kv_bytes(1) > 0
        assert spec.weight_bytes() > 0
        assert spec.context_length is not None


@pytest.mark.parametrize(
    ("name", "vision"),
    [
        ("gemma-4-26b-a4b", 572_792_112),
        ("qwen3-vl-8b-instruct", 576_388_336),
        ("qwen3.5-122b-a10b", 451_290_864),
        ("qwen3.5-27b", 460_730_096),
    ],
)
def test_vision_part_is_counted_apart(shared: Path, name: str, vision: int) -> None:
    assert spec_of(shared, name).vision_parameters == vision


@pytest.mark.parametrize(
    ("name", "elements"),
    [("nemotron-h-56b-base", 230_916_096), ("qwen3.5-122b-a10b", 39_518_208), ("qwen3.5-27b", 39_714_816)],
)
def test_fixed_state_of_hybrids_in_elements(shared: Path, name: str, elements: int) -> None:
    assert spec_of(shared, name).state_elements_per_sequence == elements


@pytest.mark.parametrize(
    ("name", "full", "sliding", "window"),
    [
        ("gemma-2-2b-it", 13, 13, 4096),
        ("gemma-2-27b-it", 23, 23, 4096),
        ("gemma-3-1b-it", 4, 22, 512),
        ("gemma-3-27b-it", 10, 52, 1024),
        ("exaone-4.0-32b", 16, 48, 4096),
        ("olmo-3.1-32b-instruct", 16, 48, 4096),
        ("gpt-oss-20b", 12, 12, 128),
        ("mimo-v2-flash", 9, 39, 128),
        ("mistral-7b-v0.1", 0, 32, 4096),
        ("phi-mini-moe-instruct", 0, 32, 2047),
        ("starcoder2-7b", 0, 32, 4096),
        ("llama-4-scout-17b-16e", 12, 36, 8192),
        ("phi-3.5-mini-instruct", 32, 0, None),
        ("qwen2.5-3b-instruct", 36, 0, None),
        ("qwen1.5-moe-a2.7b", 24, 0, None),
    ],
)
def test_layers_slide_only_where_the_window_is_used(
    shared: Path, name: str, full: int, sliding: int, window: int | None
) -> None:
    layers = spec_of(shared, name).layers
    assert sum(layer.kind == "full" for layer in layers) == full
    assert sum(layer.kind == "sliding" for layer in layers) == sliding
    assert {layer.window for layer in layers if layer.kind == "sliding"} == ({window} if window else set())


@pytest.mark.parametrize(
    ("name", "attention", "without"),
    [
        ("llama-3.3-nemotron-super-49b", 49, 31),
        ("nemotron-h-56b-base", 10, 108),
        ("jamba-1.5-mini", 4, 28),
        ("granite-4.0-h-small", 4, 36),
        ("qwen3-next-80b-a3b-instruct", 12, 36),
    ],
)
def test_layers_without_attention_keep_no_keys(shared: Path, name: str, attention: int, without: int) -> None:
    layers = spec_of(shared, name).layers
    assert sum(layer.kv_heads > 0 for layer in layers) == attention
    assert sum(layer.kv_heads == 0 for layer in layers) == without


@pytest.mark.parametrize(
    ("name", "kv_heads"),
    [
        ("falcon-7b", 1),
        ("falcon-40b", 8),
        ("gpt-bigcode-santacoder", 1),
        ("chatglm3-6b", 2),
        ("phi-2-msft", 32),
        ("mpt-7b", 32),
        ("phi-4", 10),
        ("smollm-360m-instruct", 5),
    ],
)
def test_kv_heads_whatever_the_family_calls_them(shared: Path, name: str, kv_heads: int) -> None:
    assert {layer.kv_heads for layer in spec_of(shared, name).layers} == {kv_heads}


def test_gemma_4_layers_differ_in_heads_and_head_size(shared: Path) -> None:
    # 25 sliding layers: 8 heads of 256; 5 full layers: 2 heads of 512; keys and values, 2 bytes each
    spec = spec_of(shared, "gemma-4-26b-a4b")
    assert spec.kv_bytes_per_token() == 25 * 8 * 2 * 256 * 2 + 5 * 2 * 2 * 512 * 2


def test_block_configs_are_counted_by_formula_and_say_so(shared: Path) -> None:
    spec = spec_of(shared, "llama-3.3-nemotron-super-49b")
    assert not spec.parameters_exact
    assert any("estimate" in note for note in spec.notes)
    # the model card: 49.9 B
    assert 49.8e9 < spec.parameters < 49.95e9


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("aya-23-8b", True),
        ("gemma-2-2b-it", True),
        ("gpt2", True),
        ("falcon-7b", True),
        ("mpt-7b", True),
        ("llama-2-7b", False),
        ("mistral-7b-v0.1", False),
        ("qwen3-8b", False),
    ],
)
def test_absent_tie_setting_is_the_class_default(shared: Path, name: str, tied: bool) -> None:
    assert spec_of(shared, name).tied_embeddings is tied

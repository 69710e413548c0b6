"""KV bytes against numbers worked by hand; each test names the public report of the fault that it guards against."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from inferdoc.errors import ModelError
from inferdoc.models import ModelSpec, read_spec

GIB = 1024**3
SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


@cache
def published(shared: Path, name: str) -> ModelSpec:
    return read_spec(str(shared / "model_configs" / f"{name}.json"))


def test_head_size_is_taken_from_the_file_when_given() -> None:
    # NVIDIA/Model-Optimizer#2482: Mistral-Small-24B is 163,840 bytes a token, not 204,800 with hidden ÷ heads = 160
    config = {
        "model_type": "mistral",
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    assert ModelSpec.from_config(config, "mistral-small").kv_bytes_per_token() == 163_840


def test_head_size_is_derived_when_absent() -> None:
    # 2 layers x 2 heads x (16 + 16) x 2 bytes
    assert ModelSpec.from_config(SMALL, "small").kv_bytes_per_token() == 256


def test_latent_attention_has_no_factor_two_and_no_heads(shared: Path) -> None:
    # LMCache/LMCache#688
    spec = published(shared, "deepseek-v2-lite")
    assert spec.kv_bytes_per_token() == 27 * (512 + 64) * 2 == 31_104
    assert spec.kv_bytes_per_token(uncompressed=True) == 27 * 16 * (192 + 128) * 2 == 276_480
    assert spec.uses_latent_cache


def test_latent_cache_is_not_divided_over_ranks(shared: Path) -> None:
    assert published(shared, "deepseek-v2-lite").kv_bytes_per_token(tensor_parallel=8) == 31_104


@pytest.mark.parametrize(("ranks", "expected"), [(1, 262_144), (2, 131_072), (4, 65_536), (8, 32_768)])
def test_tensor_parallelism_divides_kv_heads(shared: Path, ranks: int, expected: int) -> None:
    # huggingface/transformers PR#48566
    assert published(shared, "qwen3-32b").kv_bytes_per_token(tensor_parallel=ranks) == expected


@pytest.mark.parametrize(("ranks", "expected"), [(1, 36_864), (2, 18_432), (4, 18_432), (8, 18_432)])
def test_fewer_heads_than_ranks_are_copied(shared: Path, ranks: int, expected: int) -> None:
    # tenstorrent/vllm PR#50
    assert published(shared, "qwen2.5-3b-instruct").kv_bytes_per_token(tensor_parallel=ranks) == expected


def test_heads_that_ranks_do_not_divide_are_rounded_up() -> None:
    spec = ModelSpec.from_config(SMALL | {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}, "six")
    assert spec.kv_bytes_per_token(tensor_parallel=2) == 2 * 2 * 32 * 2


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (512, 512 * 26 * 1_024),
        (513, 4 * 1_024 * 513 + 22 * 1_024 * 512),
        (8_192, 4 * 1_024 * 8_192 + 22 * 1_024 * 512),
    ],
)
def test_sliding_layers_keep_at_most_their_window(shared: Path, tokens: int, expected: int) -> None:
    assert published(shared, "gemma-3-1b-it").kv_bytes(tokens) == expected


def test_model_that_slides_everywhere_stops_growing(shared: Path) -> None:
    spec = published(shared, "mistral-7b-v0.1")
    assert spec.kv_bytes(4_096) == spec.kv_bytes(32_768) == 4_096 * 131_072


def test_chunked_layers_keep_at_most_their_chunk(shared: Path) -> None:
    # 12 full and 36 chunked layers of 8 heads x 128, chunks of 8,192
    layer = 8 * 2 * 128 * 2
    assert published(shared, "llama-4-scout-17b-16e").kv_bytes(10_000) == 12 * layer * 10_000 + 36 * layer * 8_192


def test_blocks_of_a_published_log_reproduce(shared: Path) -> None:
    # vllm-project/vllm#10517: 1,952 blocks of 16 tokens in 3.81 GiB
    size = published(shared, "llama-3.1-8b").kv_bytes(1_952 * 16)
    assert size == 1_952 * 16 * 131_072
    assert round(size / GIB, 2) == 3.81


@pytest.mark.parametrize(("name", "gib"), [("mixtral-8x7b", 32), ("llama-2-7b", 128)])
def test_paper_table_of_cache_sizes_reproduces(shared: Path, name: str, gib: int) -> None:
    # Jamba paper (arXiv 2403.19887), table 1: 256K tokens in 16 bits
    assert published(shared, name).kv_bytes(256 * 1024) == gib * GIB


def test_need_of_one_short_sequence_is_not_the_reservation() -> None:
    # vllm-project/vllm#33263: 1 x 1,024 tokens of Qwen3-1.7B need 112 MiB, whatever the pool reserves
    config = SMALL | {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    assert ModelSpec.from_config(config, "qwen3-1.7b").kv_bytes(1_024) == 112 * 1024**2


def test_draft_model_adds_its_own_cache(shared: Path) -> None:
    # sgl-project/sglang PR#23862
    target = published(shared, "qwen3-8b").kv_bytes_per_token()
    draft = published(shared, "eagle3-draft-qwen3-8b")
    assert target + draft.kv_bytes_per_token() == 151_552
    assert not draft.parameters_exact
    assert draft.parameters > 0


def test_similar_parameters_differ_eightfold_in_cache(shared: Path) -> None:
    # Osmantic/ODS#3324
    assert published(shared, "gpt-j-6b").kv_bytes_per_token() == 458_752
    assert published(shared, "qwen2.5-7b-instruct").kv_bytes_per_token() == 57_344


@pytest.mark.parametrize("tokens", [100, 4_000, 100_000])
def test_narrow_cache_halves_attention_but_not_state(shared: Path, tokens: int) -> None:
    # vllm-project/vllm#54704: fp8 does not double the tokens where layers keep a state
    plain = published(shared, "gpt-oss-20b")
    assert plain.kv_bytes(tokens) == 2 * plain.kv_bytes(tokens, dtype="fp8")
    hybrid = published(shared, "qwen3.5-27b")
    assert 1 < hybrid.kv_bytes(tokens) / hybrid.kv_bytes(tokens, dtype="fp8") < 2
    assert hybrid.kv_bytes(0, dtype="fp8") == hybrid.state_bytes_per_sequence


def test_recurrent_state_keeps_the_type_that_the_file_fixes(shared: Path) -> None:
    # 48 layers: convolution 10,240 channels x 4 in 16 bits, matrices 48 x 128 x 128 in float32
    spec = published(shared, "qwen3.5-27b")
    assert spec.state_bytes_per_sequence == 48 * (10_240 * 4 * 2 + 48 * 128 * 128 * 4)


def test_cache_of_the_model_type_when_none_is_named() -> None:
    spec = ModelSpec.from_config(SMALL | {"dtype": "float32"}, "small")
    assert spec.kv_bytes(1, dtype=None) == 512


def test_layers_that_share_a_cache_keep_nothing() -> None:
    config = SMALL | {"model_type": "llama", "num_hidden_layers": 4, "num_kv_shared_layers": 1}
    spec = ModelSpec.from_config(config, "shared")
    assert [layer.kind for layer in spec.layers] == ["full", "full", "full", "none"]
    assert spec.kv_bytes_per_token() == 3 * 128


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"dtype": "fp12"}, "fp12"), ({"tensor_parallel": 0}, "0 ranks")],
)
def test_senseless_questions_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ModelSpec.from_config(SMALL, "small").kv_bytes(1, **arguments)

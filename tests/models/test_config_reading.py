"""Reading a configuration: where values stand, what they are called, and what is said when they are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferdoc.errors import ModelError
from inferdoc.models import ModelSpec, read_spec


def test_directory_file_and_mapping_say_the_same(config_only: Path, llama_config: dict[str, Any]) -> None:
    from_directory = read_spec(str(config_only))
    from_file = read_spec(str(config_only / "config.json"))
    assert from_directory == from_file
    assert from_directory.name == "bare"
    assert from_directory.parameters == ModelSpec.from_config(llama_config, "x").parameters
    assert from_directory.parameters == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64 + 256 * 64


def test_bare_infinity_is_read(config_only: Path, llama_config: dict[str, Any]) -> None:
    text = json.dumps(llama_config | {"time_step_limit": [0.0, float("inf")]})
    assert "Infinity" in text
    (config_only / "config.json").write_text(text)
    assert read_spec(str(config_only)).parameters > 0


def test_sizes_may_be_nested(llama_config: dict[str, Any]) -> None:
    nested = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": llama_config}
    assert ModelSpec.from_config(nested, "nested").kv_bytes_per_token() == 2 * 2 * 32 * 2


def test_old_type_key_is_read(llama_config: dict[str, Any]) -> None:
    del llama_config["dtype"]
    assert ModelSpec.from_config(llama_config | {"torch_dtype": "torch.float16"}, "old").dtype == "float16"


def test_type_comes_from_the_stored_tensors_when_the_file_names_none(saved_llama: Path) -> None:
    path = saved_llama / "config.json"
    config = json.loads(path.read_text())
    config.pop("dtype", None)
    config.pop("torch_dtype", None)
    path.write_text(json.dumps(config))
    spec = read_spec(str(saved_llama))
    assert spec.dtype == "bfloat16"
    assert not any("names no type" in note for note in spec.notes)


def test_unknown_family_is_counted_by_formula_and_marked(llama_config: dict[str, Any]) -> None:
    exact = ModelSpec.from_config(llama_config, "known")
    config = llama_config | {"model_type": "novel", "architectures": ["NovelForCausalLM"]}
    spec = ModelSpec.from_config(config, "novel")
    assert spec.parameters == exact.parameters  # the Llama shape is what the formula counts
    assert not spec.parameters_exact
    assert spec.unsupported is not None


def test_unknown_mixture_counts_every_expert(llama_config: dict[str, Any]) -> None:
    plain = llama_config | {"model_type": "novel"}
    mixed = plain | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    more = ModelSpec.from_config(mixed, "mixed").parameters - ModelSpec.from_config(plain, "plain").parameters
    assert more == 2 * 3 * (3 * 64 * 128)
    spec = ModelSpec.from_config(mixed, "mixed")
    assert spec.parameters - spec.active_parameters == 2 * 2 * (3 * 64 * 128)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{\n  'single': quotes}", r"config\.json:2: not JSON"),
        ("[1, 2]", "a JSON object is needed"),
        ("", r"config\.json:1: not JSON"),
        ("{}", "num_hidden_layers and hidden_size"),
        ('{"model_type": "llama"}', "sizes cannot be guessed"),
    ],
)
def test_bad_files_give_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_spec(str(tmp_path))


def test_binary_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ModelError, match="cannot be read"):
        read_spec(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"num_attention_heads": -4}, "num_attention_heads is -4"),
        ({"layer_types": ["full_attention", "novel_attention"]}, "novel_attention"),
        ({"hybrid_override_pattern": "M?"}, r"holds '\?'"),
        ({"linear_attn_config": {"kda_layers": [1]}}, "linear_attn_config"),
        ({"layer_types": ["full_attention", "mamba"]}, "cannot be sized"),
    ],
)
def test_senseless_or_unknown_values_are_named(
    llama_config: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        ModelSpec.from_config(llama_config | change, "odd")


def test_directory_without_a_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json here"):
        read_spec(str(tmp_path))


def test_directory_with_a_gguf_names_the_flag(tmp_path: Path) -> None:
    (tmp_path / "some.Q4_1.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"--gguf-file some\.Q4_1\.gguf"):
        read_spec(str(tmp_path))


def test_damaged_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"no magic here")
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        read_spec(str(tmp_path / "broken.gguf"))


def test_missing_gguf_names_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"no file b\.gguf; it holds a\.gguf"):
        read_spec(str(tmp_path), gguf_file="b.gguf")


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "some/where/else/deep", "config.json", "x.gguf"])
def test_missing_paths_are_not_taken_for_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="no such"):
        read_spec(name)


def test_hub_id_without_network_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"some-org/some-model: no directory .* hub cannot be reached .* directory"):
        read_spec("some-org/some-model")


def test_unresolvable_hub_is_asked_only_for_its_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError("name or service not known")

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.getaddrinfo", fail)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="cannot be reached"):
        read_spec("some-org/some-model")


def test_companion_beside_config_is_read(config_only: Path) -> None:
    (config_only / "hf_quant_config.json").write_text(
        json.dumps(
            {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
        )
    )
    spec = read_spec(str(config_only))
    assert (spec.quantization, spec.kv_dtype) == ("fp8", "fp8")


@pytest.mark.parametrize(
    ("change", "sliding"),
    [
        ({"sliding_window": 32}, 2),
        ({"sliding_window": 128}, 0),
        ({"sliding_window": None}, 0),
        ({"sliding_window": 32, "use_sliding_window": False}, 0),
    ],
)
def test_window_counts_only_below_the_context_and_when_used(
    llama_config: dict[str, Any], change: dict[str, Any], sliding: int
) -> None:
    spec = ModelSpec.from_config(llama_config | {"model_type": "mistral"} | change, "windowed")
    assert sum(layer.kind == "sliding" for layer in spec.layers) == sliding


def test_first_layers_stay_full_with_max_window_layers(llama_config: dict[str, Any]) -> None:
    change = {"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1}
    spec = ModelSpec.from_config(llama_config | change, "qwen")
    assert [layer.kind for layer in spec.layers] == ["full", "sliding"]

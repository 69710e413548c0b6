"""Loading: trained weights, random weights, types, ends, tokenizers, and everything that can be missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferdoc.errors import ModelError
from inferdoc.models import load_model


def test_directory_is_loaded_as_float32_on_a_cpu_and_says_why(saved_llama: Path) -> None:
    loaded = load_model(saved_llama)
    assert loaded.dtype == "float32"
    assert loaded.trained
    assert loaded.tokenizer is None
    assert loaded.eos_token_ids == (3, 5)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert any("loaded as float32" in note for note in loaded.spec.notes)
    assert any("no tokenizer" in note for note in loaded.spec.notes)
    stored = load_file(saved_llama / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(loaded.model.get_input_embeddings().weight, stored.float())


def test_named_type_is_used(saved_llama: Path) -> None:
    assert load_model(saved_llama, dtype="bfloat16").dtype == "bfloat16"
    assert load_model(saved_llama, dtype="float64").dtype == "float64"


def test_rotary_frequencies_stay_float32_in_16_bits(saved_llama: Path) -> None:
    exact = load_model(saved_llama, dtype="float32").model
    for load_format in ("auto", "dummy"):
        narrow = load_model(saved_llama, dtype="bfloat16", load_format=load_format).model
        assert torch.equal(narrow.model.rotary_emb.inv_freq, exact.model.rotary_emb.inv_freq)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_measured_weights_equal_the_sized_ones_with_the_tied_head_once(saved_llama: Path, dtype: str) -> None:
    loaded = load_model(saved_llama, dtype=dtype)
    assert loaded.weight_bytes_measured == loaded.spec.weight_bytes(dtype)
    size = 4 if dtype == "float32" else 2
    assert loaded.weight_bytes_measured == size * (
        2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64 + 256 * 64
    )


def test_untied_head_is_measured_on_its_own(config_only: Path, llama_config: dict[str, Any]) -> None:
    tied = load_model(config_only, load_format="dummy").weight_bytes_measured
    (config_only / "config.json").write_text(json.dumps(llama_config | {"tie_word_embeddings": False}))
    untied = load_model(config_only, load_format="dummy").weight_bytes_measured
    assert untied - tied == 256 * 64 * 4


def test_random_weights_repeat_by_seed_and_differ_between_seeds(config_only: Path) -> None:
    first, again, other = (load_model(config_only, load_format="dummy", seed=seed).model for seed in (1, 1, 2))
    tokens = torch.arange(8)[None]
    assert torch.equal(first(tokens).logits, again(tokens).logits)
    assert not torch.allclose(first(tokens).logits, other(tokens).logits)


def test_random_weights_leave_the_global_generator_alone(config_only: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load_model(config_only, load_format="dummy")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("tied", [True, False])
def test_random_outputs_vary(config_only: Path, llama_config: dict[str, Any], tied: bool) -> None:
    # a model that repeats one token would match any other by luck
    (config_only / "config.json").write_text(json.dumps(llama_config | {"tie_word_embeddings": tied}))
    loaded = load_model(config_only, load_format="dummy", seed=3)
    assert not loaded.trained
    tokens = torch.tensor([[11, 7, 99]])
    for _ in range(24):
        tokens = torch.cat([tokens, loaded.model(tokens).logits[:, -1:].argmax(-1)], dim=1)
    assert len(set(tokens[0, 3:].tolist())) >= 6


def test_dummy_runs_from_a_config_file_of_any_name(tmp_path: Path, llama_config: dict[str, Any]) -> None:
    path = tmp_path / "my-model.json"
    path.write_text(json.dumps(llama_config | {"quantization_config": {"quant_method": "fp8"}}))
    loaded = load_model(path, load_format="dummy")
    assert loaded.spec.name == "my-model"
    assert loaded.load_format == "dummy"


def test_own_attention_is_asked_for(saved_llama: Path) -> None:
    assert load_model(saved_llama, attn_implementation="eager").model.config._attn_implementation == "eager"


def test_tokenizer_beside_the_weights_is_loaded(saved_llama: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(saved_llama)
    loaded = load_model(saved_llama)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode("b") == [1]


def test_directory_without_weights_names_dummy(config_only: Path) -> None:
    with pytest.raises(ModelError, match=r"no weights here .*--load-format dummy"):
        load_model(config_only)


def test_missing_tensor_is_refused_not_filled_with_noise(saved_llama: Path) -> None:
    path = saved_llama / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 tensors .*layers\.1\.mlp\.up_proj"):
        load_model(saved_llama)


def test_weights_of_another_shape_are_refused(saved_llama: Path) -> None:
    path = saved_llama / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 256}))
    with pytest.raises(ModelError, match="cannot load it"):
        load_model(saved_llama)


def test_damaged_weights_are_refused(saved_llama: Path) -> None:
    (saved_llama / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelError, match="safetensors"):
        load_model(saved_llama)


def test_unknown_type_is_refused(saved_llama: Path) -> None:
    with pytest.raises(ModelError, match="--dtype int7"):
        load_model(saved_llama, dtype="int7")


def test_code_beside_the_weights_is_not_run_unless_allowed(saved_llama: Path) -> None:
    (saved_llama / "own.py").write_text("raise SystemExit('it ran')\n")
    path = saved_llama / "config.json"
    changed = {"model_type": "own_kind", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ModelError, match="trust"):
        load_model(saved_llama)


def test_allowed_code_that_fails_is_one_error(saved_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(saved_llama / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path])
    (saved_llama / "own.py").write_text("raise ValueError('broken on purpose')\n")
    path = saved_llama / "config.json"
    changed = {"model_type": "own_kind", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ModelError, match="broken on purpose"):
        load_model(saved_llama, trust_remote_code=True)


def test_loading_keeps_quiet(saved_llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(saved_llama)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""

"""Checkpoints that are quantized already: what loads, what does not and why, and that nothing is quantized twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, TorchAoConfig

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.quantize import quantized_by
from inferdoc.engine.runner import ModelRunner
from inferdoc.errors import InputError, ModelError
from inferdoc.models.loading import load_model, measure_weights

PLAIN = EngineConfig(max_model_len=32, num_kv_blocks=8)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


def declare(folder: Path, block: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": block}))


@pytest.mark.parametrize(("block", "needed"), [
    ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "optimum"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "gptqmodel"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes"),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, "compressed-tensors"),
], ids=lambda value: value["quant_method"] if isinstance(value, dict) else "")  # fmt: skip
def test_what_needs_another_package_says_which(saved, block, needed):
    declare(saved, block)
    with pytest.raises(ModelError, match=f"transformers cannot load it: .*{needed}"):
        load_model(saved)


@pytest.fixture
def fp8(saved: Path) -> Path:
    """Blocks of 128 x 128 with a scale each, as DeepSeek and Qwen publish them."""
    tensors = load_file(saved / "model.safetensors")
    for name in [name for name in tensors if "proj" in name]:
        weight = tensors[name].float()
        scales = torch.empty(-(-weight.shape[0] // 128), -(-weight.shape[1] // 128))
        scales.fill_(float(weight.abs().max()) / 448)
        tensors[name] = (weight / scales[0, 0]).to(torch.float8_e4m3fn)
        tensors[name.replace("weight", "weight_scale_inv")] = scales
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    declare(saved, {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"})
    return saved


@pytest.mark.skipif(torch.cuda.is_available(), reason="a card may run them as they are")
def test_fp8_blocks_are_dequantized_where_there_is_no_card_and_it_is_said(saved, fp8):
    loaded = load_model(fp8)
    weight = loaded.model.model.layers[0].mlp.up_proj.weight
    stored = load_file(fp8 / "model.safetensors")
    expected = stored["model.layers.0.mlp.up_proj.weight"].float()
    expected *= stored["model.layers.0.mlp.up_proj.weight_scale_inv"][0, 0]
    torch.testing.assert_close(weight.float(), expected, rtol=2**-8, atol=0)
    (note,) = [note for note in loaded.spec.notes if "dequantized" in note]
    assert "fp8 (blocks of 128 x 128)" in note
    assert "those of float32 weights" in note
    runner = ModelRunner(loaded.model, PLAIN.kv_tokens)
    with pytest.raises(InputError, match=r"already quantized by fp8 \(blocks of 128 x 128\); weights=native measures"):
        runner.configure(replace(PLAIN, weights="int8_dynamic"))
    runner.configure(replace(PLAIN, enable_fusion=True))
    assert runner._probe().isfinite().all()


@pytest.fixture
def by_torchao(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from torchao.quantization import Int8WeightOnlyConfig

    scheme = TorchAoConfig(Int8WeightOnlyConfig(set_inductor_config=False))
    model = LlamaForCausalLM.from_pretrained(saved, quantization_config=scheme, dtype=torch.bfloat16)
    folder = tmp_path_factory.mktemp("torchao")
    model.save_pretrained(folder)
    return folder


def test_a_checkpoint_of_torchao_runs_as_it_is(saved, by_torchao):
    loaded = load_model(by_torchao, dtype="bfloat16")
    native = load_model(saved, dtype="bfloat16")
    linear = sum(m.weight.numel() for m in native.model.model.modules() if isinstance(m, nn.Linear))
    rows = sum(m.out_features for m in native.model.model.modules() if isinstance(m, nn.Linear))
    saving = measure_weights(native.model) - loaded.weight_bytes_measured
    assert linear - 5 * rows == saving, "a byte a weight; a float32 scale and an int8 zero point a row"
    runner = ModelRunner(loaded.model, PLAIN.kv_tokens)
    runner.configure(replace(PLAIN, enable_fusion=True))
    expected = ModelRunner(native.model, PLAIN.kv_tokens)._probe(8, 8).float()
    difference = (runner._probe(8, 8).float() - expected).norm() / expected.norm()
    assert 1e-4 < difference < 0.05
    with pytest.raises(InputError, match="already quantized by torchao"):
        runner.configure(replace(PLAIN, weights="fp8_weight_only"))


def test_random_weights_of_a_quantized_configuration_are_plain(saved):
    declare(saved, {"quant_method": "gptq", "bits": 4, "group_size": 128})
    loaded = load_model(saved, load_format="dummy")
    assert quantized_by(loaded.model) is None
    runner = ModelRunner(loaded.model, PLAIN.kv_tokens)
    runner.configure(replace(PLAIN, weights="int8_dynamic"))
    assert runner.weight_kernels[0].fused

"""Stored weights: one copy counts, the rest is listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inferdoc.errors import ModelError
from inferdoc.models import checkpoint_bytes


def test_only_files_of_the_index_count(tmp_path: Path) -> None:
    # kaito-project/kaito: gpt-oss folders hold the weights twice, and the total was taken for the size
    weights = {"a": torch.zeros(10, 10, dtype=torch.bfloat16), "b": torch.zeros(7, dtype=torch.float32)}
    save_file(weights, tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / "original").mkdir()
    save_file(weights, tmp_path / "original" / "model.safetensors")
    save_file(weights, tmp_path / "consolidated.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors", "b": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = checkpoint_bytes(tmp_path)
    assert found.tensor_bytes == 10 * 10 * 2 + 7 * 4
    assert found.files == ("model-00001-of-00001.safetensors",)
    assert found.ignored == ("consolidated.safetensors", "original/model.safetensors")
    assert found.dtype == "bfloat16"


def test_shards_add_up(tmp_path: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for position, name in enumerate(names):
        save_file({f"t{position}": torch.zeros(8, dtype=torch.float16)}, tmp_path / name)
    index = {"weight_map": {"t0": names[0], "t1": names[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert checkpoint_bytes(tmp_path).tensor_bytes == 32


def test_missing_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"t0": "model-00001-of-00002.safetensors", "t1": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"t0": torch.zeros(8)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors, which is not there \(1 missing"):
        checkpoint_bytes(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x10\x00\x00\x00\x00\x00\x00\x00{cut", b"\xff" * 64])
def test_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="not a safetensors file"):
        checkpoint_bytes(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_damaged_index_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match="not an index"):
        checkpoint_bytes(tmp_path)


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no safetensors weights"):
        checkpoint_bytes(tmp_path)

"""Which weights a model has: the same ones give the same revision, others another one."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferdoc.errors import ModelError
from inferdoc.models import EMBEDDED, Source, find_source, model_revision

MIB = 1024**2
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def revision(model: str | Path, **arguments: Any) -> str | None:
    return model_revision(find_source(model), **arguments)


def change_byte(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(1)[0]
        file.seek(place)
        file.write(bytes([old ^ 1]))


def test_folder_does_not_count_and_one_weight_does(saved_llama: Path, tmp_path: Path) -> None:
    first = revision(saved_llama)
    assert first is not None
    assert re.fullmatch(r"sha256:[0-9a-f]{12}", first)
    other = shutil.copytree(saved_llama, tmp_path / "renamed")
    assert revision(other) == first
    path = other / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.mlp.up_proj.weight"][5, 7] += 1
    save_file(weights, path, metadata={"format": "pt"})
    assert revision(other) != first


def test_configuration_counts_and_its_spelling_does_not(saved_llama: Path) -> None:
    path = saved_llama / "config.json"
    first, config = revision(saved_llama), json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(config.items())), indent=1).replace("\n", "\r\n"))
    assert revision(saved_llama) == first
    path.write_text(json.dumps(config | {"rope_theta": 1e6}))
    assert revision(saved_llama) != first


def test_quantization_beside_the_configuration_counts(saved_llama: Path) -> None:
    first = revision(saved_llama)
    (saved_llama / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert revision(saved_llama) != first


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        (0, True),
        (MIB - 1, True),
        (MIB, False),
        (4 * MIB - 1, False),
        (4 * MIB, True),
        (5 * MIB - 1, True),
        (5 * MIB, False),
        (8 * MIB - 1, False),
        (8 * MIB, True),
        (9 * MIB - 1, True),
    ],
)
def test_first_middle_and_last_mebibyte_of_a_large_file_are_read(tmp_path: Path, place: int, seen: bool) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(bytes(9 * MIB))
    source = Source("large", str(tmp_path), tmp_path, path.name, {}, None)
    first = model_revision(source)
    change_byte(path, place)
    assert (model_revision(source) != first) is seen


@pytest.mark.parametrize("place", [0, MIB, 2 * MIB + 17, 3 * MIB - 1])
def test_a_file_of_three_mebibytes_is_read_whole(tmp_path: Path, place: int) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(bytes(3 * MIB))
    source = Source("small", str(tmp_path), tmp_path, path.name, {}, None)
    first = model_revision(source)
    change_byte(path, place)
    assert model_revision(source) != first


def test_size_counts_where_the_samples_are_alike(tmp_path: Path) -> None:
    path = tmp_path / "zeros.gguf"
    source = Source("zeros", str(tmp_path), tmp_path, path.name, {}, None)
    path.write_bytes(bytes(9 * MIB))
    first = model_revision(source)
    path.write_bytes(bytes(9 * MIB + 1))
    assert model_revision(source) != first


def test_every_shard_and_its_order_count(tmp_path: Path, llama_config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config))
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for value, name in enumerate(names):
        save_file({f"t{value}": torch.full((4,), float(value))}, tmp_path / name)
    index = {"weight_map": {"t0": names[0], "t1": names[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    first = revision(tmp_path)
    (tmp_path / names[0]).rename(tmp_path / "kept")
    (tmp_path / names[1]).rename(tmp_path / names[0])
    (tmp_path / "kept").rename(tmp_path / names[1])
    assert revision(tmp_path) != first


def test_weights_of_torch_count_where_there_are_no_others(config_only: Path) -> None:
    first = revision(config_only)
    path = config_only / "pytorch_model.bin"
    path.write_bytes(bytes(100))
    second = revision(config_only)
    change_byte(path, 50)
    assert len({first, second, revision(config_only)}) == 3


def test_random_weights_are_the_configuration_and_the_seed(config_only: Path, saved_llama: Path) -> None:
    bare = config_only / "config.json"
    drawn = revision(bare, load_format="dummy", seed=1)
    assert drawn is not None
    assert drawn == revision(config_only, load_format="dummy", seed=1)
    assert drawn != revision(bare, load_format="dummy", seed=2)
    assert drawn != revision(bare)
    stored = revision(saved_llama, load_format="dummy")
    change_byte(saved_llama / "model.safetensors", 500)
    assert revision(saved_llama, load_format="dummy") == stored  # its weights are not loaded


def test_snapshot_of_the_hubs_cache_is_its_commit(saved_llama: Path, tmp_path: Path) -> None:
    place = tmp_path / "hub" / "models--someone--llama" / "snapshots" / COMMIT
    shutil.copytree(saved_llama, place)
    assert revision(place) == COMMIT
    assert str(revision(place, load_format="dummy")).startswith("sha256:")
    linked = tmp_path / "link"
    linked.symlink_to(place)
    assert revision(linked) == COMMIT
    file = Source("q4", str(place), place, "model-q4.gguf", {}, None)
    assert model_revision(file) == f"{COMMIT}/model-q4.gguf"


def test_hub_id_is_the_commit_in_the_cache(
    llama_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--someone--llama"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots" / COMMIT).mkdir(parents=True)
    (repository / "snapshots" / COMMIT / "config.json").write_text(json.dumps(llama_config))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    source = Source("someone/llama", "someone/llama", None, None, llama_config, None)
    assert model_revision(source) == COMMIT
    absent = Source("someone/other", "someone/other", None, None, llama_config, None)
    assert model_revision(absent) is None


def test_unreadable_weights_are_an_error(tmp_path: Path) -> None:
    source = Source("gone", str(tmp_path), tmp_path, "gone.gguf", {}, None)
    with pytest.raises(ModelError, match=r"gone\.gguf: cannot be read"):
        model_revision(source)


def test_the_embedded_model_costs_a_moment(tmp_path: Path) -> None:
    source = find_source(EMBEDDED)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        found = model_revision(source)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.2
    assert source.directory is not None
    assert revision(shutil.copytree(source.directory, tmp_path / "copy")) == found

"""Configurations that were damaged: one clear error each, or a plan that says what it rests on."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from inferdoc.devices.cards import find_card_spec
from inferdoc.errors import ModelError
from inferdoc.models import ModelSpec
from inferdoc.models.planning import estimate

Call = Callable[..., tuple[int, str, str]]
BAD = [None, True, 0, -1, 1, 3, 1.5, float("inf"), float("nan"), 10**12, 10**400, "", "x", "4", "re:(", "int4"]
BAD += [[], [0, 0], [1], ["a"], [None], {}, {"a": 1}, {"weights": "x"}, [[[[[]]]]]]
BLOCKS: list[dict[str, Any]] = [
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:.*mlp.*": {"bits": 8}}},
    {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
    {
        "quant_method": "compressed-tensors",
        "config_groups": {"a": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "group_size": 16}}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"num_bits": 8},
    },
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
    {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}},
    },
]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every key of `value`, and of the first entry of each list."""
    items = value.items() if isinstance(value, dict) else [(0, value[0])] if isinstance(value, list) and value else []
    return [path for key, inner in items for path in ((*at, key), *places(inner, (*at, key)))]


@pytest.fixture(scope="module")
def configs(shared: Path) -> list[dict[str, Any]]:
    files = sorted((shared / "model_configs").glob("*.json"))
    return [json.loads(path.read_text()) for path in files if not path.name.endswith("hf_quant_config.json")]


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_damaged_configurations_give_a_plan_or_a_model_error(
    configs: list[dict[str, Any]], data: st.DataObject
) -> None:
    config = copy.deepcopy(data.draw(st.sampled_from(configs)))
    if data.draw(st.booleans()):
        config["quantization_config"] = copy.deepcopy(data.draw(st.sampled_from(BLOCKS)))
    for _ in range(data.draw(st.integers(1, 3))):
        *above, key = data.draw(st.sampled_from(places(config)))
        part: Any = config
        for step in above:
            part = part[step]
        if isinstance(part, dict) and data.draw(st.integers(0, 3)) == 0:
            del part[key]
        else:
            part[key] = copy.deepcopy(data.draw(st.sampled_from(BAD)))
    refused = None
    try:
        plan = estimate(ModelSpec.from_config(config, "mine"), find_card_spec("h200_sxm"), 8192)
    except ModelError as error:
        refused = str(error)
    if refused is not None:
        assert refused.startswith("mine: ")
        assert len(refused) < 1000
        return
    assert plan.weight_bytes > 0
    assert min(plan.kv.growing_bytes, plan.kv.windowed_bytes, plan.kv.fixed_bytes, plan.kv.index_bytes) >= 0
    json.dumps(plan.model_dump(mode="json"), allow_nan=False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' * 200 + "1" + "}" * 200, "nested too deeply"),
        ('{"hidden_size": 1' + "0" * 400 + ', "num_hidden_layers": 2}', "hidden_size is 1000"),
        ('{"hidden_size": 1' + "0" * 5000 + ', "num_hidden_layers": 2}', "cannot be read"),
        ('{"hidden_size": 64, "num_hidden_layers": 2, "vision_config": {"depth": 1000000}}', "depth is 1000000"),
        ('{"hidden_size": 64, "num_hidden_layers": 2, "quantization_config": {"bits": "re:"}}', "does not say"),
    ],
)
def test_one_bad_file_is_one_entry_of_a_list(
    call: Call, small_config: dict[str, Any], tmp_path: Path, text: str, reason: str
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(small_config))
    bad.write_text(text)
    code, out, _ = call(str(bad), str(good), "--gpu", "l4", "--context", "64", "--json")
    assert code == 0
    entries = json.loads(out)["models"]
    assert reason in entries[0]["reason"]
    assert "bad" in entries[0]["reason"]
    assert entries[1]["plan"]["weight_bytes"] == 2 * 90_432


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_types": 1}, "LlamaConfig refuses layer_types 1: "),
        ({"model_type": "novel"}, "transformers does not know this class"),
        ({"hidden_act": "novel_act"}, "its class cannot be built from it: .*novel_act"),
    ],
)
def test_what_a_class_refuses_is_said(small_config: dict[str, Any], change: dict[str, Any], said: str) -> None:
    spec = ModelSpec.from_config(small_config | change, "mine")
    assert not spec.parameters_exact
    (note,) = [note for note in spec.notes if "estimate by formula" in note]
    assert re.search(said, note)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("vocab_size", "vocab_size 32,000"),
        ("intermediate_size", "intermediate_size 11,008"),
        ("num_attention_heads", "num_attention_heads 32"),
        ("num_key_value_heads", r"num_key_value_heads 4 (one for each head)"),
    ],
)
def test_sizes_that_a_class_fills_in_are_said(small_config: dict[str, Any], name: str, taken: str) -> None:
    del small_config[name]
    spec = ModelSpec.from_config(small_config, "mine")
    assert not spec.parameters_exact
    assert any(taken in note and "LlamaConfig" in note for note in spec.notes)


def test_width_that_no_class_fills_in_is_said(small_config: dict[str, Any]) -> None:
    del small_config["intermediate_size"]
    spec = ModelSpec.from_config(small_config | {"model_type": "novel"}, "mine")
    assert any("4 × hidden size, 256, is taken" in note for note in spec.notes)


@pytest.mark.parametrize(
    ("block", "ranks"),
    [
        (None, {1, 2, 4}),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, {1, 2}),  # 256 / 4 = 64 cuts a group of 128
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {1, 2}),
        ({"quant_method": "fp8"}, {1, 2, 4}),
    ],
)
def test_ranks_that_blocks_of_scales_allow(
    small_config: dict[str, Any], block: dict[str, Any] | None, ranks: set[int]
) -> None:
    change = {"num_hidden_layers": 4, "intermediate_size": 256, "head_dim": 128, "quantization_config": block}
    spec = ModelSpec.from_config(small_config | change, "mine")
    plan = estimate(spec, find_card_spec("l4"), 64, gpus=4)
    assert {split.tensor_parallel for split in plan.splits} == ranks
    assert any("256 / 4 = 64 is no multiple" in note for note in plan.notes) == (4 not in ranks)

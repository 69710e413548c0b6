"""``inferdoc plan`` as a user meets it: the table, the JSON, bad input."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inferdoc.models.listing import PlanReport
from inferdoc.reports.plan_table import print_plans
from inferdoc.reports.terminal import make_console

Call = Callable[..., tuple[int, str, str]]


def shown(report: PlanReport, columns: int, encoding: str = "utf-8") -> str:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding, errors="strict")
    print_plans(report, make_console(stream, {"COLUMNS": str(columns)}))
    stream.flush()
    return buffer.getvalue().decode(encoding)


def write(path: Path, config: dict[str, Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config))
    return str(path)


def no_constant(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize("columns", [40, 80, 108, 120, 200])
def test_table_of_all_published_models_folds_and_loses_nothing(listing: PlanReport, columns: int) -> None:
    text = shown(listing, columns)
    assert max(len(line) for line in text.splitlines()) <= columns
    squeezed = "".join(text.split())
    for entry in listing.models:
        assert entry.plan is not None
        assert entry.plan.split is not None
        if columns not in (108, 120):  # there a long name and a number fold beside each other
            assert entry.plan.model in squeezed
            assert f"{entry.plan.split.kv_tokens:,}" in squeezed
    assert "qwen3-8b" in squeezed
    assert f"{listing.models[6].plan.split.kv_tokens:,}" in squeezed  # type: ignore[union-attr]
    assert "modelled" in squeezed
    assert "cannotbesized" not in squeezed


def test_row_of_a_model_holds_its_numbers(listing: PlanReport) -> None:
    row = next(line for line in shown(listing, 120).splitlines() if line.startswith("qwen3-8b "))
    # 8.19 B parameters; 15.3 GiB in 16 bits; KV of 8,192 tokens at 147,456 B: 1,152 MiB; one card
    assert row.split()[:9] == ["qwen3-8b", "8.19", "8.19", "15.3", "15.3", "8.79", "5.68", "1,152", "1"]


def test_estimates_are_marked(listing: PlanReport) -> None:
    row = next(line for line in shown(listing, 120).splitlines() if line.startswith("llama-3.3-nemotron"))
    assert "~49.9" in row


def test_ascii_terminal_gets_every_glyph(listing: PlanReport) -> None:
    assert "TP2 x PP3" in shown(listing, 120, encoding="ascii")


def test_single_model_with_its_splits(call: Call, small_config: dict[str, Any], tmp_path: Path) -> None:
    code, out, err = call(
        write(tmp_path / "small.json", small_config), "--gpu", "l4", "--context", "100", "--gpus", "2"
    )
    assert code == 0, err
    assert err == ""
    assert "SPLITS" in out
    assert "2 TP2" in out
    assert "2 PP2" in out


def test_json_is_stable_sorted_and_strict(call: Call, small_config: dict[str, Any], tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a.json", small_config | {"time_step_limit": [0, float("inf")]}),
        write(tmp_path / "b.json", small_config | {"dtype": "float32"}),
        str(tmp_path / "absent.json"),
    ]
    results = [call(*files, "--gpu", "h200_sxm", "--context", "64", "--json") for _ in range(2)]
    assert results[0] == results[1]
    code, out, err = results[0]
    assert (code, err) == (0, "")
    report = json.loads(out, parse_constant=no_constant)
    assert out == json.dumps(report, indent=1, sort_keys=True) + "\n"
    assert report["schema"] == {"name": "inferdoc.plan", "version": "1.1"}
    assert report["settings"]["context_tokens"] == 64
    assert report["card"]["memory_bytes"] == 143_771 * 2**20
    plan = report["models"][0]["plan"]
    assert plan["weight_bytes"] == 180_864
    assert plan["kv"] == {
        "bytes_per_token": 256,
        "fixed_bytes": 0,
        "growing_bytes": 16_384,
        "index_bytes": 0,
        "total_bytes": 16_384,
        "windowed_bytes": 0,
    }
    assert report["basis"]["activations"] == "modelled"
    assert report["models"][1]["plan"]["weight_bytes"] == 2 * 180_864
    assert report["models"][2]["plan"] is None
    assert "absent.json" in report["models"][2]["reason"]


def test_listing_goes_on_past_a_file_that_cannot_be_sized(
    call: Call, small_config: dict[str, Any], tmp_path: Path
) -> None:
    good = write(tmp_path / "good.json", small_config)
    broken = tmp_path / "broken.json"
    broken.write_text('{"model_type": "llama",\n oops}')
    missing = write(tmp_path / "missing.json", {"model_type": "llama", "hidden_size": 64})
    code, out, _ = call(good, str(broken), missing, "--gpu", "l4", "--context", "64")
    assert code == 0
    squeezed = "".join(out.split())
    assert squeezed.count("cannotbesized") == 2
    assert "broken.json:2:notJSON" in squeezed
    assert "doesnotsaynum_hidden_layers" in squeezed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama"', "only.json:1: not JSON"),
        ("[]", "a JSON object is needed"),
        ('{"model_type": "llama", "hidden_size": 64}', "does not say num_hidden_layers"),
        ('{"model_type": "llama", "hidden_size": Infinity, "num_hidden_layers": 2}', "hidden_size is inf"),
    ],
)
def test_single_file_that_cannot_be_sized_is_an_error(call: Call, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "only.json").write_text(text)
    code, out, err = call(str(tmp_path / "only.json"), "--gpu", "l4")
    assert (code, out) == (2, "")
    assert message in err


def test_folder_without_a_config_says_so(call: Call, tmp_path: Path) -> None:
    code, _, err = call(str(tmp_path), "--gpu", "l4")
    assert code == 2
    assert "no config.json here" in err


def test_companion_alone_is_an_error_and_among_others_skipped(
    call: Call, small_config: dict[str, Any], tmp_path: Path
) -> None:
    model = write(tmp_path / "model.json", small_config)
    companion = write(
        tmp_path / "model.hf_quant_config.json",
        {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
    )
    code, out, err = call(companion, "--gpu", "l4")
    assert (code, out) == (2, "")
    assert "give the config.json that stands beside it" in err
    code, out, err = call(model, companion, "--gpu", "l4", "--context", "64", "--json")
    assert code == 0
    report = json.loads(out)
    assert [entry["plan"]["quantization"] for entry in report["models"]] == ["fp8"]
    assert len(report["skipped"]) == 1


def test_context_beyond_the_models_own_is_a_note(call: Call, small_config: dict[str, Any], tmp_path: Path) -> None:
    code, out, _ = call(write(tmp_path / "short.json", small_config), "--gpu", "l4", "--context", "4096")
    assert code == 0
    assert "longer than the model's own of 128 tokens" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "h300"), "did you mean"),
        (("--gpu", "l4", "--dtype", "int3"), "int3"),
        (("--gpu", "l4", "--kv-cache-dtype", "int8"), "int8"),
        (("--gpu", "l4", "--context", "0"), "--context"),
        (("--gpu", "l4", "--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization"),
        (("--gpu", "l4", "--gpus", "0"), "--gpus"),
    ],
)
def test_bad_options(
    call: Call, small_config: dict[str, Any], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = call(write(tmp_path / "m.json", small_config), *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.replace("│", " ").split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="a card is here")
def test_no_card_and_none_named_lists_the_names(call: Call, small_config: dict[str, Any], tmp_path: Path) -> None:
    code, _, err = call(write(tmp_path / "m.json", small_config))
    assert code == 2
    assert "h200_sxm" in err


def test_hostile_names_and_values_are_shown_as_text(call: Call, small_config: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "::error::[bold]\x1b[31m\u202emodel"
    hostile = small_config | {"architectures": ["\x1b]0;Novel[/red]"], "model_type": "novel"}
    model = write(folder / "config.json", hostile)
    code, out, _ = call(model, str(tmp_path / "::warning::nowhere.json"), "--gpu", "l4", "--context", "64")
    assert code == 0
    assert "[bold]" in out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "::" not in out

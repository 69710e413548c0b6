"""Bad input: one clear error on stderr, exit code 2, nothing on stdout, never a traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inferdoc.cli import main
from inferdoc.models import embedded_path

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run the command line in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["inferdoc", *arguments])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def expect(result: tuple[int, str, str], *fragments: str) -> None:
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    message = err[err.index("error: ") :]
    for fragment in fragments:
        assert fragment in message


def test_missing_trace(call: Call) -> None:
    expect(call("diagnose", "--trace", "nowhere.jsonl"), "nowhere.jsonl")


def test_empty_trace(call: Call, tmp_path: Path) -> None:
    expect(call("diagnose", "--trace", write(tmp_path / "empty.jsonl", "")), "empty.jsonl", "empty")


def test_unknown_format_shows_keys_and_formats(call: Call, tmp_path: Path) -> None:
    trace = write(tmp_path / "odd.jsonl", '{"apples": 1, "pears": 2}\n')
    expect(call("diagnose", "--trace", trace), "odd.jsonl", "apples", "pears", "mooncake")


def test_rows_without_lengths(call: Call, tmp_path: Path) -> None:
    trace = write(tmp_path / "t.csv", "timestamp,prompt_tokens,completion_tokens\n1,,\n2,,\n")
    expect(call("diagnose", "--trace", trace), "t.csv")


@pytest.mark.parametrize(("bad", "shown"), [("-5", "-5"), ("many", "text of 4 characters")])
def test_senseless_lengths_name_the_line(call: Call, tmp_path: Path, bad: str, shown: str) -> None:
    trace = write(tmp_path / "t.csv", f"timestamp,prompt_tokens,completion_tokens\n1,10,5\n2,{bad},5\n")
    expect(call("diagnose", "--trace", trace), "t.csv:3", shown)


def test_prompts_beyond_the_context_are_the_users_to_mend(call: Call, tmp_path: Path) -> None:
    trace = write(tmp_path / "t.csv", "timestamp,prompt_tokens,completion_tokens\n1,100000,5\n")
    expect(call("diagnose", "--trace", trace), "4,096", "--length-scale")


def test_model_directory_without_config(call: Call, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    expect(call("diagnose", "--model", str(tmp_path / "model")), "model", "config.json")


def test_model_directory_without_weights(call: Call, tmp_path: Path, repository: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write(folder / "config.json", (repository / "inferdoc/data/target/config.json").read_text())
    expect(call("diagnose", "--model", str(folder)), "weights", "--load-format dummy")


def test_unsupported_architecture_by_name_with_what_still_works(call: Call, tmp_path: Path) -> None:
    config = {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 256,
    }
    path = write(tmp_path / "config.json", json.dumps(config))
    trace = write(tmp_path / "t.csv", "timestamp,prompt_tokens,completion_tokens\n1,10,5\n2,10,5\n")
    result = call("diagnose", "--model", path, "--load-format", "dummy", "--trace", trace)
    expect(result, "BloomForCausalLM", "Sizing and trace analysis still work")


def test_impossible_objective(call: Call) -> None:
    expect(call("diagnose", "--slo", "speed=fast"), "ttft_p95=500ms")


def test_output_that_is_a_file(call: Call, tmp_path: Path) -> None:
    expect(call("diagnose", "-o", write(tmp_path / "taken", "")), "taken")


def test_cuda_asked_for_and_absent(call: Call) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    expect(call("diagnose", "--device", "cuda"), "CUDA", "--device cpu")


def test_budget_too_small_says_what_would_be_enough(call: Call) -> None:
    expect(call("diagnose", "--budget", "1s"), "--budget 1s is too small", "would answer something")


def test_more_context_than_the_model_has(call: Call) -> None:
    expect(call("diagnose", "--max-model-len", "100000"), "--max-model-len 100000", "4096")


def test_a_student_that_is_no_smaller(call: Call) -> None:
    expect(call("diagnose", "--student", str(embedded_path())), "--student", "a student is smaller than its model")


def test_a_quality_loss_that_is_no_share(call: Call) -> None:
    expect(call("diagnose", "--max-quality-loss", "2"), "--max-quality-loss '2'", "write it like 1% or 0.01")


def test_block_size_that_is_no_power_of_two(call: Call) -> None:
    expect(call("diagnose", "--block-size", "24"), "--block-size 24", "power of two")


def test_token_budget_below_the_block_size(call: Call) -> None:
    result = call("diagnose", "--max-num-batched-tokens", "16", "--block-size", "32")
    expect(result, "--max-num-batched-tokens 16 is below --block-size 32", "at least 32")


def test_token_budget_below_the_sequences(call: Call) -> None:
    result = call("diagnose", "--max-num-batched-tokens", "16", "--max-num-seqs", "17")
    expect(result, "--max-num-batched-tokens 16 is below --max-num-seqs 17")


def test_triton_attention_without_a_card(call: Call) -> None:
    expect(call("diagnose", "--device", "cpu", "--attention-backend", "triton"), "triton needs a CUDA card", "torch")


def test_graphs_without_a_card(call: Call) -> None:
    expect(call("diagnose", "--device", "cpu", "--no-enforce-eager"), "--no-enforce-eager", "CUDA card")


@pytest.mark.parametrize("dtype", ["int8", "complex64"])
def test_a_type_that_the_engine_does_not_run(call: Call, dtype: str) -> None:
    expect(call("diagnose", "--dtype", dtype), dtype)


def test_more_kv_blocks_than_memory_holds(call: Call) -> None:
    result = call("diagnose", "--device", "cpu", "--kv-blocks", "100000000")
    expect(result, "--kv-blocks 100000000 takes 2,457,600,000,000 bytes", "are available", "at most --kv-blocks")


def test_fewer_kv_blocks_than_the_longest_request_needs(call: Call) -> None:
    expect(call("diagnose", "--device", "cpu", "--kv-blocks", "1"), "--kv-blocks 1 holds 16 tokens", "would hold it")


def test_out_of_memory_at_load_says_what_was_needed_and_what_would_fit(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of ..."
        )

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    for module in ("inferdoc.preparation", "inferdoc.devices.exhaustion"):
        monkeypatch.setattr(f"{module}.free_now", lambda _: 8 * 2**20)
    result = call("diagnose", "--device", "cpu", "--dtype", "float32")
    expect(result, "2.50 GiB asked for", "8.0 MiB free", "10,558,464 bytes", "--dtype bfloat16 (weights 5.0 MiB)")
    assert "--max-num-batched-tokens" not in result[2]  # the weights alone are too large


def test_a_draft_larger_than_its_target_is_refused(call: Call, repository: Path) -> None:
    data = repository / "inferdoc" / "data"
    swapped = ["--model", str(data / "draft"), "--draft-model", str(data / "target")]
    code, _, err = call("diagnose", "--device", "cpu", "--memory", "4GiB", *swapped)
    assert code == 2, err
    assert "Traceback" not in err
    assert "the draft model has" in err
    assert "parameters" in err


def test_a_draft_that_is_not_there_is_named(call: Call) -> None:
    code, _, err = call("diagnose", "--device", "cpu", "--memory", "4GiB", "--draft-model", "nowhere/draft")
    assert code == 2, err
    assert "nowhere/draft" in err[err.index("error: ") :]

"""``inferdoc trace``: what is printed, written and refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inferdoc.cli import main

Call = Callable[..., tuple[int, str, str]]
SECRET = "the patient Ottilie Wagner"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run the command line in this process: exit code, stdout, stderr."""

    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["inferdoc", "trace", *map(str, arguments)])
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A chat log whose time stamp stands before a long text that repeats, with a user's words."""
    path = tmp_path / "log.jsonl"
    rules = "Answer in the house style, name your sources and do not guess. " * 40
    rows = []
    for i in range(40):
        system = f"2026-03-02T10:{i:02d}:{i:02d}Z {rules}"
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{SECRET} asks {i * 37}"},
            {"role": "assistant", "content": "It is as the sources say. " * (1 + i % 5)},
        ]
        rows.append({"messages": messages, "timestamp": i * 2.5, "session_id": f"jane{i % 4}@example.org"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def expect_error(result: tuple[int, str, str], *fragments: str) -> None:
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert err.count("error: ") == 1
    for fragment in fragments:
        assert fragment in err


def test_inspect_tells_what_was_understood(call: Call, shared: Path) -> None:
    code, out, _ = call("inspect", shared / "traces/mooncake/conversation_trace.jsonl", "--kv-budget", "100k,1M")
    assert code == 0
    for part in ("12,031 requests", "Mooncake", "read as ms", "58.9 min", "3.40 requests/s", "blocks of 512 tokens"):
        assert part in out
    for part in ("37.3%", "8: 51.9%", "32: 66.9%", "100,000: ", "1,000,000: ", "round-robin", "NOT IN THE TRACE"):
        assert part in out
    assert len(out.splitlines()) <= 60


def test_inspect_json_has_the_same_numbers_in_a_stable_order(call: Call, shared: Path) -> None:
    path = shared / "traces/mooncake/conversation_trace.jsonl"
    code, out, err = call("inspect", path, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == sorted(found)
    assert found["prefixes"]["block_sizes"][0]["hit_rate"] == pytest.approx(0.37338, abs=1e-5)
    assert found["understood"]["recognised_by"] == "input_length and output_length"
    assert call("inspect", path, "--json")[1] == out


def test_breakers_are_named_and_no_text_is_shown(call: Call, log: Path) -> None:
    _, out, _ = call("inspect", log)
    assert "a time stamp at character" in out
    assert "moving it to the end takes the hit rate from" in " ".join(out.split())
    for arguments in (("inspect", log), ("inspect", log, "--json")):
        _, out, _ = call(*arguments)
        for hidden in ("Ottilie", "Answer in", "jane", str(log.parent)):
            assert hidden not in out
    assert "Answer in the" in call("inspect", log, "--show-text")[1]


def test_rows_left_out_are_named_with_their_lines(call: Call, shared: Path) -> None:
    _, out, _ = call("inspect", shared / "traces/vllm-bench/vllm_bench_serve_save_detailed.json")
    assert "left out  3: failed requests" in out
    assert "(lines 34, 87, 118)" in out


def test_convert_and_inspect_again_gives_the_same_numbers(call: Call, shared: Path, tmp_path: Path) -> None:
    path = shared / "traces/llmservingsim/sharegpt-qwen3-32b-300-sps10.blocks16.jsonl"
    before = json.loads(call("inspect", path, "--json")[1])
    for to, name in (("jsonl", "c.jsonl"), ("parquet", "c.parquet"), ("mooncake", "m.jsonl")):
        code, out, _ = call("convert", path, "--to", to, "-o", name)
        assert code == 0
        assert "lost: nothing" in out
        after = json.loads(call("inspect", name, "--json")[1])
        for part in ("load", "prefixes", "course"):
            assert after[part] == before[part]


def test_convert_says_what_is_lost(call: Call, log: Path) -> None:
    expect_error(call("convert", log, "--to", "mooncake", "-o", "m.jsonl"), "no input_tokens", "--model")
    code, out, _ = call("convert", log, "--to", "mooncake", "-o", "m.jsonl", "--model", "embedded")
    assert code == 0
    assert "texts of prompts" in out.partition("lost: ")[2]
    assert "40 requests" in call("inspect", "m.jsonl")[1]


def test_anonymize_keeps_the_numbers_and_not_the_words(call: Call, log: Path, tmp_path: Path) -> None:
    before = json.loads(call("inspect", log, "--model", "embedded", "--block-size", "16,32", "--json")[1])
    code, out, _ = call("anonymize", log, "--model", "embedded", "-o", "a.jsonl", "--key-file", "k")
    assert code == 0
    key = (tmp_path / "k").read_text().strip()
    assert key not in out
    content = (tmp_path / "a.jsonl").read_text()
    for hidden in ("Ottilie", "house", "jane", "log.jsonl", key):
        assert hidden not in content + out.replace("k: keep", "")
    after = json.loads(call("inspect", "a.jsonl", "--block-size", "16,32", "--json")[1])
    assert after["load"]["lengths"] == before["load"]["lengths"]
    assert after["load"]["arrivals"] == before["load"]["arrivals"]
    for name in ("block_sizes", "sessions", "most_reused", "routing", "unique_prompt_share"):
        assert after["prefixes"][name] == before["prefixes"][name]


def test_sample_and_synthesize_show_both_traces_beside_each_other(call: Call, shared: Path) -> None:
    azure = shared / "traces/azure/AzureLLMInferenceTrace_code.csv"
    code, out, _ = call("sample", azure, "--window", "2m", "--around", "peak", "-o", "s.parquet")
    assert code == 0
    assert "given" in out
    assert "CV of times between requests" in out
    code, out, _ = call("synthesize", "--like", azure, "--requests", "500", "-o", "y.jsonl", "--json")
    assert {entry["label"]: entry["after"] for entry in json.loads(out)["numbers"]}["requests"] == 500
    assert "synthetic: 500 requests" in call("inspect", "y.jsonl")[1]


def test_output_files_are_not_replaced_unasked(call: Call, log: Path, tmp_path: Path) -> None:
    expect_error(call("convert", log, "--to", "jsonl", "-o", log, "--force"), "is the trace that is read")
    (tmp_path / "there.jsonl").write_text("mine")
    expect_error(call("convert", log, "--to", "jsonl", "-o", "there.jsonl"), "exists", "--force")
    assert (tmp_path / "there.jsonl").read_text() == "mine"
    assert call("convert", log, "--to", "jsonl", "-o", "there.jsonl", "--force")[0] == 0
    assert call("inspect", "there.jsonl")[0] == 0


def test_options_that_make_no_sense(call: Call, log: Path) -> None:
    assert call("convert", log, "--to", "csv", "-o", "x.csv")[0] == 2
    expect_error(call("convert", log, "--to", "jsonl", "-o", "x.parquet"), "--to jsonl")
    expect_error(call("convert", log, "--to", "jsonl", "-o", "x.jsonl", "--block-size", "16"), "--to mooncake")
    expect_error(call("anonymize", log, "-o", "x.txt"), ".parquet")
    expect_error(call("anonymize", log, "-o", "x.jsonl", "--key-file", "x.jsonl"), "the key's file")
    expect_error(call("sample", log, "-o", "x.jsonl"), "--window")
    expect_error(call("sample", log, "-o", "x.jsonl", "--start", "3"), "go together")
    expect_error(call("sample", log, "-o", "x.jsonl", "--window", "5"), "duration")
    expect_error(call("sample", log, "-o", "x.jsonl", "--window", "5s", "--around", "noon"), "off-peak")
    expect_error(call("inspect", log, "--kv-budget", "lots"), "--kv-budget 'lots'")
    expect_error(call("inspect", log, "--tpot", "5ms"), "--prefill-rate")
    expect_error(call("inspect", log, "--trace-format", "nosuch"), "unknown trace format 'nosuch'")
    expect_error(call("inspect", "nowhere.jsonl"), "nowhere.jsonl")
    expect_error(call("inspect", log, "--model", "./nowhere"), "./nowhere", "no such directory")


def test_ctrl_c_ends_with_130(call: Call, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("inferdoc.traces.analysis.analyse", interrupted)
    code, out, err = call("inspect", log)
    assert (code, out) == (130, "")
    assert "Traceback" not in err

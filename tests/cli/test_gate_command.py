"""``inferdoc gate`` as the shell sees it: exit codes, files, and that nothing but a regression ends with 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferdoc import __main__ as entry
from inferdoc import cli
from inferdoc.cli.exits import Answer
from inferdoc.logtext import plain

Call = Callable[..., tuple[int, str, str]]
AGAINST_ITSELF = """schema = 1
[design]
pairs = 5
max_pairs = 5
warmup = 1
[workload]
requests = 8
rate = 20
[[metric]]
id = "output_tok_s"
max_regression = "{limit}"
[[metric]]
id = "output_tokens_total"
"""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run the command line in this process and an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["inferdoc", *arguments])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def test_from_an_empty_folder_to_a_verdict(call: Call, tmp_path: Path) -> None:
    assert call("gate", "init")[0] == 0
    assert call("gate", "init")[0] == 2  # what is there is not written over
    assert call("gate", "init", "--force")[0] == 0
    (tmp_path / "inferdoc-gate.toml").write_text(AGAINST_ITSELF.format(limit="60%"))
    code, out, _ = call("gate", "run", "-o", "out")
    assert code in (0, 3)
    assert "output_tok_s" in out
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"gate.json", "gate.md", "gate.html", "junit.xml", "gate.prom"}
    assert json.loads((tmp_path / "out" / "gate.json").read_text())["exit_code"] == code


def test_calibration_finds_the_noise_and_refuses_limits_below_it(call: Call, tmp_path: Path) -> None:
    (tmp_path / "inferdoc-gate.toml").write_text(AGAINST_ITSELF.format(limit="60%"))
    code, out, err = call("gate", "calibrate", "--sessions", "1")
    assert code == 0, err
    assert "output_tok_s" in out
    (stored,) = (tmp_path / ".inferdoc" / "calibration").rglob("*.json")
    calibration = json.loads(stored.read_text())
    noise = calibration["noise"]["output_tok_s"]
    assert noise["pairs"] == 5
    assert noise["suggested"] >= noise["detectable"] > 0
    # The noise of eight requests on one thread is some percent; a stored one makes the refusal certain.
    calibration["noise"]["output_tok_s"]["sd"] = 0.1
    stored.write_text(json.dumps(calibration))
    (tmp_path / "inferdoc-gate.toml").write_text(AGAINST_ITSELF.format(limit="5%"))
    code, _, err = call("gate", "run")
    assert code == 2
    assert "inferdoc-gate.toml:10: output_tok_s: max_regression 0.05 is below the noise" in err
    assert "11.8%" in err  # exp(2.5 * 0.1 / sqrt(5)) - 1


def test_sessions_are_recorded_and_compared_as_histories(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = AGAINST_ITSELF.format(limit="60%") + '[baseline]\nmode = "history"\n'
    (tmp_path / "inferdoc-gate.toml").write_text(policy)
    monkeypatch.setattr("inferdoc.devices.watch._OTHERS_SHARE", 1.0)  # tests share the machine
    monkeypatch.setattr("inferdoc.devices.watch._STEAL_SHARE", 1.0)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for count in (1, 2):
        code, out, err = call("gate", "record")
        assert code == 0, err
        assert f"{count} session" in out
    (stored,) = (tmp_path / ".inferdoc" / "baselines").rglob("*.json")
    sessions = json.loads(stored.read_text())["sessions"]
    assert len(sessions[0]["measurements"]["output_tok_s"]["values"]) == 5
    code, out, err = call("gate", "record", "--candidate", "--into", "candidate.json")
    assert code == 0, err
    code, out, err = call("gate", "compare", str(stored), "candidate.json")
    assert code == 3, err  # one candidate session can't be told from noise
    assert "sessions" in out
    assert call("gate", "record", "--candidate")[0] == 2


def test_a_disturbed_run_is_not_recorded(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inferdoc-gate.toml").write_text(AGAINST_ITSELF.format(limit="60%"))
    monkeypatch.setattr("inferdoc.devices.watch._OTHERS_SHARE", -1.0)
    code, _, err = call("gate", "record")
    assert code == 5
    assert "other processes" in err
    assert not (tmp_path / ".inferdoc").exists()


@pytest.mark.parametrize("code", [0, 1, 3, 4, 5, 130])
def test_an_answer_is_the_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(cli, "app", _raising(Answer(code)))
    assert call()[0] == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("a fault of ours"), 70),
        (SystemExit(1), 70),  # a library that gives up, or a closed pipe
        (SystemExit("a library's last words"), 70),
        (RecursionError(), 70),
        (SystemExit(2), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_only_an_answer_ends_with_1(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    monkeypatch.setattr(cli, "app", _raising(error))
    assert call()[0] == code


def _raising(error: BaseException) -> Callable[[], Any]:
    def app() -> None:
        raise error

    return app


def test_what_cannot_be_imported_ends_with_70(tmp_path: Path) -> None:
    broken = tmp_path / "typer.py"
    broken.write_text("raise ImportError('half an installation')")
    process = subprocess.run(
        [sys.executable, "-c", "from inferdoc.__main__ import main; main()"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 70
    assert "half an installation" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_reader_that_closes_the_pipe_reads_no_regression(tmp_path: Path) -> None:
    script = f"set -o pipefail; {sys.executable} -m inferdoc gate --help | true"
    process = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode != 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", "2>&1 >/dev/full | true"])
def test_an_error_that_cannot_be_told_keeps_its_code(tmp_path: Path, streams: str) -> None:
    script = f"set -o pipefail; {sys.executable} -m inferdoc gate run -p nowhere.toml {streams}"
    process = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 2


def test_no_line_of_an_error_is_a_command_to_a_ci_runner() -> None:
    told = plain("no such file x\n::error::pwned\n  ::add-mask::x\nsee ##[group]\n\x1b[31mred")
    assert not [line for line in told.splitlines() if line.lstrip().startswith("::") or "##[" in line]
    assert "\x1b" not in told
    assert "pwned" in told


def test_missing_policy_and_wrong_number_of_files(call: Call) -> None:
    code, _, err = call("gate", "run")
    assert code == 2
    assert "inferdoc-gate.toml" in err
    code, _, err = call("gate", "compare", "a", "b", "c")
    assert code == 2
    assert "not 3 files" in err

"""The GitHub Action, step by step in bash: it ends with the gate's code, and hostile inputs do nothing."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferdoc.gate.result import GateVerdict


@pytest.mark.parametrize(
    ("code", "told", "verdict"),
    [
        (0, "passed", "passed"),
        (0, "inconclusive", "inconclusive"),
        (0, "recorded", "recorded"),
        (1, "regressed", "regressed"),
        (2, "", "bad input"),
        (3, "inconclusive", "inconclusive"),
        (4, "not comparable", "not comparable"),
        (4, "", "not comparable"),
        (5, "invalid", "invalid"),
        (5, "", "invalid"),
        (70, "", "internal error"),
        (130, "interrupted", "interrupted"),
    ],
)
def test_it_ends_with_the_gates_code(action: Any, code: int, told: str, verdict: str) -> None:
    run = action({}, FAKE_CODE=str(code), FAKE_VERDICT=told)
    assert run.code == code
    assert run.outputs == {"exit-code": str(code), "verdict": verdict, "folder": "inferdoc-gate"}
    assert action.shell.calls == [["gate", "run", "--output=inferdoc-gate", "--policy=inferdoc-gate.toml"]]
    assert run.uploaded is not None
    assert run.uploaded.split() == ["inferdoc-gate/gate.*", "inferdoc-gate/junit.xml", "inferdoc-gate/*.log"]
    # The gate writes its own summary, where it has a result.
    assert (run.summary == "") == bool(told)
    assert ("::error" in run.out) == (not told)


def test_it_knows_every_verdict_of_a_gate(action: Any) -> None:
    (gate,) = [step["run"] for step in action.definition["runs"]["steps"] if step.get("id") == "gate"]
    (known,) = re.findall(r"^ *(passed\|.*)\) finish", gate, re.MULTILINE)
    assert known.replace("'", "").split("|") == [verdict.value for verdict in GateVerdict]


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_code_without_a_result_is_neither_a_pass_nor_a_regression(action: Any, code: int) -> None:
    run = action({}, FAKE_CODE=str(code), FAKE_VERDICT="")
    assert (run.code, run.outputs["exit-code"], run.outputs["verdict"]) == (70, "70", "internal error")


def test_a_result_of_an_earlier_run_is_not_taken_for_this_one(action: Any) -> None:
    old = action.shell.work / "inferdoc-gate"
    old.mkdir()
    (old / "gate.json").write_text('{"verdict": "passed", "exit_code": 0}')
    (old / "baseline.log").write_text("kept")
    run = action({}, FAKE_CODE="0", FAKE_VERDICT="")
    assert run.code == 70
    assert [file.name for file in old.iterdir()] == ["baseline.log"]


def test_a_result_that_tells_another_code_is_not_believed(action: Any) -> None:
    run = action({}, FAKE_CODE="70", FAKE_VERDICT="passed", FAKE_TOLD_CODE="0")
    assert (run.code, run.outputs["verdict"]) == (70, "internal error")


def test_an_executable_that_is_not_there_is_no_regression(action: Any) -> None:
    run = action({"inferdoc": "no-such-inferdoc"})
    assert (run.code, run.outputs["verdict"]) == (70, "internal error")


def test_a_runner_without_room_for_outputs_is_no_regression(action: Any) -> None:
    gate = next(step for step in action.definition["runs"]["steps"] if step.get("id") == "gate")
    ended = action.shell.run(
        gate["run"],
        dict.fromkeys(gate["env"], "run") | {"GITHUB_OUTPUT": "/nowhere/output", "GITHUB_STEP_SUMMARY": "/dev/null"},
    )
    assert ended.code == 70
    assert action.shell.calls == []


def test_compare_names_both_sides(action: Any) -> None:
    inputs = {"command": "compare", "baseline": "a b/base.json", "candidate": "-cand.json", "args": "--x=1 2\n\n-v\n"}
    run = action(inputs, FAKE_VERDICT="passed")
    assert run.code == 0
    flags = ["--output=inferdoc-gate", "--policy=inferdoc-gate.toml", "--x=1 2", "-v"]
    assert action.shell.calls == [["gate", "compare", *flags, "--", "a b/base.json", "-cand.json"]]
    action({**inputs, "policy": ""}, FAKE_VERDICT="passed")
    assert not any(argument.startswith("--policy") for argument in action.shell.calls[-1])


@pytest.mark.parametrize(
    "inputs",
    [
        {"command": "compare", "candidate": "b"},
        {"command": "compare", "baseline": "a"},
        {"command": "calibrate"},
        {"output": ""},
    ],
)
def test_inputs_that_make_no_sense_are_bad_input(action: Any, inputs: dict[str, str]) -> None:
    run = action(inputs)
    assert (run.code, run.outputs) == (2, {"exit-code": "2", "verdict": "bad input"})
    assert run.uploaded is None
    assert action.shell.calls == []
    assert "bad input" in run.summary


HOSTILE = [
    '"; rm -rf kept; echo "',
    "'; rm -rf kept; echo '",
    "$(rm -rf kept) `rm -rf kept`",
    "* kept",
    "-rf",
    "%0A::error::x",
    "::error::x",
    "x\n::error::x",
    "x\nverdict=passed",
    "x\r\x1b]0;title\x07",
]


PASSED_ON = "policy output baseline candidate"


@pytest.mark.parametrize("names", [PASSED_ON, "command", "inferdoc", "python", "args", "install"])
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_inputs_are_passed_on_whole_or_refused(action: Any, names: str, text: str) -> None:
    work = action.shell.work
    (work / "kept").mkdir()
    inputs = {"command": "compare", "baseline": "base", "candidate": "cand", **dict.fromkeys(names.split(), text)}
    installed = stub_python(work.parent)
    if names == "install":
        inputs["python"] = "stub-python"
    run = action(inputs, FAKE_CODE="0", FAKE_VERDICT="passed")

    assert (work / "kept").is_dir()
    assert {file.name for file in work.iterdir()} <= {"kept", "inferdoc-gate", text if names == PASSED_ON else "kept"}
    printed = (run.out + run.err + run.summary).splitlines()
    assert not [line for line in printed if re.search(r"::error::x|\x1b", line)]
    commands = [line for line in printed if line.startswith("::")]
    assert all(line.startswith("::error title=inferdoc gate::") for line in commands)

    if names == PASSED_ON:
        whole = not re.search(r"[\x00-\x1f]", text)
        expected = ["gate", "compare", f"--output={text}", f"--policy={text}", "--", text, text]
        assert (run.code, action.shell.calls) == ((0, [expected]) if whole else (2, []))
    elif names == "args":
        head = ["gate", "compare", "--output=inferdoc-gate", "--policy=inferdoc-gate.toml"]
        assert (run.code, action.shell.calls) == (0, [[*head, *text.split("\n"), "--", "base", "cand"]])
    elif names == "install":
        assert installed.read_bytes().decode().split("\0")[-3:-1] == ["--", text]
    else:
        assert run.code in (2, 70)


def stub_python(folder: Path) -> Path:
    """A Python that makes an environment of itself, and notes what it is told to install."""
    log = folder / "installed"
    python = folder / "bin" / "stub-python"
    python.write_text(
        "#!/usr/bin/env bash\n"
        'if [[ $2 == venv ]]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; '
        f'elif [[ $2 == pip ]]; then printf "%s\\0" "$@" > {log}; fi\n'
    )
    python.chmod(0o755)
    return log


def test_what_the_gate_quotes_on_stderr_is_no_command(action: Any) -> None:
    said = "error: a log:\\n  ::error::boom\\n##[error]boom\\n"
    told = "::error file=inferdoc-gate.toml,line=3::ttft_p50 regressed\\n"
    run = action({}, FAKE_CODE="1", FAKE_VERDICT="regressed", FAKE_STDERR=said, FAKE_STDOUT=told)
    assert run.code == 1
    assert "::error file=inferdoc-gate.toml,line=3::ttft_p50 regressed\n" in run.out
    assert run.err == "error: a log:\n  : :error: :boom\n# #[error]boom\n"


def test_install_puts_the_new_environment_on_path(action: Any) -> None:
    log = stub_python(action.shell.work.parent)
    run = action({"install": "git+https://example.org/x.git@abc", "python": "stub-python"}, FAKE_VERDICT="")
    assert log.read_text().split("\0")[:-1] == [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--",
        "git+https://example.org/x.git@abc",
    ]
    assert run.path == f"{action.shell.work.parent}/inferdoc/bin\n"


def test_a_failed_install_is_no_regression(action: Any) -> None:
    run = action({"install": "x", "python": "false"})
    assert action.shell.calls == []
    assert (run.code, run.outputs) == (70, {})


@pytest.mark.parametrize(("tpot", "code"), [("3 ms", 1), ("5 ms", 0)])
def test_the_real_gate_through_the_action(
    action: Any, evidence_file: Callable[[str], Path], tpot: str, code: int
) -> None:
    work = action.shell.work
    real = work.parent / "real-inferdoc"
    real.write_text(f'#!/usr/bin/env bash\nexec {sys.executable} -m inferdoc "$@"\n')
    real.chmod(0o755)
    (work / "gate.toml").write_text(
        f'schema = 1\n[[metric]]\nid = "latency.tpot_b1"\nmax_value = "{tpot}"\n[comparable]\nunknown = "warn"\n'
    )
    run = action(
        {
            "command": "compare",
            "policy": "gate.toml",
            "baseline": str(evidence_file("a")),
            "candidate": str(evidence_file("b")),
            "inferdoc": str(real),
        },
        GITHUB_ACTIONS="true",
    )
    assert (run.code, run.outputs["verdict"]) == (code, "regressed" if code else "passed"), run.err
    written = json.loads((work / "inferdoc-gate" / "gate.json").read_text())
    assert written["exit_code"] == code
    assert ("::error file=gate.toml,line=3" in run.out) == bool(code)
    assert "latency.tpot_b1" in run.summary


def test_shell_scripts_hold_no_expression_and_fail_early(examples: Path) -> None:
    steps = yaml.safe_load((examples / "action.yml").read_text())["runs"]["steps"]
    jobs = yaml.safe_load((examples / "github-workflow.yml").read_text())["jobs"].values()
    scripts = [step for step in [*steps, *(step for job in jobs for step in job["steps"])] if "run" in step]
    assert len(scripts) == 5
    for step in scripts:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
        assert re.match(r"set -E?euo pipefail\n", step["run"])


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not on this machine")
def test_shellcheck(action: Any) -> None:
    for step in action.definition["runs"]["steps"]:
        if "run" in step:
            ended = action.shell.run("shellcheck -s bash - <<'END'\n" + step["run"] + "\nEND\n")
            assert ended.code == 0, ended.out

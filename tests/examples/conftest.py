"""The examples for CI services, and an `inferdoc` that only does what a test tells it to."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferdoc.evidence import Basis, Evidence, Objective

STAND_IN = """#!/usr/bin/env bash
# Notes its arguments, writes a result where it is told one, and ends as told.
set -euo pipefail
{ printf '%s\\0' "$@"; printf '\\n'; } >> "$FAKE_CALLS"
output='' into=''
arguments=("$@")
for i in "${!arguments[@]}"; do
  case ${arguments[i]} in
    --output=*) output=${arguments[i]#--output=} ;;
    --output) output=${arguments[i + 1]} ;;
    --into) into=${arguments[i + 1]} ;;
  esac
done
if [[ -n ${FAKE_VERDICT-} ]]; then
  mkdir -p -- "$output"
  printf '{"verdict": "%s", "exit_code": %s}' "$FAKE_VERDICT" "${FAKE_TOLD_CODE-$FAKE_CODE}" > "$output/gate.json"
  printf '<testsuites/>' > "$output/junit.xml"
fi
if [[ -n $into ]]; then printf 'session\\n' >> "$into"; fi
printf '%b' "${FAKE_STDOUT-}"
printf '%b' "${FAKE_STDERR-}" >&2
exit "$FAKE_CODE"
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Shell:
    """bash in an empty folder, with the stand-in as `inferdoc` first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.calls_file = folder / "calls"
        bin_folder = folder / "bin"
        for made in (self.work, bin_folder):
            made.mkdir()
        stand_in = bin_folder / "inferdoc"
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        self.environment = {
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "FAKE_CALLS": str(self.calls_file),
            "FAKE_CODE": "0",
        }

    def run(self, script: str, environment: Mapping[str, str] | None = None, *, options: str = "-eo pipefail") -> Ended:
        """Run a script from a file, as the services do."""
        file = self.work.parent / "script.sh"
        file.write_text(script, encoding="utf-8")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", *options.split(), str(file)],
            cwd=self.work,
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call of the stand-in."""
        if not self.calls_file.exists():
            return []
        return [call.split("\0") for call in self.calls_file.read_bytes().decode().split("\0\n") if call]


EXPRESSION = re.compile(r"\$\{\{ (inputs|steps\.gate\.outputs)\.([a-z-]+) \}\}")
UPLOAD = "always() && steps.gate.outputs.folder != ''"


@dataclass
class ActionRun:
    """What came of an action."""

    code: int = 0
    """Of the last step, which ends the action."""
    out: str = ""
    err: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    uploaded: str | None = None
    path: str = ""


class Action:
    """Runs the steps as a runner does: expressions fill the environment, a failed step skips those without always()."""

    def __init__(self, file: Path, shell: Shell) -> None:
        self.definition = yaml.safe_load(file.read_text(encoding="utf-8"))
        self.shell = shell

    def __call__(self, inputs: dict[str, str], **environment: str) -> ActionRun:
        assert inputs.keys() <= self.definition["inputs"].keys()
        given = {name: inputs.get(name, spec["default"]) for name, spec in self.definition["inputs"].items()}
        run, failed = ActionRun(), False
        for step in self.definition["runs"]["steps"]:
            if not self._wanted(step.get("if"), given, run, failed):
                continue
            if "uses" in step:
                run.uploaded = self._filled(step["with"]["path"], given, run)
                continue
            failed = self._step(step, given, run, environment) or failed
        return run

    def _step(self, step: dict[str, Any], given: dict[str, str], run: ActionRun, environment: dict[str, str]) -> bool:
        parent = self.shell.work.parent
        files = {name: parent / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH")}
        for file in files.values():
            file.write_text("")
        filled = {name: self._filled(value, given, run) for name, value in step["env"].items()}
        fixed = {"RUNNER_TEMP": str(parent), **{name: str(file) for name, file in files.items()}}
        ended = self.shell.run(step["run"], {**environment, **fixed, **filled})
        for line in files["GITHUB_OUTPUT"].read_text().splitlines():
            assert re.fullmatch(r"(exit-code|verdict|folder)=.+", line), line
            name, _, value = line.partition("=")
            run.outputs[name] = value
        run.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        run.path += files["GITHUB_PATH"].read_text()
        run.out += ended.out
        run.err += ended.err
        run.code = ended.code
        return ended.code != 0

    @staticmethod
    def _wanted(condition: str | None, given: dict[str, str], run: ActionRun, failed: bool) -> bool:
        known = {
            None: not failed,
            "inputs.install != ''": not failed and given["install"] != "",
            UPLOAD: "folder" in run.outputs,
            "always()": True,
        }
        return known[condition]

    @staticmethod
    def _filled(value: str, given: dict[str, str], run: ActionRun) -> str:
        values = {"inputs": given, "steps.gate.outputs": run.outputs}
        filled = EXPRESSION.sub(lambda found: values[found[1]].get(found[2], ""), value)
        assert "${{" not in EXPRESSION.sub("", value)
        return filled


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(scope="session")
def examples(repository: Path) -> Path:
    return repository / "examples" / "ci"


@pytest.fixture
def action(examples: Path, shell: Shell) -> Action:
    return Action(examples / "action.yml", shell)


@pytest.fixture
def evidence_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes evidence of a run on a CPU that measured a TPOT of 4 ms."""

    def write(name: str) -> Path:
        quantity = {
            "id": "latency.tpot_b1",
            "label": "TPOT of one request",
            "value": 0.004,
            "unit": "s",
            "basis": Basis.MEASURED,
            "interval": {"low": 0.0039, "high": 0.0041, "method": "exact"},
            "direction": "lower",
        }
        run = {
            "id": name,
            "started_at": "2026-03-02T10:14:07Z",
            "duration_s": 60.0,
            "command": "inferdoc diagnose",
            "seed": 0,
            "objective": Objective.THROUGHPUT,
            "budget_s": 300.0,
            "status": "complete",
        }
        subject = {
            "model": "embedded",
            "architecture": "LlamaForCausalLM",
            "parameters": 8,
            "dtype": "float32",
            "load_format": "auto",
            "engine": "inferdoc engine",
            "engine_config": {},
            "context_length": 4096,
            "real_outputs": True,
        }
        workload = {
            "source": "trace.jsonl",
            "format": "chat",
            "time_unit": "s",
            "requests": 64,
            "duration_s": 60.0,
            "rate_per_s": 1.0,
            "block_size": None,
            "content": "text",
            "fingerprint": "w" * 64,
        }
        made = Evidence.model_validate(
            {
                "tool": {"version": "0.1.0", "python": "3.11"},
                "run": run,
                "subject": subject,
                "environment": {"fields": {}, "fingerprint": "e" * 64},
                "workload": workload,
                "validity": {"status": "valid"},
                "quantities": {"latency.tpot_b1": quantity},
            }
        )
        path = tmp_path / f"{name}.json"
        path.write_text(made.model_dump_json(by_alias=True), encoding="utf-8")
        return path

    return write

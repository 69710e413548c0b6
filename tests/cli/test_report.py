from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

HEAVY = ("torch", "transformers", "polars", "scipy")
# The command alone, so that only what it imports is seen.
PROGRAM = f"""
import sys, typer
from inferdoc.cli.report import report
from inferdoc.errors import InputError
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(report)
try:
    app(standalone_mode=False)
except InputError as error:
    sys.exit(f"error: {{error}}")
print("HEAVY", [name for name in {HEAVY!r} if name in sys.modules])
"""


@pytest.fixture
def cases() -> ModuleType:
    path = Path(__file__).parent.parent / "reports" / "conftest.py"
    spec = importlib.util.spec_from_file_location("report_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def evidence(cases: ModuleType, tmp_path: Path) -> Path:
    from inferdoc.reports.writing import to_json

    path = tmp_path / "run" / "evidence.json"
    path.parent.mkdir()
    path.write_text(to_json(cases.evidence()))
    return path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_reports_are_written_again_without_torch(evidence: Path, tmp_path: Path) -> None:
    before = evidence.read_bytes()
    done = run(evidence, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout
    assert "VERDICT" in done.stdout
    assert "prefix" in done.stdout.lower()
    names = ["diagnosis.json", "evidence.json", "report.html", "report.md"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert (tmp_path / "out" / "evidence.json").read_bytes() == before


def test_evidence_of_an_older_version_still_renders(evidence: Path) -> None:
    # Before a field had a default value it was not written; a quantity that has come since is not there either.
    older = json.loads(evidence.read_text())
    older["quantities"] = {id: older["quantities"][id] for id in ("fit.weights_bytes", "prefix.ideal_hit_rate")}
    older["comparisons"] = {id: older["comparisons"][id] for id in ("prefix_caching.saturated",)}
    del older["plan"], older["probes"], older["series"]
    for name in ("slice_requests", "slice_window", "notes", "left_out", "quantities", "replicas", "length_scale"):
        del older["workload"][name]
    for name in ("outputs", "roofline_fraction", "engine_limited", "overloaded", "failure", "notes"):
        del older["comparisons"]["prefix_caching.saturated"][name]
    evidence.write_text(json.dumps(older))
    done = run(evidence)
    assert done.returncode == 0, done.stderr
    assert "VERDICT" in done.stdout
    for name in ("report.html", "report.md"):
        assert "1.83x" in (evidence.parent / name).read_text()


def test_a_gate_is_told_in_the_report(cases: ModuleType, evidence: Path) -> None:
    from inferdoc.reports.writing import to_json

    gate = evidence.parent / "gate.json"
    gate.write_text(to_json(cases.gate()))
    done = run(evidence, "--gate", gate)
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout
    assert "regressed: Output tokens per second fell by 9.8%" in " ".join(done.stdout.split())
    assert "Comparison with a baseline" in (evidence.parent / "report.html").read_text()
    assert json.loads((evidence.parent / "diagnosis.json").read_text())["comparison"]["exit_code"] == 1


def test_default_folder_is_that_of_the_evidence(evidence: Path) -> None:
    done = run(evidence)
    assert done.returncode == 0, done.stderr
    assert (evidence.parent / "report.html").is_file()


@pytest.mark.parametrize(
    "arguments",
    [("-o", "run/evidence.json"), ("--templates", "missing"), ("--rules", "missing"), ("--gate", "missing")],
)
def test_bad_input_is_one_clear_line(evidence: Path, arguments: tuple[str, str]) -> None:
    option, name = arguments
    done = run(evidence, option, evidence.parent.parent / name)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert name in done.stderr


def test_missing_evidence_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "nowhere.json")
    assert "nowhere.json: cannot be read" in done.stderr

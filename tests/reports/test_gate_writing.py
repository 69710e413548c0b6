from __future__ import annotations

import hashlib
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from inferdoc.errors import InputError
from inferdoc.gate.result import GateResult, read_gate_result
from inferdoc.reports.gate_writing import SUMMARY_BYTES, announce, write_gate

ROOT = Path(__file__).parents[2]
FILES = ["gate.html", "gate.json", "gate.md", "gate.prom", "junit.xml"]
SCHEMA = ROOT / "docs" / "schemas" / "gate.schema.json"


def test_the_five_files_are_written_with_their_digests(any_gate: GateResult, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    artifacts = write_gate(any_gate, out)
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert sorted(artifact.path for artifact in artifacts) == FILES
    for artifact in artifacts:
        content = (out / artifact.path).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (artifact.sha256, artifact.bytes)


def test_json_comes_back_as_it_was(any_gate: GateResult, tmp_path: Path) -> None:
    write_gate(any_gate, tmp_path)
    assert read_gate_result(tmp_path / "gate.json") == any_gate


def test_json_is_kept_when_a_template_is_wrong(gated: GateResult, tmp_path: Path) -> None:
    templates, out = tmp_path / "templates", tmp_path / "out"
    templates.mkdir()
    (templates / "gate.html.j2").write_text("one\n{{ oops }}")
    with pytest.raises(InputError, match=r"gate\.html\.j2:2: .*oops"):
        write_gate(gated, out, templates)
    assert read_gate_result(out / "gate.json") == gated


def test_schema_in_the_documentation_is_current() -> None:
    text = runpy.run_path(str(ROOT / "scripts" / "write_gate_schema.py"))["schema_text"]()
    assert SCHEMA.read_text() == text, "the contract has changed: run  python scripts/write_gate_schema.py"


def test_a_written_result_is_valid_by_the_schema(any_gate: GateResult, tmp_path: Path) -> None:
    write_gate(any_gate, tmp_path)
    schema = json.loads(SCHEMA.read_text())
    written = json.loads((tmp_path / "gate.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(written, schema)
    del written["verdict"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, schema)


def test_nothing_is_announced_outside_a_workflow(
    gated: GateResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    for environ in ({}, {"GITHUB_ACTIONS": "false"}):
        announce(gated, {**environ, "GITHUB_STEP_SUMMARY": str(summary)})
    assert capsys.readouterr() == ("", "")
    assert not summary.exists()


def test_annotations_and_summary_in_a_workflow(
    gated: GateResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    announce(gated, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    out, err = capsys.readouterr()
    assert out.startswith("::error file=inferdoc-gate.toml,line=14,")
    assert err == ""
    assert summary.read_text().startswith("before\n\n# ✕ Regressed")


def test_summary_leaves_room_for_what_is_there(gated: GateResult, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("x" * (SUMMARY_BYTES - 3000))
    announce(gated, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    text = summary.read_text()
    assert len(text.encode()) <= SUMMARY_BYTES
    assert "# ✕ Regressed" in text
    assert "Left out to stay below" in text


@pytest.mark.parametrize("place", ["full.md", "missing/summary.md", "."])
def test_a_summary_that_cannot_be_written_is_one_warning(
    gated: GateResult, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    full = tmp_path / "full.md"
    full.write_text("x" * (SUMMARY_BYTES - 10))
    announce(gated, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / place)})
    out, err = capsys.readouterr()
    assert "::notice" in out
    assert err.startswith("warning: ")
    assert len(err.splitlines()) == 1
    assert full.stat().st_size == SUMMARY_BYTES - 10


def test_a_log_without_utf_gets_its_annotations(gated: GateResult, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    announce(gated, {"GITHUB_ACTIONS": "true"})
    sys.stdout.flush()
    assert b"3,410 \\u2192 3,076 tok/s" in buffer.getvalue()


def test_telling_a_gate_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "polars", "scipy", "numpy")
    program = (
        "import sys, inferdoc.reports.gate_writing, inferdoc.reports.gate_terminal\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"

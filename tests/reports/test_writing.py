from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest

from inferdoc.errors import InputError
from inferdoc.evidence import Diagnosis, Evidence, read_evidence
from inferdoc.reports.writing import prepare_output, to_json, write_all

Case = tuple[Evidence, Diagnosis]
FILES = ["diagnosis.json", "evidence.json", "report.html", "report.md"]


def test_the_four_files_are_written_with_their_digests(any_case: Case, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    artifacts = write_all(*any_case, out)
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert sorted(artifact.path for artifact in artifacts) == FILES
    for artifact in artifacts:
        content = (out / artifact.path).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (artifact.sha256, artifact.bytes)


def test_json_comes_back_as_it_was(any_case: Case, tmp_path: Path) -> None:
    evidence, diagnosis = any_case
    written = write_all(evidence, diagnosis, tmp_path)
    assert read_evidence(tmp_path / "evidence.json") == evidence
    read = Diagnosis.model_validate_json((tmp_path / "diagnosis.json").read_text())
    assert read.artifacts == written[:3]
    assert read.model_copy(update={"artifacts": []}) == diagnosis
    assert json.loads((tmp_path / "diagnosis.json").read_text())["schema"]["name"] == "inferdoc.diagnosis"


def test_json_holds_no_nan_and_only_ascii(complete: Case) -> None:
    evidence = complete[0]
    evidence.subject.engine_config = {"a": math.nan, "b": [math.inf], "c": "\ud800 \u202e", "d": Path("x")}

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    text = to_json(evidence)
    assert text.isascii()
    read = json.loads(text, parse_constant=refuse)
    assert read["subject"]["engine_config"] == {"a": None, "b": [None], "c": "\ufffd \u202e", "d": "x"}
    assert Evidence.model_validate_json(text).run == evidence.run


def test_no_temporary_file_is_left(complete: Case, tmp_path: Path) -> None:
    write_all(*complete, tmp_path)
    write_all(*complete, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_failed_write_leaves_the_old_file(complete: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evidence.json").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("inferdoc.files.os.replace", full)
    with pytest.raises(InputError, match=r"evidence\.json: cannot be written \(No space left on device\)"):
        write_all(*complete, tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("evidence.json", "old")]


def test_evidence_is_kept_when_a_template_is_wrong(complete: Case, tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "report.html.j2").write_text("{{ oops }}")
    out = tmp_path / "out"
    with pytest.raises(InputError, match="oops"):
        write_all(*complete, out, templates)
    assert read_evidence(out / "evidence.json") == complete[0]


def test_a_folder_that_cannot_be_written_to_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for out in (file, file / "below"):
        with pytest.raises(InputError, match="choose another folder with -o") as raised:
            prepare_output(out)
        assert str(raised.value).startswith(f"{out}: ")
        assert "\n" not in str(raised.value)

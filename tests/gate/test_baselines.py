"""Baseline files: only clean runs enter, the history is bounded, nothing is lost or overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferdoc.errors import InputError, InvalidRunError
from inferdoc.evidence import Check, Validity
from inferdoc.gate import locking
from inferdoc.gate.baselines import BaselineFile, baseline_path, read_baseline, record
from inferdoc.gate.policy import BaselinePolicy, Policy
from inferdoc.gate.sessions import Session, session_of


@pytest.fixture
def session(runs: Any) -> Callable[..., Session]:
    return lambda run_id="a", **changes: session_of(runs.evidence(run_id=run_id, **changes), None)


def ids(path: Path) -> list[str]:
    return [session.run_id for session in read_baseline(path).sessions]


def test_sessions_are_kept_newest_last_and_the_oldest_go(tmp_path: Path, session: Callable[..., Session]) -> None:
    path = tmp_path / "deep" / "folder" / "base.json"
    for name in "abcde":
        assert record(path, session(name), history_max=3)
    assert ids(path) == ["c", "d", "e"]
    assert read_baseline(path).sessions[-1] == session("e")
    assert [item.name for item in path.parent.iterdir()] == ["base.json"], "no lock and no temporary file is left"


def test_the_file_names_its_schema(tmp_path: Path, session: Callable[..., Session]) -> None:
    record(tmp_path / "base.json", session(), history_max=3)
    written = json.loads((tmp_path / "base.json").read_text(encoding="utf-8"))
    assert written["schema"] == {"name": "inferdoc.baseline", "version": "1.0"}


def test_a_run_is_entered_once(tmp_path: Path, session: Callable[..., Session]) -> None:
    path = tmp_path / "base.json"
    record(path, session("a"), history_max=9)
    record(path, session("b"), history_max=9)
    before = path.read_bytes()
    assert not record(path, session("a", scale=2.0), history_max=9)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run": {"status": "partial"}}, "the run is partial"),
        ({"run": {"status": "failed"}}, "the run is failed"),
        ({"validity": ("degraded", "12% went to other processes.")}, r"degraded \(12% went to other processes\)"),
        ({"validity": ("invalid", "clocks fell")}, r"invalid \(clocks fell\)"),
        ({"failure": "out of memory"}, "failed: Prefix caching, saturated: out of memory"),
    ],
)
def test_only_clean_runs_enter(
    tmp_path: Path, session: Callable[..., Session], changes: dict[str, Any], said: str
) -> None:
    if "validity" in changes:
        status, text = changes["validity"]
        checks = [Check(name="health", passed=False, text=text), Check(name="other", passed=True, text="fine")]
        changes = {"validity": Validity(status=status, checks=checks)}
    path = tmp_path / "base.json"
    with pytest.raises(InvalidRunError, match=said):
        record(path, session(**changes), history_max=3)
    assert not path.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not a baseline"),
        ('{"sessions": [{"run_id": "a"}]}', r"sessions\.0\.started_at"),
        ('{"sessions": []}', "no session in it"),
        ('{"schema": {"name": "inferdoc.baseline", "version": "2.0"}, "sessions": []}', "schema inferdoc.baseline 2.0"),
        ('{"schema": {"name": "inferdoc.evidence", "version": "1.0"}, "sessions": []}', "schema inferdoc.evidence"),
    ],
)
def test_a_damaged_file_is_an_error_and_stays_as_it_is(
    tmp_path: Path, session: Callable[..., Session], content: str, said: str
) -> None:
    path = tmp_path / "base.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_baseline(path)
    with pytest.raises(InputError, match=said):
        record(path, session(), history_max=3)
    assert path.read_text(encoding="utf-8") == content


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "base.json"
    record(path, session("a"), history_max=3)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="cannot be written"):
        record(path, session("b"), history_max=3)
    monkeypatch.undo()
    assert ids(path) == ["a"]
    assert [item.name for item in tmp_path.iterdir()] == ["base.json"]


_WRITER = """
import sys, time
from pathlib import Path
from inferdoc.gate.baselines import record
from inferdoc.gate.sessions import Session
folder, name = Path(sys.argv[1]), sys.argv[2]
if "no-flock" in sys.argv:
    from inferdoc.gate import locking
    locking._flock = lambda folder: None
session = Session.model_validate_json((folder / "session.txt").read_text())
(folder / f"{name}.ready").touch()
while len(list(folder.glob("*.ready"))) < 3:
    time.sleep(0.001)
for index in range(12):
    record(folder / "base.json", session.model_copy(update={"run_id": f"{name}{index}"}), 100)
"""


@pytest.mark.parametrize("way", ["flock", "no-flock"])
def test_writers_at_the_same_time_lose_nothing(tmp_path: Path, session: Callable[..., Session], way: str) -> None:
    (tmp_path / "session.txt").write_text(session().model_dump_json(by_alias=True), encoding="utf-8")
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), name, way]) for name in ("a", "b", "c")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    assert sorted(ids(tmp_path / "base.json")) == sorted(f"{name}{i}" for name in "abc" for i in range(12))


def test_a_lock_file_that_nobody_gives_back_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "_flock", lambda folder: None)
    monkeypatch.setattr(locking, "_LONGEST_WAIT_S", 0.1)
    (tmp_path / ".lock").touch()
    with pytest.raises(InputError, match=r"\.lock: another process holds"), locking.locked(tmp_path):
        pass
    (tmp_path / ".lock").unlink()
    with locking.locked(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert not (tmp_path / ".lock").exists()


def test_the_place_is_by_workload_and_machine_beside_the_policy(session: Callable[..., Session]) -> None:
    made = session()
    assert baseline_path(Policy(), made) == Path(f".inferdoc/baselines/{'w' * 12}/{'e' * 12}.json")
    policy = Policy(path="ci/gate.toml", baseline=BaselinePolicy(path="main.json"))
    assert baseline_path(policy, made) == Path("ci/main.json")


def test_a_fingerprint_of_a_hostile_file_does_not_leave_the_folder(session: Callable[..., Session]) -> None:
    made = session(workload={"fingerprint": "../../../etc/x"})
    assert baseline_path(Policy(), made).parts[2] == "_________etc"


def test_a_file_name_that_is_not_unicode_is_kept_readable(tmp_path: Path, session: Callable[..., Session]) -> None:
    record(tmp_path / "base.json", session(workload={"source": "tr\udcffce.jsonl"}), history_max=3)
    assert read_baseline(tmp_path / "base.json").sessions[0].workload.source == "tr?ce.jsonl"


def test_unknown_keys_of_a_later_minor_version_are_ignored(tmp_path: Path, session: Callable[..., Session]) -> None:
    content = BaselineFile(sessions=[session()]).model_dump(mode="json", by_alias=True)
    content |= {"schema": {"name": "inferdoc.baseline", "version": "1.7"}, "later": 1}
    content["sessions"][0]["later"] = 2
    (tmp_path / "base.json").write_text(json.dumps(content), encoding="utf-8")
    assert ids(tmp_path / "base.json") == ["a"]

"""The version of the probes: of their sources, not of where or how they are stored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import inferdoc.engine
import inferdoc.probes
from inferdoc.probes.version import probe_version

Folders = dict[str, Path]
INSTALLED = {module.__name__: Path(str(module.__file__)).parent for module in (inferdoc.probes, inferdoc.engine)}


@pytest.fixture
def copy(tmp_path: Path) -> Folders:
    """The sources, somewhere else and without what compiling left beside them."""
    folders = {}
    for name, place in INSTALLED.items():
        folders[name] = tmp_path / "elsewhere" / name
        shutil.copytree(place, folders[name], ignore=shutil.ignore_patterns("__pycache__"))
    return folders


def test_a_copy_elsewhere_has_the_same(copy: Folders) -> None:
    version = probe_version()
    assert version is not None
    assert len(version) == 12
    assert int(version, 16) >= 0
    assert probe_version(copy) == version


@pytest.mark.parametrize("changed", ["inferdoc.probes/paired.py", "inferdoc.engine/attention/paged_cpu.c"])
def test_one_byte_changes_it(copy: Folders, changed: str) -> None:
    package, _, name = changed.partition("/")
    path = copy[package] / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert probe_version(copy) != probe_version()
    path.write_bytes(content)
    assert probe_version(copy) == probe_version()


def test_line_endings_do_not_change_it(copy: Folders) -> None:
    sources = [path for folder in copy.values() for path in folder.rglob("*.py")]
    assert len(sources) > 20
    for path in sources:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert probe_version(copy) == probe_version()


def test_a_new_or_renamed_source_changes_it(copy: Folders) -> None:
    path = copy["inferdoc.engine"] / "scheduler.py"
    path.rename(path.with_name("planner.py"))
    renamed = probe_version(copy)
    (copy["inferdoc.probes"] / "more.py").touch()
    assert len({probe_version(), renamed, probe_version(copy)}) == 3


def test_what_is_no_source_does_not_count(copy: Folders) -> None:
    (copy["inferdoc.engine"] / "notes.txt").write_text("x")
    assert probe_version(copy) == probe_version()


def test_without_sources_it_is_unknown(tmp_path: Path) -> None:
    assert probe_version({"inferdoc.probes": tmp_path}) is None

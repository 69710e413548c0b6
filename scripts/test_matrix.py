"""Run the engine's tests on several releases of transformers: `make test-matrix`.

Each release is installed into a folder of its own, with what it needs in another version than the environment has, and
stands in front of the environment's packages; torch and everything else stay as they are.

    python scripts/test_matrix.py [--versions 5.10.4 5.17.0] [--tests tests/engine/test_gate.py ...]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = REPOSITORY / "build" / "matrix"
OLDEST, MIDDLE = "5.10.4", "5.17.0"
"""The last patch of the oldest supported minor release, and one between it and the newest."""
TESTS = ("tests/engine", "tests/models/test_model_loading.py", "tests/models/test_gguf_loading.py")


def newest() -> str:
    """The newest release that the package index offers."""
    listed = _pip("index", "versions", "transformers").stdout
    found = re.search(r"\(([\d.]+)\)", listed)
    if found is None:
        sys.exit("the package index does not say which transformers is the newest; name it with --versions")
    return found.group(1)


def install(version: str) -> Path:
    """The folder of this release, installed where it is missing."""
    target = FOLDER / version
    done = target / ".installed"
    if not done.exists():
        _install(target, f"transformers=={version}")
        while missing := _unmet(target):
            _install(target, *missing)
        done.touch()
    return target


def _unmet(target: Path) -> list[str]:
    """What the packages in the folder demand and neither it nor the environment has."""
    unmet = []
    for package in metadata.distributions(path=[str(target)]):
        for requirement in map(Requirement, package.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            places = [str(target), *sys.path]
            found = next(iter(metadata.distributions(name=requirement.name, path=places)), None)
            if found is None or found.version not in requirement.specifier:
                unmet.append(str(requirement))
    return unmet


def _install(target: Path, *requirements: str) -> None:
    _pip("install", "--quiet", "--no-deps", "--target", str(target), *requirements)


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"pip {' '.join(arguments)} failed:\n{done.stderr.strip()}")
    return done


def run(version: str, tests: list[str]) -> tuple[bool, str]:
    """Whether the tests pass on this release, and pytest's last line."""
    folder = install(version)
    environment = os.environ | {"PYTHONPATH": str(folder)}
    seen = "import transformers, sys; sys.exit(transformers.__version__ != sys.argv[1])"
    subprocess.run([sys.executable, "-c", seen, version], env=environment, check=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *tests]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    last = "nothing was printed"
    for line in process.stdout or ():
        print(line, end="", flush=True)
        last = line.strip() or last
    return process.wait() == 0, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", help=f"default: {OLDEST} {MIDDLE} and the newest")
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    arguments = parser.parse_args()
    rows = []
    for version in arguments.versions or [OLDEST, MIDDLE, newest()]:
        print(f"== transformers {version}", flush=True)
        start = time.perf_counter()
        passed, summary = run(version, arguments.tests)
        rows.append((version, "passed" if passed else "FAILED", f"{time.perf_counter() - start:.0f} s", summary))
    print(f"\n{'transformers':14}{'result':9}{'time':8}pytest")
    for version, result, seconds, summary in rows:
        print(f"{version:14}{result:9}{seconds:8}{summary}")
    sys.exit(any(result == "FAILED" for _, result, _, _ in rows))


if __name__ == "__main__":
    main()

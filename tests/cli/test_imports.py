"""What the command line imports before it knows that it needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "polars", "scipy"}


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["diagnose", "--help"], ["--version"], ["rules", "--help"], ["plan", "--help"], ["trace", "--help"]],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "inferdoc", *arguments], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in process.stderr.splitlines()}
    assert "typer" in imported  # the log was read
    assert not imported & HEAVY

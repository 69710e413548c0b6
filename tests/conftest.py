"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# Two test processes on two cores: torch threads of their own would fight over them. Inherited by subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)
# Without a card Triton interprets the kernels; it asks when it is imported. Inherited by subprocesses.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public traces and model configurations that stands beside a checkout; tests skip without it."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "traces").is_dir():
        pytest.skip("the shared traces and model configurations are not beside this checkout")
    return folder

"""The small model pair and the trace that ship inside the package, for a run without any download."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from inferdoc.errors import ModelError

EMBEDDED = "embedded"
"""The `--model` value that means the shipped target model."""


def embedded_path() -> Path:
    """Directory of the shipped target model.

    Raises:
        ModelError: the installation lacks it.
    """
    return _shipped("target", "config.json")


def embedded_draft_path() -> Path:
    """Directory of the shipped draft model, about a tenth of the target's size, same tokenizer."""
    return _shipped("draft", "config.json")


def bundled_trace_path() -> Path:
    """The shipped trace (chat JSONL, gzip)."""
    return _shipped("trace.jsonl.gz")


def _shipped(name: str, member: str | None = None) -> Path:
    # The package installs as plain files (no zip import), so the resource is a path that libraries can open.
    path = Path(str(resources.files("inferdoc.data") / name))
    if not (path / member if member else path).is_file():
        raise ModelError(f"the shipped {name} is missing from this installation; install it again, or name your own")
    return path

"""What ships inside the package, and the error where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferdoc.errors import ModelError
from inferdoc.models import EMBEDDED, bundled_trace_path, embedded, embedded_draft_path, embedded_path, read_spec


def test_shipped_files_are_found() -> None:
    assert embedded_path().joinpath("model.safetensors").is_file()
    assert embedded_draft_path().joinpath("model.safetensors").is_file()
    assert bundled_trace_path().name == "trace.jsonl.gz"


def test_embedded_is_a_model_name() -> None:
    target, draft = read_spec(EMBEDDED), read_spec(embedded_draft_path())
    assert target.name == EMBEDDED
    assert target.architecture == draft.architecture == "LlamaForCausalLM"
    assert 1_000_000 <= target.parameters <= 3_000_000
    assert draft.parameters < target.parameters / 4
    assert draft.vocab_size == target.vocab_size


def test_missing_files_are_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded.resources, "files", lambda _: tmp_path)
    with pytest.raises(ModelError, match="shipped target is missing"):
        embedded_path()

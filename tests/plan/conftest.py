"""A small model to work out by hand, and one listing of all published configurations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferdoc.cli import main
from inferdoc.devices.cards import CardSpec, find_card_spec
from inferdoc.models.listing import PlanReport, PlanSettings, plan_models
from inferdoc.models.planning import Plan


@pytest.fixture
def small_config() -> dict[str, Any]:
    """A two-layer Llama: 16,384 in the tied embedding, 36,864 + 128 in a layer, 64 in the last norm: 90,432."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


@pytest.fixture
def card() -> Callable[[int], CardSpec]:
    """A card with so many bytes."""
    return lambda size: CardSpec(id="made", name="made up", memory_bytes=size, memory_source="test", source="test")


@pytest.fixture(scope="session")
def listing(shared: Path) -> PlanReport:
    """What the acceptance command works out: every file of the folder, companions too, on one kind of card."""
    files = sorted(map(str, (shared / "model_configs").glob("*.json")))
    return plan_models(files, find_card_spec("h200_sxm"), PlanSettings(context_tokens=8192))


@pytest.fixture(scope="session")
def published(listing: PlanReport) -> Callable[[str], Plan]:
    """The plan of one of them, by name."""
    plans = {entry.plan.model: entry.plan for entry in listing.models if entry.plan is not None}
    return lambda name: plans[name]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Run ``inferdoc plan`` in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["inferdoc", "plan", *arguments])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run

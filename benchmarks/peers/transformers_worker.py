"""transformers: `generate` on one static batch, or its continuous batching."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
import transformers
from protocol import Run, serve
from transformers import AutoModelForCausalLM, GenerationConfig


def load(settings: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    torch.set_num_threads(settings["threads"])
    if settings["device"] != "cpu":
        torch.cuda.set_device(torch.device(settings["device"]).index or 0)
    transformers.logging.set_verbosity_error()
    model = load_transformers(settings)
    run = continuous(model, settings) if settings["mode"] == "continuous" else static(model)
    facts = {"version": transformers.__version__, "torch": torch.__version__}
    return run, facts | {"attention": model.config._attn_implementation}


def load_transformers(settings: dict[str, Any]) -> Any:
    """The model in evaluation mode; ``load_format`` dummy takes random weights from a configuration."""
    if settings.get("load_format") == "dummy":
        from inferdoc.models import load_model

        return load_model(
            settings["model"], dtype=settings["dtype"], device=settings["device"], load_format="dummy"
        ).model
    model = AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=getattr(torch, settings["dtype"]), attn_implementation="sdpa"
    )
    return model.to(settings["device"]).eval()


def forced(new_tokens: int) -> GenerationConfig:
    """Greedy, and no token ends an output."""
    return GenerationConfig(
        max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )


def static(model: Any) -> Run:
    @torch.inference_mode()
    def run(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts, device=model.device)  # all of one length: a batch without padding
        model.generation_config.eos_token_id = None
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=forced(new_tokens))
        tokens: list[list[int]] = output[:, ids.shape[1] :].tolist()
        return tokens

    return run


def continuous(model: Any, settings: dict[str, Any]) -> Run:
    """The pool is sized for the job."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    batching = ContinuousBatchingConfig(**known_fields(ContinuousBatchingConfig, settings["continuous"]))

    def run(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        outputs = model.generate_batch(
            prompts,
            generation_config=forced(new_tokens),
            continuous_batching_config=batching,
            persistent_manager=True,
        )
        # Requests are numbered in the order in which they were given.
        return [list(outputs[key].generated_tokens) for key in sorted(outputs, key=lambda key: int(key.split("_")[-1]))]

    return run


def known_fields(config: type, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings under the names of this version of transformers: up to 5.17 ``page_size`` is ``block_size``."""
    if "page_size" in {field.name for field in fields(config)}:
        return settings
    return {"block_size" if key == "page_size" else key: value for key, value in settings.items()}


if __name__ == "__main__":
    serve(load)

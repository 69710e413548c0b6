"""Keeps the libraries that read models off stderr, which belongs to our own progress."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def _no_bar(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    return items


@contextmanager
def silence() -> Iterator[None]:
    """No log lines, warnings or progress bars of transformers, the hub client and what they import; then as before."""
    from transformers.utils import logging as transformers_logging

    hub: Any = importlib.import_module("huggingface_hub.utils")

    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    hub_bars = not hub.are_progress_bars_disabled()
    hub_logger = logging.getLogger("huggingface_hub")
    hub_level = hub_logger.level
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # transformers imports torchao, which logs about kernels it was not built with
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    hub.disable_progress_bars()
    hub_logger.setLevel(logging.CRITICAL)
    # Reading GGUF draws a plain tqdm bar that no setting reaches; the module's own name for it is replaced.
    gguf = sys.modules.get("transformers.modeling_gguf_pytorch_utils")
    gguf_bar = getattr(gguf, "tqdm", None)
    if gguf_bar is not None:
        setattr(gguf, "tqdm", _no_bar)  # noqa: B010
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if gguf_bar is not None:
            setattr(gguf, "tqdm", gguf_bar)  # noqa: B010
        transformers_logging.set_verbosity(level)
        hub_logger.setLevel(hub_level)
        logging.disable(disabled)
        if bars:
            transformers_logging.enable_progress_bar()
        if hub_bars:
            hub.enable_progress_bars()

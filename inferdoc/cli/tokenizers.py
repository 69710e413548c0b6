"""A model's tokenizer for traces of text, without the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from inferdoc.errors import ModelError

if TYPE_CHECKING:
    from inferdoc.traces.tokens import Encode
    from inferdoc.traces.trace import Trace


def counted(trace: Trace, model: str | None) -> tuple[Trace, Encode | None]:
    """`trace` with the token ids of its texts, and the tokenizer; as it is where no model is named.

    Raises:
        ModelError: there is no such model, or its tokenizer cannot be loaded.
    """
    if model is None:
        return trace, None
    from transformers import AutoTokenizer

    from inferdoc.models import EMBEDDED, embedded_path, find_source, sequence_start
    from inferdoc.models.config_file import is_offline
    from inferdoc.models.quiet import silence
    from inferdoc.traces.tokens import tokenize

    folder = embedded_path() if model == EMBEDDED else Path(model).expanduser()
    location, is_local = str(folder), True
    if not folder.is_dir():
        source = find_source(model)
        location, is_local = source.location, source.directory is not None or is_offline()
    try:
        with silence():
            tokenizer = AutoTokenizer.from_pretrained(location, local_files_only=is_local)
    except Exception as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{model}: its tokenizer cannot be loaded ({first}); name a folder with tokenizer.json"
        ) from None

    def encode(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    return tokenize(trace, encode, begin=sequence_start(tokenizer)), encode

"""A model's tokenizer for traces of text, without the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferdoc.errors import ModelError

if TYPE_CHECKING:
    from inferdoc.traces.tokens import Encode
    from inferdoc.traces.trace import Trace


def counted(trace: Trace, model: str | None) -> tuple[Trace, Encode | None]:
    """`trace` with the token ids of its texts, and the tokenizer; as it is where no model is named.

    Raises:
        ModelError: the tokenizer cannot be loaded.
    """
    if model is None:
        return trace, None
    from transformers import AutoTokenizer

    from inferdoc.models.loading import sequence_start
    from inferdoc.models.quiet import silence
    from inferdoc.traces.tokens import tokenize

    location = model
    if model == "embedded":
        from inferdoc.models import embedded_path

        location = str(embedded_path())
    try:
        with silence():
            tokenizer = AutoTokenizer.from_pretrained(location)
    except Exception as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{model}: its tokenizer cannot be loaded ({first}); name a folder with tokenizer.json"
        ) from None

    def encode(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    return tokenize(trace, encode, begin=sequence_start(tokenizer)), encode

"""The texts that quality is measured on: the trace's own requests, or what ships with inferdoc where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import polars as pl

from inferdoc.data.mixture import mixture
from inferdoc.data.templates import Split
from inferdoc.models import sequence_start
from inferdoc.probes.context import ProbeContext
from inferdoc.traces.messages import render

TextSource = Literal["the trace", "shipped text"]
MOST_DOCUMENTS = 64
"""Of the embedded model and trace these leave the perplexity ratio of 8-bit weights known to within 0.4%, so that a
limit of 1% can be told from none."""
_SEED = 4


@dataclass(frozen=True)
class Document:
    """One text. Its parts depend on each other; documents are taken to be independent.

    scored_from: the first token that counts. Those before it are read only, as the prompt of a recorded output.
    """

    tokens: Sequence[int]
    scored_from: int = 1
    source: TextSource = "the trace"


def documents_of(context: ProbeContext, most: int = MOST_DOCUMENTS) -> list[Document]:
    """Requests of the trace with their recorded outputs, without those the whole prompts; else held-out shipped text.

    One request a session, drawn at random, since the turns of a session repeat each other. A trace of token ids is of
    some other tokenizer, as far as anybody knows, and counts as one without text. Empty where there is no tokenizer.
    """
    if context.trace.content == "text":
        return _of_trace(context, most)
    return shipped_documents(context, most)


def shipped_documents(context: ProbeContext, most: int = MOST_DOCUMENTS) -> list[Document]:
    """Conversations and plain texts of the held-out wording, in the model's tokens; empty without a tokenizer."""
    tokenizer = context.loaded.tokenizer
    if tokenizer is None:
        return []
    start = sequence_start(tokenizer)
    documents = []
    for text in islice(mixture(Split.HELDOUT, f"quality:{context.settings.seed}"), most):
        prompt, output = ("", text) if isinstance(text, str) else (render(text[:-1]), text[-1]["content"])
        prompt_ids, output_ids = tokenizer([prompt, output], add_special_tokens=False)["input_ids"]
        before = [*start, *prompt_ids]
        documents.append(Document([*before, *output_ids], max(1, len(before)), "shipped text"))
    return documents


def _of_trace(context: ProbeContext, most: int) -> list[Document]:
    rows = context.trace.rows.filter(pl.col("prompt_text").is_not_null())
    order = np.random.default_rng([context.settings.seed, _SEED]).permutation(len(rows)).tolist()
    sessions = rows["session"].to_list()
    first_of = {sessions[row] if sessions[row] is not None else row: row for row in reversed(order)}
    chosen = rows[sorted(list(first_of.values())[::-1][:most])]
    return [
        Document([*prompt, *(output or [])], len(prompt) if output else 1)
        for prompt, output in zip(chosen["prompt_ids"].to_list(), chosen["output_ids"].to_list(), strict=True)
    ]

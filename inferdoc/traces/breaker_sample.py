"""The prompts that are compared with each other: contiguous windows of a trace, with a measure of their lengths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from inferdoc.traces.breaker_alignment import Units
from inferdoc.traces.tokens import Encode
from inferdoc.traces.trace import Trace

CHARACTERS_PER_TOKEN = 4
"""Taken where a text has no token ids."""
_PROMPTS = 2_000
_WINDOWS = 4
_SEED = 0
_UNITS = {"text": 8_000_000, "encoded text": 2_000_000, "token ids": 4_000_000}
_TEXTS_AT_ONCE = 256


@dataclass
class Sample:
    """Prompts as units (code points, else token ids), and what one unit counts."""

    texts: list[str] | None
    ids: list[Units] | None
    """Token ids of each prompt; ``None`` where they are not known."""
    models: list[str | None]
    requests: int
    """Requests in the trace whose prompts are known."""
    cut: int
    """Prompts of which only the first part is looked at."""
    windows: int
    encode: Encode | None = None

    def __post_init__(self) -> None:
        self.units = self.ids or []
        if self.texts is not None:
            self.units = [_code_points(text) for text in self.texts]
            if self.encode is not None:
                self.ids = [np.array(ids, np.uint64) for ids in _encoded(self.texts, self.encode)]
        self._pieces: dict[str, int] = {}

    @property
    def totals(self) -> list[int]:
        """Length of each prompt, in tokens where they are known, else in characters."""
        return [len(prompt) for prompt in (self.units if self.ids is None else self.ids)]

    @property
    def exact(self) -> bool:
        """Whether lengths of pieces are counted, not scaled from characters."""
        return self.texts is None or self.encode is not None

    @property
    def in_tokens(self) -> bool:
        return self.ids is not None

    def lengths(self, index: int, cuts: Sequence[int]) -> list[float]:
        """Lengths of the pieces of prompt `index` between `cuts` (ascending, in units): tokens, else characters."""
        spans = list(itertools.pairwise(cuts))
        if self.texts is None or self.ids is None:
            return [float(end - start) for start, end in spans]
        if self.encode is None:
            scale = len(self.ids[index]) / max(1, len(self.units[index]))
            return [(end - start) * scale for start, end in spans]
        pieces = [self.texts[index][start:end] for start, end in spans]
        new = [piece for piece in dict.fromkeys(pieces) if piece not in self._pieces]
        self._pieces.update(zip(new, map(len, self.encode(new)) if new else (), strict=True))
        return [float(self._pieces[piece]) for piece in pieces]

    def hits(self, block: int) -> list[int]:
        """What an ideal prefix cache serves of each prompt now, prompts of different models apart."""
        known: dict[tuple[object, bytes], int] = {}
        served = []
        for model, prompt in zip(self.models, self.units if self.ids is None else self.ids, strict=True):
            raw, width = prompt.tobytes(), block * prompt.itemsize
            parent: object = model
            found, missed = 0, False
            for at in range(0, len(raw) - width + 1, width):
                key = (parent, raw[at : at + width])
                missed = missed or key not in known
                found += not missed
                parent = known.setdefault(key, len(known))
            served.append(min(found, max(0, len(prompt) - 1) // block) * block)
        return served


def take(trace: Trace, encode: Encode | None) -> Sample | str:
    """The prompts to compare, texts where there are any, or why there are none to compare."""
    rows = trace.rows
    column = "prompt_text" if trace.has("prompt_text") else "prompt_ids"
    if not trace.has(column) or (column == "prompt_ids" and trace.seeded_ids):
        return f"the trace holds {trace.content}: which part of a prompt differs can only be seen in texts or token ids"
    size = pl.col(column).str.len_chars() if column == "prompt_text" else pl.col(column).list.len()
    sizes = rows.select(size.cast(pl.Int64).alias("size"))["size"]
    known = np.flatnonzero(sizes.is_not_null().to_numpy())
    if len(known) < 2:
        return "one prompt: there is no other to compare it with"
    kind = "token ids" if column == "prompt_ids" else "text" if encode is None else "encoded text"
    chosen, windows = _windows(sizes.to_numpy()[known], _UNITS[kind])
    longest = _UNITS[kind] // 8
    picked = rows[known[chosen].tolist()]
    cut = int((sizes.to_numpy()[known[chosen]] > longest).sum())
    ids = None
    if column == "prompt_ids" or (encode is None and not trace.seeded_ids and not cut):
        ids = _ids(picked["prompt_ids"], longest if column == "prompt_ids" else None)
    texts = None
    if column == "prompt_text":
        texts = [text[:longest] for text in picked["prompt_text"].to_list()]
    models = picked["model"].to_list()
    return Sample(texts, ids, models, len(known), cut, windows, encode if texts is not None else None)


def _windows(sizes: Units, budget: int) -> tuple[list[int], int]:
    """Positions of the prompts taken and in how many windows: all if they are few, else from each quarter a window."""
    if len(sizes) <= _PROMPTS and int(np.minimum(sizes, budget // 8).sum()) <= budget:
        return list(range(len(sizes))), 1
    random, chosen = np.random.default_rng(_SEED), list[int]()
    edges = np.linspace(0, len(sizes), _WINDOWS + 1).astype(int).tolist()
    for start, end in itertools.pairwise(edges):
        most = min(_PROMPTS // _WINDOWS, end - start)
        first = start + int(random.integers(0, end - start - most + 1))
        spent = np.cumsum(np.minimum(sizes[first : first + most], budget // 8))
        chosen += range(first, first + max(1, int(np.searchsorted(spent, budget // _WINDOWS, side="right"))))
    return chosen, _WINDOWS


def _ids(prompts: pl.Series, longest: int | None) -> list[Units] | None:
    """Token ids of each prompt, ``None`` where one has none."""
    if prompts.null_count():
        return None
    return [prompt.cast(pl.Int64).to_numpy()[:longest].astype(np.uint64) for prompt in prompts]


def _code_points(text: str) -> Units:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)


def _encoded(texts: list[str], encode: Encode) -> list[list[int]]:
    return [ids for at in range(0, len(texts), _TEXTS_AT_ONCE) for ids in encode(texts[at : at + _TEXTS_AT_ONCE])]

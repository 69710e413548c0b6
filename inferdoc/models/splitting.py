"""Spreads a model over cards: tensor parallelism within a layer, pipeline parallelism over layers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from inferdoc.evidence import Contract
from inferdoc.models.sizing import activation_bytes
from inferdoc.models.spec import ModelSpec

OUTSIDE_BYTES = 2**30
"""CUDA context, libraries, communicators and graphs of one rank: assumed, not measured."""
NODE = 8
MOST_CARDS = 128


class Split(Contract):
    """One way to spread the model. Bytes are of the rank that has least room left."""

    tensor_parallel: int
    pipeline_parallel: int
    gpus: int
    fits: bool
    """Weights, overhead, and the KV of the asked number of sequences."""
    needs: str | None = None
    """What a server must be told for this split to load, beside the numbers of ranks."""
    weight_bytes: int
    activation_bytes: int
    outside_bytes: int
    kv_free_bytes: int
    """Negative: so much is lacking."""
    kv_tokens: int
    largest_batch: int


class Layout:
    """One model on one kind of card: what each split leaves for KV."""

    def __init__(
        self,
        *,
        spec: ModelSpec,
        weights: int,
        element: int,
        cache: str,
        context: int,
        batch: int,
        budget: int,
        step: tuple[int, int],
    ) -> None:
        self.spec = spec
        self.cache = cache
        self.context = context
        self.batch = batch
        self.budget = budget
        self.step = step
        self.table = spec.vocab_size * spec.hidden_size * element
        """Bytes of an embedding, or of an output head."""
        outside = self.table * (1 if spec.tied_embeddings else 2) + spec.vision_parameters * element
        self.weights = weights
        self.first = self.table + spec.vision_parameters * element
        self.a_layer = max(0, weights - outside) / len(spec.layers)

    def fewest(self) -> list[Split]:
        """The splits of the fewest cards that hold it, those that fit first; empty where no number does."""
        for count in (*range(1, NODE + 1), *range(2 * NODE, MOST_CARDS + 1, NODE)):
            found = self.splits(count)
            if found and found[0].fits:
                return found
        return []

    def splits(self, count: int) -> list[Split]:
        """Every split over `count` cards: those that fit first, of them those with most tensor parallelism.

        It shortens each step, and pipeline stages do not; with MLA they leave more room, since a latent is not divided.
        Splits that need more than the numbers of ranks come after those that do not.
        """
        found = [
            self._split(ranks, count // ranks)
            for ranks in tensor_parallel_sizes(self.spec)
            if count % ranks == 0 and count // ranks <= len(self.spec.layers)
        ]

        def rank(one: Split) -> tuple[bool, bool, int]:
            return (not one.fits, one.needs is not None, -one.tensor_parallel if one.fits else -one.kv_free_bytes)

        return sorted(found, key=rank)

    def _split(self, ranks: int, stages: int) -> Split:
        tokens, sequences = self.step
        activations = activation_bytes(
            self.spec.step_width,
            hidden_size=self.spec.hidden_size,
            vocab_size=self.spec.vocab_size,
            tokens=tokens,
            sequences=sequences,
            tensor_parallel=ranks,
        )
        room = []
        for weights, layers in self._stages(stages):
            share = math.ceil(weights / ranks)
            free = self.budget - share - activations - OUTSIDE_BYTES
            sequence = self.spec.kv_parts(self.context, dtype=self.cache, tensor_parallel=ranks, layers=layers).total
            room.append((free, share, sequence))
        keeps = [(free, sequence) for free, _, sequence in room if sequence]
        batch = max(0, min((free // sequence for free, sequence in keeps), default=0))
        free, share, _ = min(room)
        return Split(
            tensor_parallel=ranks,
            pipeline_parallel=stages,
            gpus=ranks * stages,
            fits=free >= 0 and batch >= self.batch,
            needs=_needs(self.spec, ranks),
            weight_bytes=share,
            activation_bytes=activations,
            outside_bytes=OUTSIDE_BYTES,
            kv_free_bytes=free,
            kv_tokens=max(0, min((free * self.context // sequence for free, sequence in keeps), default=0)),
            largest_batch=batch if free >= 0 else 0,
        )

    def _stages(self, stages: int) -> Iterator[tuple[float, slice]]:
        """Weights and layers of each pipeline stage. What does not divide goes to the stages before the last."""
        if stages == 1:
            yield self.weights, slice(None)
            return
        each, more = divmod(len(self.spec.layers), stages)
        begin = 0
        for stage in range(stages):
            end = begin + each + (stages - 1 - more <= stage < stages - 1)
            outside = self.first if stage == 0 else self.table if stage == stages - 1 else 0
            yield self.a_layer * (end - begin) + outside, slice(begin, end)
            begin = end


def tensor_parallel_sizes(spec: ModelSpec) -> list[int]:
    """Numbers of ranks, up to a node, over which the model can be cut.

    Query heads divide; KV heads divide, or divide the ranks and are copied. A latent (MLA) has no heads to divide and
    is held whole by every rank. Widths divide too, and into whole blocks of scales; those of experts need not, as
    experts can be spread whole.
    """
    return [ranks for ranks in _head_sizes(spec) if not _refusal(spec, ranks)]


def refused_sizes(spec: ModelSpec) -> dict[int, str]:
    """Numbers of ranks that the heads would allow and servers refuse, with the reason."""
    return {ranks: why for ranks in _head_sizes(spec) if (why := _refusal(spec, ranks))}


def _head_sizes(spec: ModelSpec) -> list[int]:
    groups = {layer.kv_heads for layer in spec.layers if layer.kv_heads and not layer.latent_dim}
    return [
        ranks
        for ranks in range(1, NODE + 1)
        if spec.attention_heads % ranks == 0 and all(heads % ranks == 0 or ranks % heads == 0 for heads in groups)
    ]


def _refusal(spec: ModelSpec, ranks: int) -> str | None:
    return next((why for cut in spec.cuts if not cut.expert and (why := cut.refuses(ranks))), None)


def _needs(spec: ModelSpec, ranks: int) -> str | None:
    why = next((why for cut in spec.cuts if cut.expert and (why := cut.refuses(ranks))), None)
    return f"expert parallelism (servers refuse TP{ranks} alone: {why})" if why else None

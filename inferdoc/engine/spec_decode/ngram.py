"""Prompt lookup: what followed the last tokens when they occurred before is proposed to follow them again."""

from __future__ import annotations

from collections.abc import Sequence

from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.proposal import Draft, wanted


class NgramIndex:
    """First occurrences of the n-grams of one growing sequence.

    The longest n-gram that ends the sequence and occurred before decides; among its occurrences the first (as vLLM has
    it). Memory: one entry for each different n-gram of each length.

    Args:
        shortest, longest: tokens of the n-grams looked up.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        """Where each n-gram first ended."""
        self._indexed = 0
        """n-grams that end here or earlier are in the index."""

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens to follow `tokens`, which begin with those of the last call. Costs O(new tokens + most).

        Only n-grams that end before the last token are found: the end of the sequence is not its own match.
        """
        ends, size = self._ends, len(tokens)
        for end in range(self._indexed + 1, size):
            for n in self._lengths:
                if n <= end:
                    ends.setdefault(tuple(tokens[end - n : end]), end)
        self._indexed = max(self._indexed, size - 1)
        for n in self._lengths:
            if n <= size and (found := ends.get(tuple(tokens[size - n :]))) is not None:
                return list(tokens[found : found + most])
        return []


class NgramDrafter:
    """Proposes for each request by its own prompt and output."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config
        self._indexes: dict[Request, NgramIndex] = {}

    def propose(self, running: Sequence[Request]) -> None:
        config = self._config
        for request in running:
            if most := wanted(request, config.num_speculative_tokens):
                index = self._indexes.get(request)
                if index is None:
                    index = self._indexes[request] = NgramIndex(config.prompt_lookup_min, config.prompt_lookup_max)
                if tokens := index.propose(request.tokens, most):
                    request.draft = Draft(tokens)
        for request in [request for request in self._indexes if request.finished]:
            del self._indexes[request]

    def follow(self, batch: Batch) -> None:
        """The tokens are all there is to know."""

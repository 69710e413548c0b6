"""Prompt lookup against a search that tries every place."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch, Row
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.ngram import NgramDrafter, NgramIndex


def searched(tokens: list[int], shortest: int, longest: int, most: int) -> list[int]:
    """The longest suffix that occurred before, at its first occurrence."""
    for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + most]
    return []


@settings(deadline=None, max_examples=300)
@given(
    pieces=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=8),
    shortest=st.integers(1, 3),
    more=st.integers(0, 3),
    most=st.integers(1, 5),
)
def test_growing_sequences_give_what_a_search_finds(pieces, shortest, more, most):
    index = NgramIndex(shortest, shortest + more)
    tokens: list[int] = []
    for piece in pieces:
        tokens += piece
        assert index.propose(tokens, most) == searched(tokens, shortest, shortest + more, most)


def test_the_longest_match_counts_and_then_the_first():
    index = NgramIndex(2, 3)
    assert index.propose([1, 2, 7, 7, 9, 1, 2, 8, 5, 1, 2], 2) == [7, 7]
    assert index.propose([1, 2, 7, 7, 9, 1, 2, 8, 5, 1, 2, 9, 1, 2], 2) == [8, 5]
    assert NgramIndex(3, 4).propose([1, 2, 3, 1, 2], 4) == []
    assert NgramIndex(1, 4).propose([6, 6, 6], 4) == [6]


class Watched(list):
    """Counts the tokens that are read."""

    read = 0

    def __getitem__(self, at):
        found = super().__getitem__(at)
        Watched.read += len(found) if isinstance(at, slice) else 1
        return found


def test_a_step_reads_no_more_tokens_in_a_long_sequence():
    index, tokens = NgramIndex(2, 4), Watched(i % 50 for i in range(20_000))
    index.propose(tokens, 4)
    Watched.read = 0
    for i in range(100):
        tokens.append(i % 50)
        index.propose(tokens, 4)
    assert Watched.read <= 100 * (2 * (2 + 3 + 4) + 4)


class Counting:
    """A model whose next token is the last one plus one, modulo five. Notes each step's drafts."""

    def __init__(self) -> None:
        self.notes: list[tuple[list[int], Row]] = []

    def configure(self, config: EngineConfig) -> None:
        pass

    def execute(self, batch: Batch) -> list[int]:
        return [tokens[0] for tokens in self.verify(batch)]

    def verify(self, batch: Batch) -> list[list[int]]:
        emitted = []
        for row in batch.rows:
            tokens = row.request.tokens[: row.end - row.drafted].tolist()
            self.notes.append((tokens, row))
            if row.samples:
                drafted = row.draft.tokens if row.draft else []
                own = [(token + 1) % 5 for token in [tokens[-1], *drafted]]
                stands = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
                emitted.append(own[: stands + 1])
        return emitted


def test_each_request_is_drafted_for_from_its_own_tokens_until_it_is_done():
    config = EngineConfig(
        max_model_len=64,
        num_kv_blocks=64,
        block_size=4,
        speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=3),
    )
    runner = Counting()
    engine = Engine(runner, config)
    assert isinstance(engine.drafter, NgramDrafter)
    requests = [Request(0, [0, 1, 2, 3, 4, 0], 31), Request(1, [7, 8, 9], 31), Request(2, [3, 4, 9, 3], 31)]
    result = engine.run(requests)
    for tokens, row in runner.notes:
        if row.decodes:
            expected = searched(tokens, 2, 4, 3)[: row.request.max_length - len(tokens) - 1]
            assert (row.draft.tokens if row.draft else []) == expected
    assert requests[0].drafted == requests[0].accepted > 20, "it goes on as it went on before"
    assert 15 < requests[2].accepted < requests[2].drafted, "after '3 4' comes the prompt's 9"
    assert sum(step.drafted for step in result.steps) == sum(request.drafted for request in requests)
    engine.drafter.propose([])
    assert not engine.drafter._indexes

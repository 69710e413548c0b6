"""Acceptance worked out from recorded outputs, against hand-worked values, the engine itself and a naive search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.engine import Engine
from inferdoc.engine.request import Request
from inferdoc.engine.scheduler import Batch
from inferdoc.engine.spec_decode.config import SpeculativeConfig
from inferdoc.engine.spec_decode.proposal import Draft, DraftCounts, wanted
from inferdoc.engine.spec_decode.replay import Acceptance, Places, Replay, model_places, ngram_places, walk

TOKENS = st.integers(0, 3)
OUTPUTS = st.lists(TOKENS, min_size=1, max_size=30)


def ngrams(prompt: list[int], output: list[int], most: int = 8) -> Places:
    return ngram_places(prompt, output, shortest=2, longest=4, most=most)


def test_a_copied_span_is_walked_by_hand():
    """After "1 2" the prompt went on with 3 4 5 6; the record agrees on 3 4 and then turns to 9."""
    places = ngrams([1, 2, 3, 4, 5, 6, 1], [2, 3, 4, 9])
    assert places.offered == [0, 6, 6, 6]  # 3 4 5 6 1 2, then 4 5 6 1 2 3, then 5 6 1 2 3 4
    assert places.agreed == [0, 2, 1, 0]
    # Four tokens: the first came with the prompt, the last is never drafted. With k = 4 one step drafts 3 4.
    assert walk(places, 4) == Acceptance(DraftCounts((1, 1), (1, 1), (0, 0)), steps=1, emitted=3)
    # With k = 1 it drafts 3 and emits 3 4; the step for 9 has nothing to draft.
    assert walk(places, 1) == Acceptance(DraftCounts((1,), (1,), (0,)), steps=2, emitted=3)


def test_a_draft_models_hits_are_walked_by_hand():
    """Tokens 1, 2 and 4 of the output (counted from 0) are guessed right, token 3 is not."""
    places = model_places([True, True, False, True])
    assert places.agreed == [0, 2, 1, 0, 1]
    # k = 2: drafts 1 2, both stand and 3 comes with them; the step for 4 has nothing to draft.
    assert walk(places, 2) == Acceptance(DraftCounts((1, 1), (1, 1), (0, 0)), steps=2, emitted=4)
    # k = 1: drafts 1 (stands, 2 comes with it), drafts 3 (rejected), and 4 is the last.
    one = walk(places, 1)
    assert one == Acceptance(DraftCounts((2,), (1,), (1,)), steps=3, emitted=4)
    assert one.alpha == 0.5
    assert one.tokens_per_step == pytest.approx(4 / 3)
    assert one.rates() == (1 / 3,)  # of the three steps one had its first place accepted


def test_alpha_is_not_accepted_over_drafted():
    """Of the first draft of 4 tokens 1 stands and 1 is rejected, 2 are never judged; the second of 3 stands whole."""
    seen = walk(model_places([True, False, True, True, True, True]), 4)
    assert seen == Acceptance(DraftCounts((2, 2, 2, 1), (2, 1, 1, 0), (0, 1, 0, 0)), steps=2, emitted=6)
    assert seen.accepted / seen.proposed == 4 / 7
    assert seen.alpha == 4 / 5
    assert seen.drafts.conditional_rates() == [1.0, 0.5, 1.0, None]
    assert seen.rates() == (1.0, 0.5, 1.0, 0.0)


def test_one_token_is_no_decode_step_and_nothing_is_known_of_it():
    seen = Replay.of([ngrams([1, 2], [3]), model_places([])], [4]).by_k[4]
    assert seen == Acceptance()
    assert (seen.alpha, seen.tokens_per_step, seen.rates()) == (None, None, ())


def test_text_without_repetition_proposes_nothing():
    seen = walk(ngrams(list(range(20)), list(range(20, 30))), 4)
    assert (seen.steps, seen.emitted, seen.proposed) == (9, 9, 0)


class Recorded:
    """A runner whose model says what was recorded."""

    def __init__(self, output: list[int]) -> None:
        self.output = output

    def configure(self, config: EngineConfig) -> None:
        pass

    def execute(self, batch: Batch) -> list[int]:
        return [tokens[0] for tokens in self.verify(batch)]

    def verify(self, batch: Batch) -> list[list[int]]:
        (row,) = batch.rows
        drafted = row.draft.tokens if row.draft else []
        own = self.output[len(row.request.output) :][: len(drafted) + 1]
        stands = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
        return [own[: stands + 1]]


class Model:
    """Drafts each place by a table: right or wrong."""

    def __init__(self, output: list[int], hits: list[bool], k: int) -> None:
        self.output, self.hits, self.k = output, hits, k

    def propose(self, running: list[Request]) -> None:
        for request in running:
            if most := wanted(request, self.k):
                at = len(request.output)
                request.draft = Draft([self.output[i] ^ (not self.hits[i - 1]) for i in range(at, at + most)])

    def follow(self, batch: Batch) -> None:
        pass


def of_engine(prompt: list[int], output: list[int], k: int, drafter: Model | None = None) -> Acceptance:
    config = EngineConfig(
        max_model_len=256,
        num_kv_blocks=16,
        max_num_seqs=1,
        speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=k),
    )
    steps = Engine(Recorded(output), config, drafter=drafter).run([Request(0, prompt, len(output))]).steps
    decodes = [step for step in steps if step.decode_rows]
    drafts = sum((step.drafts for step in decodes if step.drafts), DraftCounts())
    return Acceptance(drafts, len(decodes), len(decodes) + sum(drafts.accepted))


@given(st.lists(TOKENS, min_size=1, max_size=30), OUTPUTS, st.integers(1, 8))
def test_replayed_lookups_are_those_of_the_engine(prompt, output, k):
    assert walk(ngrams(prompt, output), k) == of_engine(prompt, output, k)


@given(OUTPUTS, st.data(), st.integers(1, 8))
def test_replayed_guesses_are_those_of_the_engine(output, data, k):
    count = len(output) - 1
    hits = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    assert walk(model_places(hits), k) == of_engine([1], output, k, Model(output, hits, k))


@given(OUTPUTS, OUTPUTS)
def test_lookups_equal_a_naive_search(prompt, output):
    places = ngrams(prompt, output, most=4)
    for at in range(1, len(output)):
        tokens = prompt + output[:at]
        draft: list[int] = []
        for n in (4, 3, 2):
            ends = [e for e in range(n, len(tokens)) if len(tokens) > n and tokens[e - n : e] == tokens[-n:]]
            if ends:
                draft = tokens[ends[0] : ends[0] + 4]
                break
        agreed = 0
        while agreed < len(draft) and output[at + agreed : at + agreed + 1] == [draft[agreed]]:
            agreed += 1
        assert (places.offered[at], places.agreed[at]) == (len(draft), agreed)

"""What probes work out from lengths and tokens alone, against hand-worked and brute-force values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferdoc.probes.kv_fragmentation import tail_waste
from inferdoc.probes.output_variance import static_waste
from inferdoc.probes.token_latency import Acceptance, ngram_acceptance


def test_equal_outputs_waste_nothing_in_static_batches() -> None:
    assert static_waste(np.array([64] * 32), 32) == 0


def test_one_long_output_wastes_a_whole_static_batch() -> None:
    assert static_waste(np.array([16] * 31 + [1024]), 32) == pytest.approx(1 - 1520 / 32768)


def test_slot_steps_and_useful_steps_of_two_batches() -> None:
    outputs = np.array([20, 5, 5, 4, 16, 16, 16, 12])
    assert outputs.sum() == 94
    assert static_waste(outputs, 4) == pytest.approx(1 - 94 / 144)


def test_the_last_smaller_batch_counts_its_own_slots() -> None:
    assert static_waste(np.array([4, 4, 10]), 2) == 0


def test_tail_waste_of_two_short_requests_in_large_blocks() -> None:
    assert tail_waste(np.array([2, 2]), 128) == pytest.approx(252 / 256)
    assert tail_waste(np.array([128, 256]), 128) == 0


def test_two_of_four_drafts_accepted_is_three_tokens_a_step() -> None:
    # After "1 2" the prompt once went on with 3 4 5 6: the record agrees on 3 4, then turns to 9; and once more.
    prompt = [1, 2, 3, 4, 5, 6, 1, 2]
    assert ngram_acceptance(prompt, [3, 4, 9]) == Acceptance(proposed=4, accepted=2, steps=1, emitted=3)


def test_tokens_past_the_end_of_the_output_do_not_count() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 1, 2]
    assert ngram_acceptance(prompt, [3, 4]) == Acceptance(proposed=4, accepted=2, steps=1, emitted=2)


def test_text_without_repetition_proposes_nothing() -> None:
    assert ngram_acceptance(list(range(20)), list(range(20, 30))) == Acceptance(steps=10, emitted=10)


def test_verbatim_copies_are_accepted_almost_whole() -> None:
    prompt = [*range(100), 0, 1]
    total = ngram_acceptance(prompt, list(range(2, 98)))
    assert total.accepted / total.proposed > 0.9
    assert total.emitted == 96


def brute_force(prompt: list[int], output: list[int]) -> Acceptance:
    """The same rule, searched naively at each step."""
    tokens, at, total = list(prompt), 0, Acceptance()
    while at < len(output):
        draft: list[int] = []
        for n in (4, 3, 2):
            if len(tokens) < n:
                continue
            ends = [e for e in range(n, len(tokens)) if tokens[e - n : e] == tokens[-n:]]
            if ends:
                draft = tokens[ends[0] : ends[0] + 4]
                break
        accepted = 0
        while accepted < len(draft) and at + accepted < len(output) and draft[accepted] == output[at + accepted]:
            accepted += 1
        emitted = min(accepted + 1, len(output) - at)
        total += Acceptance(len(draft), accepted, 1, emitted)
        tokens += output[at : at + emitted]
        at += emitted
    return total


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_ngram_drafting_equals_a_naive_search(prompt: list[int], output: list[int]) -> None:
    assert ngram_acceptance(prompt, output) == brute_force(prompt, output)

"""Synthesized traces: lengths, arrivals and prefix reuse of what they are made from, with other requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import read_trace
from inferdoc.traces.chains import chain
from inferdoc.traces.files import write_trace
from inferdoc.traces.lineages import lineages
from inferdoc.traces.prompt_blocks import recorded_blocks
from inferdoc.traces.resampling import arrival_times, draw_requests
from inferdoc.traces.synthesis import synthesize


def numbers(made):
    return {entry.label: (entry.before, entry.after) for entry in made.comparison.numbers}


@pytest.fixture(scope="module")
def conversations(shared):
    return read_trace(shared / "traces/mooncake/conversation_trace.jsonl")


@pytest.mark.parametrize("share", [1, 2])
def test_reuse_lengths_and_bursts_stay(conversations, share):
    found = numbers(synthesize(conversations, share * len(conversations), seed=3))
    assert found["ideal hit rate"][1] == pytest.approx(found["ideal hit rate"][0], abs=0.01)
    for label, (before, after) in found.items():
        if label.startswith("cache for"):
            assert after == pytest.approx(before, rel=0.1)
        if label.startswith(("input", "output")):
            assert after == pytest.approx(before, rel=0.02)
        if label.startswith("index of dispersion"):
            assert after == pytest.approx(before, rel=0.35)
    assert found["rate"][1] == pytest.approx(found["rate"][0], rel=0.05)
    assert found["rank correlation of input and output"][1] == pytest.approx(0.0717, abs=0.02)


def test_a_shuffle_of_arrivals_would_not_keep_the_bursts(shared):
    """The Azure code trace has an index of dispersion of 167 in a minute; gaps drawn one by one give about 10."""
    trace = read_trace(shared / "traces/azure/AzureLLMInferenceTrace_code.csv")
    found = numbers(synthesize(trace, len(trace)))
    assert found["index of dispersion, 60 s"][1] == pytest.approx(found["index of dispersion, 60 s"][0], rel=0.4)
    assert found["CV of times between requests"][1] == pytest.approx(13.15, rel=0.3)


def test_few_requests_say_that_more_of_them_are_new(conversations):
    made = synthesize(conversations, 1000)
    assert len(made.trace) == 1000
    assert numbers(made)["ideal hit rate"][1] < numbers(made)["ideal hit rate"][0]
    assert any("seen for the first time" in note for note in made.notes)


def test_equal_seeds_are_equal_traces_and_the_file_says_what_it_is(conversations, tmp_path):
    one, same, other = (synthesize(conversations, 500, seed=seed) for seed in (1, 1, 2))
    assert one.trace.fingerprint() == same.trace.fingerprint() != other.trace.fingerprint()
    write_trace(one.trace, tmp_path / "s.jsonl", one.notes)
    again = read_trace(tmp_path / "s.jsonl")
    assert again.notes[0].startswith("synthetic: 500 requests drawn from 12,031")
    assert "ideal hit rate" in again.notes[0]
    assert len(again) == 500


def test_equal_seeds_are_equal_traces_of_texts_too(shared):
    trace = read_trace(shared / "traces/otel")
    assert synthesize(trace, 40).trace.fingerprint() == synthesize(trace, 40).trace.fingerprint()


def test_sessions_keep_their_turns_and_get_other_names(trace_of):
    trace = trace_of(
        arrival_s=[float(i) for i in range(8)],
        input_tokens=[10, 20, 30, 11, 21, 31, 12, 22],
        output_tokens=[1] * 8,
        session=["a", "b", "a", "c", "b", "a", None, None],
        turn=[1, 1, 2, 1, 2, 3, None, None],
        e2e_s=[1.0] * 8,
    )
    made = synthesize(trace, 80).trace.rows
    assert made["e2e_s"].null_count() == 80
    by_session: dict[str, list[tuple[int, int]]] = {}
    for session, turn, tokens in made.select("session", "turn", "input_tokens").iter_rows():
        by_session.setdefault(session, []).append((turn, tokens))
    alone = by_session.pop(None)
    assert {tokens for _, tokens in alone} == {12, 22}
    whole = {((1, 10), (2, 30), (3, 31)), ((1, 20), (2, 21)), ((1, 11),)}
    for turns in by_session.values():
        assert any(tuple(turns) == of[: len(turns)] for of in whole)
    assert not {"a", "b", "c"} & set(by_session)


def test_independent_clocks_have_no_arrival_process(trace_of):
    trace = trace_of(
        arrival_s=[0, 0], input_tokens=[1, 1], output_tokens=[1, 1], segment=[0, 1], independent_clocks=True
    )
    with pytest.raises(TraceError, match="clocks of their own"):
        synthesize(trace, 5)


def test_a_cycled_trace_warns_where_reuse_would_be_flattered(trace_of):
    """Twenty-five prompts of one block each share it: 24 of 25 hit; a hundred copies would hit nearly always."""
    prompts = [[1] * 17 for _ in range(25)]
    trace = trace_of(input_tokens=[17] * 25, output_tokens=[1] * 25, prompt_ids=prompts)
    made = synthesize(trace, 2500)
    before, after = numbers(made)["ideal hit rate"]
    assert before == pytest.approx(16 * 24 / (17 * 25))
    assert after == pytest.approx(16 * 2499 / (17 * 2500))
    assert made.comparison.warnings
    assert any("does not carry over" in note for note in made.notes)


def test_gaps_are_stretches_of_the_trace():
    times = np.cumsum(np.arange(1000, dtype=float))  # gap i is i + 1, so that order shows
    drawn = arrival_times(times, 1000, np.random.default_rng(0))
    gaps = np.diff(drawn)
    assert drawn[0] == 0
    follows = np.diff(gaps) == 1
    assert follows.mean() > 0.9
    assert np.corrcoef(gaps, np.arange(len(gaps)))[0, 1] > 0.99


def test_lineages_are_drawn_whole_and_evenly():
    lineage = np.array([0, 1, 0, 2, 1, 0, 3, 4, 5, 6])
    chosen, generation = draw_requests(lineage, 1000, np.random.default_rng(5))
    assert len(chosen) == 1000
    drawn = Counter(lineage[chosen].tolist())
    sizes = Counter(lineage.tolist())
    assert max(drawn[own] / sizes[own] for own in sizes) - min(drawn[own] / sizes[own] for own in sizes) <= 25
    for own in (0, 1):
        for copy in set(generation.tolist()):
            mine = chosen[(lineage[chosen] == own) & (generation == copy)].tolist()
            assert mine == sorted(mine)


def test_prompts_that_go_on_are_one_lineage(trace_of):
    system = [1, 2]
    prompts = [[*system, 3, 4], [*system, 9, 9], [*system, 3, 4, 5], [*system, 3, 4, 5, 6, 7], [*system, 8, 8]]
    trace = trace_of(input_tokens=[16 * len(p) for p in prompts], output_tokens=[1] * 5, prefix_blocks=prompts)
    trace = replace(trace, block_size=16)
    assert lineages(trace, chain(recorded_blocks(trace))).tolist() == [0, 1, 0, 0, 2]

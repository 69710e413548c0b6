"""Sessions, the most reused prefixes and reuse at any position, against plain loops."""

from __future__ import annotations

import statistics
from collections import defaultdict
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces import SCHEMA, Trace
from inferdoc.traces.miss_ratio import stack_distances
from inferdoc.traces.prefix_tree import grow
from inferdoc.traces.prompt_blocks import recorded_blocks
from inferdoc.traces.reuse import any_position, most_reused, session_numbers, session_sharing

BLOCK = 4
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=20)


def trace_of(prompts, rest=None, **columns):
    rest = rest or [1] * len(prompts)
    columns |= {
        "row": list(range(1, len(prompts) + 1)),
        "input_tokens": [len(ids) * BLOCK + r for ids, r in zip(prompts, rest, strict=True)],
        "prefix_blocks": prompts,
    }
    frame = pl.DataFrame({name: columns.get(name, [None] * len(prompts)) for name in SCHEMA}, schema=SCHEMA)
    return Trace(frame, "hand.jsonl", "mooncake", block_size=BLOCK)


def served(prompts, rest, joined=1):
    """(request, prefix) of each joined block that an unlimited cache serves."""
    known, found = set(), []
    for request, (prompt, r) in enumerate(zip(prompts, rest, strict=True)):
        prefixes = [tuple(prompt[:end]) for end in range(joined, len(prompt) + 1, joined)]
        usable = (len(prompt) * BLOCK + r - 1) // (BLOCK * joined)
        found += [(request, prefix) for prefix in prefixes[:usable] if prefix in known]
        known.update(prefixes)
    return found


@settings(max_examples=80, deadline=None)
@given(PROMPTS, st.integers(1, 2), st.data())
def test_shares_of_sessions(prompts, joined, data):
    each = {"min_size": len(prompts), "max_size": len(prompts)}
    sessions = data.draw(st.lists(st.sampled_from(["a", "b", None]), **each))
    rest = data.draw(st.lists(st.integers(0, BLOCK - 1), **each))
    trace = trace_of(prompts, rest, session=sessions)
    sharing = session_sharing(grow(recorded_blocks(trace)), session_numbers(trace), joined)
    hits = served(prompts, rest, joined)
    if not hits or all(session is None for session in sessions):
        assert sharing.same_session_share is None
        assert sharing.reason
        return
    mine = [session or index for index, session in enumerate(sessions)]
    same = first = last = 0
    for request, prefix in hits:
        users = [mine[e] for e in range(request) if tuple(prompts[e][: len(prefix)]) == prefix]
        same += mine[request] in users
        first += users[0] == mine[request]
        last += users[-1] == mine[request]
    assert sharing.same_session_share == same / len(hits)
    assert sharing.first_by_same_session_share == first / len(hits)
    assert sharing.last_by_same_session_share == last / len(hits)


def test_sessions_are_numbered_by_first_appearance_and_unnamed_requests_stay_alone():
    assert session_numbers(trace_of([[1]] * 6, session=["z", None, "a", "z", None, "a"])).tolist() == [0, 1, 2, 0, 3, 2]
    assert session_numbers(trace_of([[1]])) is None


@settings(max_examples=80, deadline=None)
@given(PROMPTS, st.data())
def test_parts_of_prompts_save_what_the_cache_serves(prompts, data):
    rest = data.draw(st.lists(st.integers(0, BLOCK - 1), min_size=len(prompts), max_size=len(prompts)))
    arrival = sorted(data.draw(st.lists(st.integers(0, 9), min_size=len(prompts), max_size=len(prompts))))
    trace = trace_of(prompts, rest, arrival_s=arrival)
    tree = grow(recorded_blocks(trace))
    parts = most_reused(trace, tree, stack_distances(tree))
    saved = defaultdict(int)
    for _, prefix in served(prompts, rest):
        users = tuple(r for r, prompt in enumerate(prompts) if tuple(prompt[: len(prefix)]) == prefix)
        saved[users] += BLOCK
    assert [part.saved_tokens for part in parts] == sorted(saved.values(), reverse=True)[:10]
    for part in parts:
        (users,) = [
            users
            for users, tokens in saved.items()
            if (tokens, len(users), arrival[users[0]]) == (part.saved_tokens, part.requests, part.first_seen_s)
            and between(prompts, users) == part.median_distance_tokens
            and statistics.median(np.diff([arrival[u] for u in users])) == part.median_interval_s
            and len({tuple(prompts[u][: part.depth_tokens // BLOCK]) for u in users}) == 1
            and all(len(prompts[u]) * BLOCK >= part.depth_tokens for u in users)
        ][:1]
        assert part.from_tokens < part.depth_tokens


def between(prompts, users):
    """Median of the distinct tokens that requests between two users touch."""
    return BLOCK * statistics.median(
        len({tuple(prompt[:end]) for prompt in prompts[a + 1 : b] for end in range(1, len(prompt) + 1)})
        for a, b in pairwise(users)
    )


def test_intervals_stay_within_one_clock():
    trace = trace_of([[1]] * 4, arrival_s=[0.0, 3.0, 0.0, 5.0], segment=[0, 0, 1, 1])
    tree = grow(recorded_blocks(trace))
    (part,) = most_reused(trace, tree, stack_distances(tree))
    assert part.median_interval_s == 4.0
    timeless = trace_of([[1]] * 2)
    tree = grow(recorded_blocks(timeless))
    (part,) = most_reused(timeless, tree, stack_distances(tree))
    assert (part.first_seen_s, part.median_interval_s, part.requests) == (None, None, 2)


@settings(max_examples=80, deadline=None)
@given(PROMPTS, st.sampled_from([1, 2**60]), st.data())
def test_reuse_at_any_position(prompts, spread, data):
    """Ids that are small and dense, and ids over 64 bits, are counted in different ways."""
    rest = data.draw(st.lists(st.integers(0, BLOCK - 1), min_size=len(prompts), max_size=len(prompts)))
    trace = trace_of([[(id + 1) * spread for id in prompt] for prompt in prompts], rest)
    blocks = recorded_blocks(trace)
    seen, hits = set(), 0
    for prompt, r in zip(prompts, rest, strict=True):
        hits += sum(id in seen for id in prompt[: (len(prompt) * BLOCK + r - 1) // BLOCK])
        seen.update(prompt)
    found = any_position(trace, blocks, grow(blocks))
    assert found.hit_tokens == hits * BLOCK
    assert found.hit_rate == hits * BLOCK / trace.rows["input_tokens"].sum()


def test_chained_ids_reuse_as_much_at_any_position_as_in_prefixes():
    trace = trace_of([[1, 2, 3], [1, 2, 4], [5, 6]])
    blocks = recorded_blocks(trace)
    found = any_position(trace, blocks, grow(blocks))
    assert (found.hit_tokens, "one prefix only" in found.note) == (2 * BLOCK, True)


def test_passages_in_another_order_are_reused_at_any_position_only():
    pieces = {
        name: {"kind": "passages", "id": number, "tokens": tokens}
        for number, (name, tokens) in enumerate({"a": 8, "b": 12, "c": None}.items())
    }
    other = pieces["a"] | {"kind": "history"}
    trace = trace_of(
        [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11]],
        components=[[pieces["a"], pieces["b"], pieces["c"]], [pieces["b"], pieces["a"], pieces["c"]], [other]],
    )
    blocks = recorded_blocks(trace)
    found = any_position(trace, blocks, grow(blocks))
    assert (found.hit_tokens, found.unit) == (20, "components")
    assert found.hit_rate == pytest.approx(20 / 47)
    assert "2 components have no known length" in found.note


def test_of_equal_parts_the_earliest_come_first_whatever_their_ids():
    pairs = [[[name, name] for _ in range(2)] for name in range(14)]
    prompts = [prompt for pair in pairs for prompt in pair]
    tops = []
    for rename in (lambda id: id, lambda id: 99 - id, lambda id: id * 37 % 101):
        trace = trace_of([[rename(id) for id in prompt] for prompt in prompts], arrival_s=list(map(float, range(28))))
        tree = grow(recorded_blocks(trace))
        tops.append(most_reused(trace, tree, stack_distances(tree, 1)))
    assert [part.first_seen_s for part in tops[0]] == [2.0 * n for n in range(10)]
    assert tops[1] == tops[2] == tops[0]

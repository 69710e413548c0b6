"""Stack distances against an LRU cache that is simulated block by block, one simulation for each size."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces import read_trace
from inferdoc.traces.miss_ratio import cache_curve, stack_distances, stack_distances_within
from inferdoc.traces.prefix_tree import grow
from inferdoc.traces.prompt_blocks import PromptBlocks, recorded_blocks

PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=9), min_size=1, max_size=30)


def blocks_of(prompts, block, rest):
    """`rest`: tokens of each prompt behind its full blocks."""
    count = np.array([len(prompt) for prompt in prompts])
    ids = np.array([id for prompt in prompts for id in prompt], dtype=np.uint64)
    return PromptBlocks(block, ids, np.cumsum(count) - count, count, count * block + np.array(rest))


def simulate(prompts, tokens, block, capacity, parts=None):
    """Hit tokens of an LRU cache (one for each part) of `capacity` blocks. The most recent key stands first."""
    caches, hit = {}, 0
    for request, prompt in enumerate(prompts):
        cache = caches.setdefault(parts[request] if parts else 0, [])
        keys = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        found = 0
        while found < len(keys) and keys[found] in cache:
            found += 1
        hit += min(found, (tokens[request] - 1) // block)
        cache[:] = (keys + [key for key in cache if key not in keys])[:capacity]
    return hit * block


@settings(max_examples=80, deadline=None)
@given(PROMPTS, st.integers(1, 3), st.integers(1, 3), st.data())
def test_every_capacity_against_a_simulation(prompts, block, joined, data):
    each = {"min_size": len(prompts), "max_size": len(prompts)}
    rest = data.draw(st.lists(st.integers(0, block - 1), **each))
    rest = [r if prompt else max(r, 1) for r, prompt in zip(rest, prompts, strict=True)]
    parts = data.draw(st.lists(st.integers(0, 2), **each))
    blocks = blocks_of(prompts, block, rest)
    tree = grow(blocks)
    coarse = [[tuple(p[at : at + joined]) for at in range(0, len(p) // joined * joined, joined)] for p in prompts]
    one, apart = stack_distances(tree, joined), stack_distances_within(tree, np.array(parts), joined)
    for capacity in (0, 1, 2, 3, 5, 8, 13, 21, 10_000):
        args = (coarse, blocks.tokens.tolist(), block * joined, capacity)
        assert one.hits(capacity * block * joined) == simulate(*args)
        assert apart.hits(capacity * block * joined) == simulate(*args, parts)


@settings(max_examples=60, deadline=None)
@given(PROMPTS)
def test_the_sizes_that_reach_shares_of_the_ideal_are_the_smallest(prompts):
    blocks = blocks_of(prompts, 2, [1] * len(prompts))
    curve = cache_curve(stack_distances(grow(blocks)), int(blocks.tokens.sum()))
    total, tokens = int(blocks.tokens.sum()), blocks.tokens.tolist()
    ideal = simulate(prompts, tokens, 2, 10_000)
    if not ideal:
        assert (curve.points, curve.reach) == ([], [])
        assert "used twice" in curve.reason
        return
    assert curve.points[-1].ideal_share == 1.0
    for entry in curve.reach:
        capacity = entry.capacity_tokens // 2
        assert simulate(prompts, tokens, 2, capacity) >= entry.ideal_share * ideal
        assert simulate(prompts, tokens, 2, capacity - 1) < entry.ideal_share * ideal
        assert entry.hit_rate == simulate(prompts, tokens, 2, capacity) / total
    for point in curve.points:
        assert point.hit_rate == simulate(prompts, tokens, 2, point.capacity_tokens // 2) / total


def test_two_prompts_in_turn_need_room_for_both():
    a, b = [1, 2, 3, 4], [5, 6, 7, 8]
    blocks = blocks_of([a, b, a, b], 16, [1] * 4)
    curve = cache_curve(stack_distances(grow(blocks)), int(blocks.tokens.sum()), [4 * 16, 6 * 16, 8 * 16])
    # The head of a prompt is kept longest: with room for 6 blocks, 2 of `a` are left after `b` has come.
    assert [round(point.hit_rate * 260) for point in curve.at] == [0, 2 * 2 * 16, 2 * 4 * 16]
    assert [(entry.ideal_share, entry.capacity_tokens) for entry in curve.reach] == [(0.5, 96), (0.9, 128), (0.99, 128)]


def test_blocks_seen_once_take_room_too():
    a = [1, 2]
    blocks = blocks_of([a, [7, 8, 9], a], 16, [1] * 3)
    distances = stack_distances(grow(blocks))
    assert [distances.hits(room * 16) for room in (3, 4, 5)] == [0, 16, 32]
    assert distances.between.tolist() == [3]


def test_a_budget_between_two_blocks_holds_whole_blocks_only():
    blocks = blocks_of([[1, 2]] * 2, 16, [1, 1])
    distances = stack_distances(grow(blocks))
    assert [distances.hits(tokens) for tokens in (15, 16, 31, 32, 10**12)] == [0, 16, 16, 32, 32]


def test_recorded_conversations_against_a_simulation(shared):
    """The first 1,500 conversations, at three sizes of the cache."""
    path = shared / "traces/mooncake/conversation_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()[:1500]]
    distances = stack_distances(grow(recorded_blocks(read_trace(path).window(0, 1500))))
    for capacity in (200, 2_000, 20_000):
        cache, hit = {}, 0
        for row in rows:
            # Ids of this format stand for whole prefixes. The most recent id stands last.
            ids = row["hash_ids"][: row["input_length"] // 512]
            found = 0
            while found < len(ids) and ids[found] in cache:
                found += 1
            hit += min(found, (row["input_length"] - 1) // 512)
            for id in reversed(ids):
                cache.pop(id, None)
                cache[id] = None
            while len(cache) > capacity:
                del cache[next(iter(cache))]
        assert distances.hits(capacity * 512) == hit * 512
        assert hit > 1_000


@pytest.mark.parametrize("joined", [1, 2])
def test_distance_of_a_run_by_its_two_requests(joined):
    blocks = blocks_of([[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 4]], 16, [1] * 3)
    distances = stack_distances(grow(blocks), joined)
    # Blocks 1 2 were last touched by request 1, blocks 3 4 by request 0; between those, request 1 touched 4 blocks.
    between = distances.between_of(np.array([2, 2, 1]), np.array([0, 1, 0]))
    assert between.tolist() == [4 // joined, 0, 0]

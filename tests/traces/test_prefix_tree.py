"""The radix tree of the prompts, against whole prefixes in a dictionary."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces.prefix_tree import grow
from inferdoc.traces.prompt_blocks import PromptBlocks

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=7), min_size=1, max_size=25)


def blocks_of(prompts, block=4, rest=1):
    count = np.array([len(prompt) for prompt in prompts])
    ids = np.array([id for prompt in prompts for id in prompt], dtype=np.uint64)
    return PromptBlocks(block, ids, np.cumsum(count) - count, count, count * block + rest)


def by_hand(prompts):
    """Requests of each prefix that at least two requests have."""
    users = defaultdict(list)
    for request, prompt in enumerate(prompts):
        for end in range(1, len(prompt) + 1):
            users[tuple(prompt[:end])].append(request)
    return {prefix: found for prefix, found in users.items() if len(found) > 1}


def test_the_tree_of_the_docstring():
    tree = grow(blocks_of([[1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 8]]))
    assert tree.begin.tolist() == [0, 2]
    assert tree.end.tolist() == [2, 3]
    assert [tree.requests[a:b].tolist() for a, b in zip(tree.starts, tree.starts[1:], strict=False)] == [
        [0, 1, 2],
        [0, 1],
    ]
    assert tree.seen_before.tolist() == [0, 3, 2]


def test_ids_of_64_bits_that_differ_in_the_lowest_bit_are_different():
    high = 2**64 - 2
    assert grow(blocks_of([[high, 5], [high + 1, 5], [high, 6]])).seen_before.tolist() == [0, 0, 1]


def test_no_prompt_of_a_full_block():
    tree = grow(blocks_of([[], []]))
    assert tree.seen_before.tolist() == [0, 0]
    assert len(tree.begin) == 0


@settings(max_examples=80, deadline=None)
@given(PROMPTS)
def test_nodes_hold_each_shared_prefix_once(prompts):
    tree = grow(blocks_of(prompts))
    found = {}
    for node, (begin, end) in enumerate(zip(tree.begin, tree.end, strict=True)):
        users = tree.requests[tree.starts[node] : tree.starts[node + 1]].tolist()
        for depth in range(begin + 1, end + 1):
            prefix = tuple(prompts[users[0]][:depth])
            assert prefix not in found
            found[prefix] = users
    assert found == by_hand(prompts)


@settings(max_examples=80, deadline=None)
@given(PROMPTS, st.integers(1, 3), st.data())
def test_what_was_seen_before(prompts, joined, data):
    parts = data.draw(st.lists(st.integers(0, 2), min_size=len(prompts), max_size=len(prompts)))
    start = data.draw(st.integers(0, len(prompts)))
    tree = grow(blocks_of(prompts))

    def seen(may_share):
        return [
            max(
                (
                    end
                    for end in range(len(prompt) + 1)
                    if end == 0 or any(may_share(e, t) and prompts[e][:end] == prompt[:end] for e in range(t))
                ),
            )
            for t, prompt in enumerate(prompts)
        ]

    assert tree.seen_before.tolist() == seen(lambda e, t: len(prompts[e]) > 0)
    assert tree.seen_before_within(np.array(parts)).tolist() == seen(lambda e, t: parts[e] == parts[t])
    assert tree.seen_before_request(start).tolist() == seen(lambda e, t: e < start)
    # Names that are many against the nodes are numbered first.
    far = np.array(parts) * 10**6
    assert tree.seen_before_within(far).tolist() == seen(lambda e, t: parts[e] == parts[t])
    visits = tree.visits(joined)
    expected = [
        (request, depth)
        for prefix, users in by_hand(prompts).items()
        if len(prefix) % joined == 0
        for request in users
        for depth in [len(prefix) // joined]
    ]
    covered = [
        (int(r), int(d) + 1)
        for r, begin, blocks in zip(visits.request, visits.begin, visits.blocks, strict=True)
        for d in range(begin, begin + blocks)
    ]
    assert sorted(covered) == sorted(expected)

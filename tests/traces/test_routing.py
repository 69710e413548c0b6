"""Routing against replicas that keep every prefix in a set."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.traces.prefix_tree import grow
from inferdoc.traces.prompt_blocks import PromptBlocks
from inferdoc.traces.routing import Policy, prefix_aware, route

PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=30)


def blocks_of(prompts, block=4, rest=1):
    count = np.array([len(prompt) for prompt in prompts])
    ids = np.array([id for prompt in prompts for id in prompt], dtype=np.uint64)
    return PromptBlocks(block, ids, np.cumsum(count) - count, count, count * block + rest)


def hit_tokens(prompts, replica, block=4):
    """A set of whole prefixes on each replica that never forgets."""
    known, hit = {}, 0
    for prompt, chosen in zip(prompts, replica, strict=True):
        mine = known.setdefault(chosen, set())
        prefixes = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        hit += block * sum(prefix in mine for prefix in prefixes)
        mine.update(prefixes)
    return hit


def choose(prompts, tokens, count):
    """The rule as it is written: longest match among those at most 6/5 of the mean load, then the least loaded."""
    known, load, chosen = [set() for _ in range(count)], [0] * count, []
    for prompt, length in zip(prompts, tokens, strict=True):
        prefixes = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        match = [sum(prefix in mine for prefix in prefixes) for mine in known]
        allowed = [r for r in range(count) if load[r] <= Fraction(6, 5) * Fraction(sum(load), count)]
        longest = max(match[r] for r in allowed)
        pool = [r for r in allowed if match[r] == longest] if longest else range(count)
        best = min(pool, key=lambda r: (load[r], r))
        chosen.append(best)
        known[best].update(prefixes)
        load[best] += length
    return chosen


@settings(max_examples=80, deadline=None)
@given(PROMPTS)
def test_prefix_aware_follows_its_rule(prompts):
    blocks = blocks_of(prompts)
    chosen = prefix_aware(grow(blocks), (1, 2, 3, 5))
    for count in (1, 2, 3, 5):
        assert chosen[count].tolist() == choose(prompts, blocks.tokens.tolist(), count)


@settings(max_examples=80, deadline=None)
@given(PROMPTS, st.data())
def test_hit_rates_of_every_policy(prompts, data):
    sessions = data.draw(st.lists(st.integers(0, 4), min_size=len(prompts), max_size=len(prompts)))
    blocks = blocks_of(prompts)
    tree, total = grow(blocks), int(blocks.tokens.sum())
    huge = 10**9
    for result in route(tree, np.array(sessions), (1, 2, 3), capacities_tokens=[huge]):
        replica = {
            Policy.ROUND_ROBIN: [r % result.replicas for r in range(len(prompts))],
            Policy.SESSION_STICKY: [session % result.replicas for session in sessions],
            Policy.PREFIX_AWARE: choose(prompts, blocks.tokens.tolist(), result.replicas),
        }[result.policy]
        assert result.hit_rate == hit_tokens(prompts, replica) / total
        assert result.at[0].hit_rate == result.hit_rate
        loads = np.bincount(replica, weights=blocks.tokens, minlength=result.replicas)
        assert result.busiest_load == pytest.approx(loads.max() / loads.mean())


def test_three_conversations_on_two_replicas():
    # Each session has a head of its own; its two requests come one after the other.
    prompts = [[1, 2], [1, 2], [3, 4], [3, 4], [5, 6], [5, 6]]
    rates = {
        result.policy: result.hit_rate for result in route(grow(blocks_of(prompts)), np.array([0, 0, 1, 1, 2, 2]), (2,))
    }
    assert rates[Policy.ROUND_ROBIN] == 0
    assert rates[Policy.SESSION_STICKY] == pytest.approx(3 * 8 / 54)


def test_a_replica_above_its_load_gets_no_more_of_its_prefix():
    # Everyone has the same prompt: without the limit, all would go where the first one went.
    chosen = prefix_aware(grow(blocks_of([[1, 2, 3]] * 1000)), (4,))[4]
    assert np.bincount(chosen).max() <= 1.2 * 250 + 1


def test_a_small_cache_on_each_replica():
    prompts = [[1, 2], [3, 4], [1, 2], [3, 4]]
    results = route(grow(blocks_of(prompts)), None, (1, 2), capacities_tokens=[8])
    rates = {(r.replicas, r.policy): r.at[0].hit_rate for r in results if r.hit_rate is not None}
    # Room for one prompt: one replica loses each before it comes again, two keep one each.
    assert rates[1, Policy.ROUND_ROBIN] == 0
    assert rates[2, Policy.ROUND_ROBIN] == pytest.approx(16 / 36)


def test_without_sessions_sticky_is_unknown():
    (sticky,) = [r for r in route(grow(blocks_of([[1]] * 2)), None, (2,)) if r.policy is Policy.SESSION_STICKY]
    assert (sticky.hit_rate, sticky.busiest_load, sticky.reason) == (None, None, "the trace names no sessions")


def test_no_replica_is_an_error():
    with pytest.raises(ValueError, match="replicas"):
        route(grow(blocks_of([[1]])), None, (0,))

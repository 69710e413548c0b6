from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence

import pytest

from inferdoc.engine.blocks import ROOT, BlockPool, NullPrefixCache, PrefixCache, chain_key


def key_of(parent: bytes, tokens: Sequence[int]) -> bytes:
    return chain_key(parent, array("i", tokens).tobytes())


def test_trap_1_keys_are_128_bit_and_separate_all_short_prefixes():
    keys = {}
    for length in range(1, 5):
        for prefix in itertools.product(range(3), repeat=2 * length):
            key = ROOT
            for start in range(0, len(prefix), 2):
                key = key_of(key, prefix[start : start + 2])
            keys[prefix] = key
    assert {len(key) for key in keys.values()} == {16}
    assert len(set(keys.values())) == len(keys) == 9 + 81 + 729 + 6561


def test_trap_1_equal_blocks_under_different_parents_have_different_keys():
    first, second = key_of(ROOT, [1, 2]), key_of(ROOT, [2, 1])
    assert len({key_of(first, [7, 7]), key_of(second, [7, 7]), key_of(ROOT, [7, 7])}) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [([1, 0], [256, 0]), ([1], [1, 0]), ([0x0102], [0x01, 0x02]), ([65536, 0], [0, 1]), ([3, 4], [4, 3])],
)
def test_trap_1_tokens_are_hashed_at_fixed_width_and_in_order(one, other):
    assert key_of(ROOT, one) != key_of(ROOT, other)


def test_trap_1_only_a_colliding_hash_serves_another_prompt(monkeypatch):
    """The cache trusts its key alone, so the width of the key is what keeps prompts apart."""
    cache = PrefixCache(2)
    cache.publish(5, key_of(ROOT, [1, 2]))
    assert cache.match(array("i", [8, 9, 0])) == ([], ROOT)
    monkeypatch.setattr("inferdoc.engine.blocks.chain_key", lambda parent, tokens: b"always the same!")
    cache.publish(6, b"always the same!")
    assert cache.match(array("i", [8, 9, 0]))[0] == [6]


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_trap_4_a_match_leaves_at_least_one_token_to_compute(block_size, extra, blocks):
    tokens = list(range(block_size * blocks + extra))
    cache = PrefixCache(block_size)
    key = ROOT
    for index in range(blocks + 1):
        key = key_of(key, list(range(index * block_size, (index + 1) * block_size)))
        cache.publish(10 + index, key)
    hits, _ = cache.match(array("i", tokens))
    expected = {-1: blocks - 1, 0: blocks - 1, 1: blocks}[extra]
    if block_size == 1:
        expected = max(0, blocks + extra - 1)
    assert hits == [10 + i for i in range(expected)]
    assert len(hits) * block_size < len(tokens) or not tokens


def test_a_match_stops_at_the_first_missing_block_and_returns_the_key_there():
    cache = PrefixCache(2)
    one = key_of(ROOT, [1, 1])
    three = key_of(key_of(one, [2, 2]), [3, 3])
    cache.publish(0, one)
    cache.publish(2, three)
    assert cache.match(array("i", [1, 1, 2, 2, 3, 3, 4])) == ([0], one)


def test_a_known_key_keeps_its_first_block():
    cache = PrefixCache(1)
    key = key_of(ROOT, [4])
    cache.publish(0, key)
    cache.publish(1, key)
    assert cache.match(array("i", [4, 4])) == ([0], key)
    assert not cache.is_cached(1)
    cache.check_integrity()


def test_trap_2_a_forgotten_block_is_never_found_again():
    cache = PrefixCache(1)
    cache.publish(3, key_of(ROOT, [4]))
    cache.forget(3)
    cache.forget(3)
    assert cache.match(array("i", [4, 4])) == ([], ROOT)
    assert not cache.is_cached(3)


def test_the_null_cache_finds_nothing_and_keeps_nothing():
    cache = NullPrefixCache(1)
    cache.publish(0, key_of(ROOT, [1]))
    assert cache.match(array("i", [1, 1, 1])) == ([], ROOT)
    assert not cache.keeps_blocks


def test_blocks_are_reused_worthless_first_then_least_recently_freed():
    pool = BlockPool(5)
    held = [pool.take() for _ in range(5)]
    assert held == [0, 1, 2, 3, 4]
    pool.release([2, 0])
    pool.release([4, 3], worthless=[4])
    assert [pool.take() for _ in range(4)] == [4, 2, 0, 3]


def test_a_shared_block_is_free_only_when_its_last_holder_is_gone():
    pool = BlockPool(2)
    block = pool.take()
    pool.share(block)
    pool.release([block], worthless=[block])
    assert not pool.is_free(block)
    pool.check_integrity([[block]])
    pool.release([block])
    assert pool.is_free(block)
    assert pool.num_free == 2


def test_trap_3_sharing_a_free_block_takes_it_off_the_free_list():
    pool = BlockPool(2)
    block = pool.take()
    pool.release([block])
    pool.share(block)
    assert [pool.take() for _ in range(pool.num_free)] == [1]
    pool.check_integrity([[block], [1]])


@pytest.mark.parametrize(
    ("taken", "length", "first"),
    [
        ((), 8, 0),
        ((0,), 3, 1),
        ((0, 2), 1, 1),
        ((0, 2), 2, 3),
        ((1, 4), 2, 2),
        ((1, 4), 3, 5),
        ((1, 4, 6), 3, None),
        ((7,), 8, None),
    ],
)
def test_a_run_is_the_first_that_fits(taken, length, first):
    pool = BlockPool(8)
    for block in taken:
        pool.take_run(block, 1)
    assert pool.find_run(length) == first
    if first is not None:
        assert pool.take_run(first, length) == list(range(first, first + length))
        pool.check_integrity([list(taken), list(range(first, first + length))])


def test_the_integrity_check_notices_a_leak_and_a_double_hold():
    pool = BlockPool(2)
    block = pool.take()
    with pytest.raises(AssertionError, match="holders"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="holders"):
        pool.check_integrity([[block], [block]])

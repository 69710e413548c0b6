"""Chains of blocks against a dictionary of whole prefixes."""

from __future__ import annotations

import hashlib
import random

import numpy as np

from inferdoc.traces.chains import as_lists, chain, keyed
from inferdoc.traces.prompt_blocks import PromptBlocks


def blocks_of(prompts):
    count = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    ids = np.array([block for prompt in prompts for block in prompt], dtype=np.uint64)
    return PromptBlocks(16, ids, np.cumsum(count) - count, count, count * 16)


def made(seed, requests=60):
    draw = random.Random(seed)
    return [[draw.randrange(3) for _ in range(draw.randrange(0, 7))] for _ in range(requests)]


def test_equal_numbers_are_equal_whole_prefixes():
    prompts = made(1)
    chains = chain(blocks_of(prompts))
    by_prefix: dict[tuple[int, ...], set[int]] = {}
    for prompt, first in zip(prompts, chains.first.tolist(), strict=True):
        for depth in range(len(prompt)):
            by_prefix.setdefault(tuple(prompt[: depth + 1]), set()).add(int(chains.numbers[first + depth]))
    numbers = list(by_prefix.values())
    assert all(len(found) == 1 for found in numbers)
    assert len(set().union(*numbers)) == len(by_prefix) == len(chains)
    for prefix, (number,) in ((prefix, tuple(found)) for prefix, found in by_prefix.items()):
        parent = int(chains.parent[number])
        assert parent < number
        assert parent == (-1 if len(prefix) == 1 else next(iter(by_prefix[prefix[:-1]])))
        assert int(chains.content[number]) == prefix[-1]


def test_a_keyed_hash_depends_on_all_that_stands_before_and_on_the_key():
    chains = chain(blocks_of([[1, 5], [2, 5]]))
    hashes = keyed(chains, b"k" * 32)
    assert len(set(hashes.tolist())) == 4
    first = hashlib.blake2b(bytes(16) + (1).to_bytes(8, "little"), key=b"k" * 32, digest_size=16).digest()
    assert int(hashes[chains.numbers[0]]) == int.from_bytes(first[:8], "little")
    second = hashlib.blake2b(first + (5).to_bytes(8, "little"), key=b"k" * 32, digest_size=16).digest()
    assert int(hashes[chains.numbers[1]]) == int.from_bytes(second[:8], "little")
    assert not set(keyed(chains, b"other" * 6).tolist()) & set(hashes.tolist())


def test_no_prompt_and_empty_prompts():
    chains = chain(blocks_of([[], []]))
    assert (len(chains), len(chains.numbers)) == (0, 0)
    assert as_lists(np.array([9], dtype=np.uint64), np.array([0, 1, 0])).to_list() == [[], [9], []]

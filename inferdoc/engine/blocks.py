"""KV blocks: who holds them, which are free, and what the free ones still hold.

    block id    0      1      2      3      4
    refcount    1      2      0      0      1
    key         -      k1     k2     -      -         2 is free yet cached: a hit takes it back from the free list

The free list is in order of eviction: blocks without a key come first, then the least recently freed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

Key = bytes
ROOT: Key = b""
FREE, HELD = b"\x00", b"\x01"


class BlockPool:
    """Reference-counted blocks with an ordered free list.

    Args:
        num_blocks: blocks in the pool, ids 0 to num_blocks - 1.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refcount = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._map = bytearray(FREE * num_blocks)
        """A byte a block, so that consecutive free blocks are found at the speed of a text search."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    def is_free(self, block: int) -> bool:
        return block in self._free

    def take(self) -> int:
        """Take the first free block; the caller has made sure that there is one."""
        block, _ = self._free.popitem(last=False)
        self._hold(block)
        return block

    def find_run(self, length: int) -> int | None:
        """First block of the first run of `length` consecutive free blocks; ``None`` where there is none."""
        first = self._map.find(FREE * length)
        return None if first < 0 else first

    def take_run(self, first: int, length: int) -> list[int]:
        """Take the consecutive free blocks that `find_run` has found."""
        blocks = list(range(first, first + length))
        for block in blocks:
            del self._free[block]
            self._hold(block)
        return blocks

    def share(self, block: int) -> None:
        """Add a holder to a block, which may be free (a cached block that is hit again)."""
        if self.refcount[block] == 0:
            del self._free[block]
            self._hold(block)
        else:
            self.refcount[block] += 1

    def release(self, blocks: Iterable[int], *, worthless: Iterable[int] = ()) -> None:
        """Drop one holder of each block. Freed blocks are reused in the order given; `worthless` ones before all."""
        for block in blocks:
            self.refcount[block] -= 1
            if self.refcount[block] == 0:
                self._free[block] = None
                self._map[block] = FREE[0]
        for block in worthless:
            if block in self._free:
                self._free.move_to_end(block, last=False)

    def _hold(self, block: int) -> None:
        self.refcount[block] = 1
        self._map[block] = HELD[0]

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Assert that refcounts equal the holders given and that free and held blocks add up to the pool."""
        counts = [0] * self.num_blocks
        for blocks in held:
            for block in blocks:
                counts[block] += 1
        assert counts == self.refcount, "refcounts do not match the holders"
        assert all((count == 0) == (block in self._free) for block, count in enumerate(counts)), "free list is wrong"
        assert all((count == 0) == (self._map[block] == FREE[0]) for block, count in enumerate(counts)), "map is wrong"


def chain_key(parent: Key, tokens: bytes | memoryview) -> Key:
    """Key of a full block: a 128-bit BLAKE2b over the parent's key and the block's tokens (the bytes of their int32).

    128 bits make an accidental collision, which would serve another prompt's K/V, practically impossible.
    """
    return blake2b(parent + tokens, digest_size=16).digest()


class PrefixCache:
    """Full blocks by the hash chain of everything up to them. Partial blocks are never shared."""

    keeps_blocks = True

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._by_key: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}

    def match(self, tokens: array[int]) -> tuple[list[int], Key]:
        """Blocks that hold the longest cached prefix of `tokens`, and the key of the last of them.

        At least one token is always left to compute: without it there would be no logits to sample from.
        """
        hits: list[int] = []
        parent = ROOT
        width = self.block_size * tokens.itemsize
        with memoryview(tokens).cast("B") as data:
            for start in range(0, len(data) - width, width):
                key = chain_key(parent, data[start : start + width])
                block = self._by_key.get(key)
                if block is None:
                    break
                hits.append(block)
                parent = key
        return hits, parent

    def publish(self, block: int, key: Key) -> None:
        """A block is full and its K/V are written. A key that is known already keeps the block it has."""
        if key not in self._by_key:
            self._by_key[key] = block
            self._key_of[block] = key

    def forget(self, block: int) -> None:
        """The block is about to hold something else."""
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._by_key[key]

    def is_cached(self, block: int) -> bool:
        return block in self._key_of

    def check_integrity(self) -> None:
        assert {block: key for key, block in self._by_key.items()} == self._key_of, "cache maps disagree"


class NullPrefixCache(PrefixCache):
    """Prefix caching switched off: nothing is kept, so nothing is found, and nothing needs hashing."""

    keeps_blocks = False

    def match(self, tokens: array[int]) -> tuple[list[int], Key]:
        return [], ROOT

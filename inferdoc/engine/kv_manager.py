"""Which blocks a request holds: admission, growth, publication to the prefix cache, release. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferdoc.engine.blocks import ROOT, BlockPool, Key, NullPrefixCache, PrefixCache, chain_key
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request
from inferdoc.engine.reserve import RESERVATIONS


@dataclass(frozen=True, slots=True)
class KVUse:
    """KV memory at one moment, in tokens."""

    reserved: int
    """In blocks that requests hold; a shared block counts once."""
    written: int
    """Tokens whose K/V are there; those in a shared block count once."""
    tail: int
    """Unwritten places in the last block that a request has begun to fill."""
    external: int
    """Free places while the head of the queue fits into their sum but into no consecutive run of them."""


class KVManager:
    """Allocates KV blocks to requests under one reservation policy.

    `admit` -> (`grow` -> step -> `publish`)* -> `free`. Every path out of the engine goes through `free`.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.block_size = config.block_size
        self.pool = BlockPool(config.num_kv_blocks)
        cache = PrefixCache if config.enable_prefix_caching else NullPrefixCache
        self.cache = cache(config.block_size)
        self.reservation = RESERVATIONS[config.reservation](config)
        self._held = 0
        """Blocks of all requests; a shared one counts for each of its holders."""
        self._published: dict[Request, tuple[int, Key]] = {}
        """How many blocks of each request were offered to the prefix cache, and the key of the last."""

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def fits(self, request: Request) -> bool:
        """Whether the request could ever run in this pool."""
        return self.blocks_for(self.reservation.at_most(request)) <= self.pool.num_blocks

    def admit(self, request: Request, running: Sequence[Request] = ()) -> bool:
        """Give a waiting request blocks for all its tokens; False (and nothing changed) where there is no room.

        Args:
            running: the requests that hold blocks already, for policies that look ahead.

        Hits are claimed before anything is allocated, and a hit on a free block counts against the room.
        """
        if self.pool.num_free == 0 or not self.reservation.foresees_room(request, running):
            return False
        reserve = self.reservation.contiguous(request)
        if reserve is not None:
            length = self.blocks_for(reserve)
            first = self.pool.find_run(length)
            if first is None:
                return False
            request.block_ids = self.pool.take_run(first, length)
            self._held += length
            hits, key = 0, ROOT
        else:
            shared, key = self.cache.match(request.tokens)
            hits = len(shared)
            room = self.pool.num_free - sum(self.pool.is_free(block) for block in shared)
            if self.blocks_for(len(request.tokens)) - hits > room:
                return False
            for block in shared:
                self.pool.share(block)
            request.block_ids = shared
            self._held += hits
        request.num_computed = hits * self.block_size
        if request.preemptions == 0:
            request.num_cached = request.num_computed
        self._published[request] = hits, key
        return self.grow(request, request.to_compute)

    def grow(self, request: Request, tokens: int) -> bool:
        """Make room for the next `tokens` tokens; False where the pool is empty (what was added stays held)."""
        for _ in range(self.blocks_for(request.num_computed + tokens) - len(request.block_ids)):
            if self.pool.num_free == 0:
                return False
            block = self.pool.take()
            self.cache.forget(block)
            request.block_ids.append(block)
            self._held += 1
        return True

    def slots(self, request: Request) -> int:
        """Tokens that the blocks of the request hold."""
        return len(request.block_ids) * self.block_size

    def trim(self, request: Request, tokens: int) -> None:
        """Give back the blocks past so many tokens, which were for drafts; what was reserved ahead stays.

        The list of blocks is a new one then: who remembers tables knows by this that its end has changed.
        """
        kept = self.blocks_for(tokens)
        if kept < len(request.block_ids) and self.reservation.contiguous(request) is None:
            dropped = request.block_ids[kept:][::-1]
            self.pool.release(dropped, worthless=dropped)
            request.block_ids = request.block_ids[:kept]
            self._held -= len(dropped)

    def publish(self, request: Request) -> None:
        """Offer the blocks that became full to the prefix cache. Called only after the step has written their K/V."""
        if not self.cache.keeps_blocks:
            return
        size = self.block_size
        published, key = self._published[request]
        full = request.num_computed // size
        for index in range(published, full):
            key = chain_key(key, request.tokens[index * size : (index + 1) * size].tobytes())
            self.cache.publish(request.block_ids[index], key)
        self._published[request] = full, key

    def free(self, request: Request) -> None:
        """Release all blocks, last first, so that the front of a prefix survives longest. Idempotent."""
        last_first = request.block_ids[::-1]
        self.pool.release(last_first, worthless=[b for b in last_first if not self.cache.is_cached(b)])
        request.block_ids = []
        self._held -= len(last_first)
        self._published.pop(request, None)

    def use(self, lengths: Sequence[int], head: Request | None) -> KVUse:
        """KV memory with so many K/V tokens in each running request; `head` is the request that waits first.

        The lengths at the end of a step belong to the blocks that it holds: the tokens that it computes have their
        places and are no waste. Only full blocks are shared, so what is unwritten belongs to one request each.
        """
        size = self.block_size
        external = 0
        if head is not None:
            reserve = self.reservation.contiguous(head)
            length = self.blocks_for(reserve or 0)
            if reserve and length <= self.pool.num_free and self.pool.find_run(length) is None:
                external = self.pool.num_free * size
        reserved = (self.pool.num_blocks - self.pool.num_free) * size
        unwritten = self._held * size - sum(lengths)
        return KVUse(
            reserved=reserved,
            written=reserved - unwritten,
            tail=sum([-length % size for length in lengths]),
            external=external,
        )

    def check_integrity(self, running: Iterable[Request]) -> None:
        running = list(running)
        self.pool.check_integrity(request.block_ids for request in running)
        self.cache.check_integrity()
        assert self._held == sum(len(request.block_ids) for request in running), "held blocks are miscounted"
        for request in running:
            assert len(request.block_ids) >= self.blocks_for(request.num_computed), "K/V without a block"

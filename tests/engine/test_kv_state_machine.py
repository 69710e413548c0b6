"""Random admissions, steps, preemptions and releases against a dictionary."""

from __future__ import annotations

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from inferdoc.engine.blocks import ROOT, chain_key
from inferdoc.engine.config import EngineConfig
from inferdoc.engine.kv_manager import KVManager
from inferdoc.engine.request import Request


class KVMachine(RuleBasedStateMachine):
    """The model: what was last written to each block (all tokens up to there), and which block serves which prefix."""

    running = Bundle("running")
    preempted = Bundle("preempted")

    @initialize(
        blocks=st.integers(3, 9), size=st.sampled_from([1, 2, 4]), caching=st.sampled_from([True, True, True, False])
    )
    def start(self, blocks, size, caching):
        self.size = size
        self.kv = KVManager(
            EngineConfig(max_model_len=64, num_kv_blocks=blocks, block_size=size, enable_prefix_caching=caching)
        )
        self.caching = caching
        self.content: dict[int, tuple[int, ...]] = {}
        self.served: dict[tuple[int, ...], int] = {}
        self.held: list[Request] = []
        self.count = 0

    def blocks_of(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def expected_hits(self, tokens: list[int]) -> list[int]:
        hits = []
        while (len(hits) + 1) * self.size < len(tokens):
            block = self.served.get(tuple(tokens[: (len(hits) + 1) * self.size]))
            if block is None:
                break
            hits.append(block)
        return hits

    def is_free(self, block: int) -> bool:
        return not any(block in request.block_ids for request in self.held)

    def try_admit(self, request: Request) -> bool:
        hits = self.expected_hits(request.tokens)
        free = sum(self.is_free(block) for block in range(self.kv.pool.num_blocks))
        new = self.blocks_of(len(request.tokens)) - len(hits)
        room = free - sum(self.is_free(block) for block in hits)
        before = list(self.kv.pool.refcount)
        admitted = self.kv.admit(request)
        assert admitted == (new <= room)
        if not admitted:
            assert self.kv.pool.refcount == before
            assert request.block_ids == []
            return False
        assert request.block_ids[: len(hits)] == hits
        assert request.num_computed == len(hits) * self.size
        if not request.preemptions:
            assert request.num_cached == request.num_computed
        self.overwrite(request.block_ids[len(hits) :])
        self.held.append(request)
        return True

    def overwrite(self, blocks: list[int]) -> None:
        """The blocks were handed out: nothing else may hold them, and nothing may find what they held."""
        for block in blocks:
            assert self.is_free(block)
            self.content.pop(block, None)
        self.served = {prefix: block for prefix, block in self.served.items() if block not in blocks}

    def release(self, request: Request) -> None:
        self.held.remove(request)
        self.kv.free(request)
        assert request.block_ids == []

    @rule(target=running, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def admit(self, tokens):
        self.count += 1
        request = Request(self.count, tokens, output_length=40)
        return request if self.try_admit(request) else Request(0, [0], 1)

    @rule(target=running, request=consumes(preempted))
    def resume(self, request):
        return request if self.try_admit(request) else Request(0, [0], 1)

    @rule(request=running, tokens=st.integers(1, 6), token=st.integers(0, 1))
    def step(self, request, tokens, token):
        """A prompt chunk or a decode, as the scheduler would do it."""
        if request not in self.held:
            return
        if not request.to_compute:
            request.tokens.append(token)
        tokens = min(tokens, request.to_compute)
        end = request.num_computed + tokens
        had = len(request.block_ids)
        self.held.remove(request)
        grown = self.kv.grow(request, tokens)
        self.overwrite(request.block_ids[had:])
        self.held.append(request)
        if not grown:
            assert self.kv.pool.num_free == 0
            return
        assert len(request.block_ids) >= self.blocks_of(end)
        for position in range(request.num_computed, end):
            self.content[request.block_ids[position // self.size]] = tuple(request.tokens[: position + 1])
        offered = request.num_computed // self.size
        request.num_computed = end
        self.kv.publish(request)
        if self.caching:
            for index in range(offered, end // self.size):
                self.served.setdefault(tuple(request.tokens[: (index + 1) * self.size]), request.block_ids[index])

    @rule(request=consumes(running), twice=st.booleans())
    def finish(self, request, twice):
        if request in self.held:
            self.release(request)
            if twice:
                self.kv.free(request)

    @rule(target=preempted, request=consumes(running))
    def preempt(self, request):
        if request in self.held:
            self.release(request)
            request.num_computed = 0
            request.preemptions += 1
        return request

    @invariant()
    def the_manager_agrees_with_the_dictionary(self):
        if not hasattr(self, "kv"):
            return
        self.kv.check_integrity(self.held)
        free = sum(self.is_free(block) for block in range(self.kv.pool.num_blocks))
        assert self.kv.pool.num_free == free
        use = self.kv.use([request.num_computed for request in self.held], None)
        written = {
            (request.block_ids[position // self.size], position % self.size)
            for request in self.held
            for position in range(request.num_computed)
        }
        assert (use.reserved, use.written) == ((self.kv.pool.num_blocks - free) * self.size, len(written))

    @invariant()
    def trap_2_every_mapped_block_holds_what_its_key_says(self):
        if not hasattr(self, "kv"):
            return
        cached = {b for b in range(self.kv.pool.num_blocks) if self.kv.cache.is_cached(b)}
        assert cached == set(self.served.values())
        for prefix, block in self.served.items():
            assert self.content[block] == prefix
            key = ROOT
            for start in range(0, len(prefix), self.size):
                key = chain_key(key, array("i", prefix[start : start + self.size]).tobytes())
            assert self.kv.cache._by_key[key] == block
        for request in self.held:
            for index in range(request.num_computed // self.size):
                assert self.content[request.block_ids[index]] == tuple(request.tokens[: (index + 1) * self.size])


TestTrap2And3And20KVManagerAgainstADictionary = KVMachine.TestCase
TestTrap2And3And20KVManagerAgainstADictionary.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, derandomize=True
)

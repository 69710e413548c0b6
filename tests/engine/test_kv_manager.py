from __future__ import annotations

from array import array

import pytest

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.kv_manager import KVManager, KVUse
from inferdoc.engine.request import Request


def manager(blocks: int, size: int = 16, **options) -> KVManager:
    options = {"enable_prefix_caching": True, "max_model_len": 4096} | options
    return KVManager(EngineConfig(num_kv_blocks=blocks, block_size=size, max_num_batched_tokens=8192, **options))


def compute(kv: KVManager, request: Request, tokens: int | None = None) -> None:
    """What a step does to a request, without the model."""
    tokens = request.to_compute if tokens is None else tokens
    assert kv.grow(request, tokens)
    request.num_computed += tokens
    kv.publish(request)


def served(kv: KVManager, prompt: list[int]) -> Request:
    request = Request(0, prompt, output_length=1)
    assert kv.admit(request)
    compute(kv, request)
    return request


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("length", ["bs - 1", "bs", "bs + 1", "2 * bs"])
@pytest.mark.parametrize("warm", [False, True])
def test_trap_4_prompt_lengths_around_the_block_size_cold_and_warm(size, length, warm):
    n = eval(length, {"bs": size})
    kv = manager(8, size)
    if warm:
        kv.free(served(kv, list(range(n))))
    request = Request(1, list(range(n)), output_length=1)
    assert kv.admit(request)
    whole_blocks_before_the_last_token = {"bs - 1": 0, "bs": 0, "bs + 1": 1, "2 * bs": 1}[length]
    assert request.num_cached == (whole_blocks_before_the_last_token * size if warm else 0)
    assert request.num_computed == request.num_cached
    assert request.to_compute >= 1
    kv.check_integrity([request])


def test_trap_4_a_complete_hit_of_64_tokens_serves_48():
    """vLLM PR#11186: two identical prompts of 64 tokens, block 16: 48 cached in the second, 37.5% over both."""
    kv = manager(16)
    first, second = served(kv, list(range(64))), Request(1, list(range(64)), 1)
    assert kv.admit(second)
    assert (first.num_cached, second.num_cached) == (0, 48)
    assert (first.num_cached + second.num_cached) / 128 == 0.375


@pytest.mark.parametrize(("size", "hit"), [(16, 2000), (256, 1792), (2048, 0)])
def test_only_whole_blocks_hit(size, hit):
    """vLLM#53749 (2,048 in place of its 2,096: our blocks are powers of two)."""
    kv = manager(8192 // size, size)
    served(kv, list(range(2000)) + [7] * 100)
    request = Request(1, list(range(2000)) + [8] * 100, 1)
    assert kv.admit(request)
    assert request.num_cached == hit


@pytest.mark.parametrize("free", [True, False])
def test_trap_3_hits_are_claimed_before_anything_is_allocated(free):
    """The pool has just the blocks that the request needs, the cached ones first in line for reuse."""
    kv = manager(4, 2)
    first = served(kv, [1, 2, 3, 4])
    if free:
        kv.free(first)
    request = Request(1, [1, 2, 3, 4, 5, 6], 1)
    holders = [request] if free else [request, first]
    assert kv.admit(request)
    assert request.num_cached == 4
    assert len(set(request.block_ids)) == 3
    kv.check_integrity(holders)


def test_trap_3_a_hit_on_a_free_block_counts_against_the_room():
    kv = manager(3, 2)
    kv.free(served(kv, [1, 2, 3, 4]))  # two blocks, free and cached
    other = Request(1, [9], 1)
    assert kv.admit(other)
    request = Request(2, [1, 2, 3, 4, 5], 1)  # two hits and one new block, but just the two hits are free
    before = list(kv.pool.refcount)
    assert not kv.admit(request)
    assert kv.pool.refcount == before
    assert request.block_ids == []
    assert kv.cache.match(request.tokens)[0], "the refusal evicted what it would have hit"
    kv.check_integrity([other])


def test_trap_2_a_reused_block_loses_its_key():
    kv = manager(2, 2)
    kv.free(served(kv, [1, 2, 3]))
    kv.free(served(kv, [8, 9, 8, 9]))
    again = Request(2, [1, 2, 3], 1)
    assert kv.admit(again)
    assert again.num_cached == 0


def test_the_front_of_a_prefix_survives_longest():
    kv = manager(4, 2)
    kv.free(served(kv, [1, 2, 3, 4, 5, 6, 7, 8]))
    served(kv, [9, 9, 9, 9])
    again = Request(2, [1, 2, 3, 4, 5, 6, 7, 8], 1)
    assert kv.cache.match(again.tokens)[0] == [0, 1]


def test_trap_21_only_computed_full_blocks_are_published():
    kv = manager(4, 2)
    request = Request(0, [1, 2, 3, 4, 5], 1)
    assert kv.admit(request)
    assert kv.cache.match(array("i", [1, 2, 3]))[0] == []
    compute(kv, request, 1)
    assert kv.cache.match(array("i", [1, 2, 3]))[0] == []
    compute(kv, request, 2)
    assert len(kv.cache.match(array("i", [1, 2, 3]))[0]) == 1
    assert len(kv.cache.match(array("i", [1, 2, 3, 4, 5]))[0]) == 1


def test_trap_20_free_is_idempotent():
    kv = manager(4, 2)
    one, two = served(kv, [1, 2, 3, 4]), Request(1, [1, 2, 3, 4], 1)
    assert kv.admit(two)
    kv.free(two)
    kv.free(two)
    kv.check_integrity([one])
    kv.free(one)
    kv.free(one)
    kv.check_integrity([])
    assert kv.pool.num_free == 4


def test_requests_with_equal_ids_do_not_share_their_place_in_the_chain():
    kv = manager(8, 2)
    one, two = Request(0, [1, 2, 3, 4, 5], 1), Request(0, [6, 7, 8, 9, 5], 1)
    assert kv.admit(one)
    assert kv.admit(two)
    compute(kv, one, 2)
    compute(kv, two)
    compute(kv, one)
    assert kv.cache.match(one.tokens)[0] == one.block_ids[:2]
    assert kv.cache.match(two.tokens)[0] == two.block_ids[:2]


def test_admission_counts_pages_and_not_tokens():
    """One page of 128, two requests of 2 tokens: one runs, one waits; the tail holds 126 of its 128."""
    kv = manager(1, 128)
    one, two = Request(0, [1], 1), Request(1, [2], 1)
    assert kv.admit(one)
    assert not kv.admit(two)
    assert kv.use([2], two) == KVUse(reserved=128, written=2, tail=126, external=0)
    kv.free(one)
    assert kv.admit(two)


def test_tail_waste_of_two_small_requests_is_252_of_256():
    kv = manager(2, 128)
    one, two = Request(0, [1], 1), Request(1, [2], 1)
    assert kv.admit(one)
    assert kv.admit(two)
    assert kv.use([2, 2], None).tail == 252


@pytest.mark.parametrize(("prompt", "output", "fits"), [(4, 5, True), (4, 6, False), (8, 1, True), (9, 1, False)])
def test_a_request_fits_where_all_but_its_last_token_have_room(prompt, output, fits):
    kv = manager(2, 4)
    assert kv.fits(Request(0, [0] * prompt, output)) is fits


@pytest.mark.parametrize(
    ("reservation", "declared", "output", "tokens"),
    [
        ("max-model-len", None, 5, 32),
        ("max-model-len", 6, 5, 32),
        ("per-request", None, 1, 4 + 1),
        ("per-request", None, 5, 4 + 8),
        ("per-request", None, 8, 4 + 8),
        ("per-request", None, 9, 4 + 16),
        ("per-request", 6, 5, 4 + 6),
        ("per-request", 3, 5, 4 + 5),
        ("per-request", 500, 5, 32),
    ],
)
def test_contiguous_reservations_take_consecutive_blocks_for_the_stated_tokens(reservation, declared, output, tokens):
    kv = manager(40, 1, reservation=reservation, enable_prefix_caching=False, max_model_len=32)
    request = Request(0, [0] * 4, output, declared_max=declared)
    assert kv.admit(request)
    assert request.block_ids == list(range(tokens))
    assert kv.use([4], None) == KVUse(reserved=tokens, written=4, tail=0, external=0)


def test_a_reservation_is_rounded_up_to_whole_blocks():
    kv = manager(10, 4, reservation="per-request", enable_prefix_caching=False)
    request = Request(0, [0] * 3, 2, declared_max=2)
    assert kv.admit(request)
    assert request.block_ids == [0, 1]
    assert kv.use([3], None) == KVUse(reserved=8, written=3, tail=1, external=0)


def test_external_fragmentation_is_free_room_without_a_run():
    """Four regions of two blocks; the second and the fourth are freed: a region of four has room but no place."""
    kv = manager(8, 2, reservation="per-request", enable_prefix_caching=False)
    small = [Request(i, [0] * 3, 1, declared_max=1) for i in range(4)]
    assert all(kv.admit(request) for request in small)
    kv.free(small[1])
    kv.free(small[3])
    large = Request(9, [0] * 7, 1, declared_max=1)
    assert not kv.admit(large)
    assert large.block_ids == []
    held = [3, 3]
    assert kv.use(held, large) == KVUse(reserved=8, written=6, tail=2, external=8)
    fits = Request(10, [0] * 3, 1, declared_max=1)
    assert kv.use(held, fits).external == 0
    assert kv.use(held, None).external == 0
    too_large = Request(11, [0] * 12, 1, declared_max=1)
    assert kv.use(held, too_large).external == 0, "there is not even room in sum"
    kv.free(small[2])
    assert kv.admit(large)
    assert large.block_ids == [2, 3, 4, 5]


def test_shared_blocks_count_once_in_the_use():
    kv = manager(8, 2)
    served(kv, [1, 2, 3, 4, 5])
    two = Request(1, [1, 2, 3, 4, 5], 1)
    assert kv.admit(two)
    assert kv.use([5, 5], None) == KVUse(reserved=8, written=4 + 1 + 1, tail=2, external=0)


def test_trap_5_a_resumed_request_hits_its_own_blocks_and_keeps_its_first_count():
    kv = manager(8, 2)
    request = Request(0, [1, 2, 3], 9)
    assert kv.admit(request)
    compute(kv, request)
    for token in (4, 5, 6):
        request.tokens.append(token)
        compute(kv, request)
    kv.free(request)
    request.num_computed = 0
    request.preemptions += 1
    assert kv.admit(request)
    assert request.num_computed == 4
    assert request.num_cached == 0
    assert request.to_compute == 2

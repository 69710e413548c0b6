"""Any load under any configuration: right tokens, no leak, the budget kept (all checked by `serve` at each step)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.engine.config import EngineConfig
from inferdoc.engine.request import Request


@st.composite
def loads(draw):
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    longest = draw(st.integers(4, 24))
    reservation = draw(
        st.sampled_from(["paged", "paged", "paged", "peak-forecast", "peak-forecast", "max-model-len", "per-request"])
    )
    max_num_seqs = draw(st.integers(1, 5))
    config = EngineConfig(
        max_model_len=longest,
        num_kv_blocks=-(-longest // block_size) + draw(st.integers(0, 6)),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.integers(max_num_seqs, 20)),
        batching=draw(st.sampled_from(["continuous", "prefill-first", "static"])),
        enable_chunked_prefill=draw(st.booleans()),
        reservation=reservation,
        enable_prefix_caching=reservation in ("paged", "peak-forecast") and draw(st.booleans()),
    )
    requests = []
    for number in range(draw(st.integers(1, 8))):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=longest - 1))
        output = draw(st.integers(1, longest - len(prompt)))
        declared = draw(st.none() | st.integers(1, longest))
        requests.append(Request(number, prompt, output, draw(st.sampled_from([0.0, 0.5, 3.0, 9.0])), declared))
    return config, requests


@settings(max_examples=300, deadline=None, derandomize=True)
@given(load=loads())
def test_trap_19_random_loads_give_the_tokens_of_each_prompt_alone(serve, load):
    config, requests = load
    run = serve(config, requests)
    assert max(step.running for step in run.steps) <= config.max_num_seqs
    computed = sum(step.prefill_tokens + step.decode_rows for step in run.steps)
    needed = sum(request.max_length - 1 - request.num_cached for request in requests)
    if not any(request.preemptions for request in requests):
        assert computed == needed
    elif not config.enable_prefix_caching:
        assert computed > needed
    for step in run.steps:
        assert 0 < step.kv.written <= step.kv.reserved <= config.kv_tokens
        if config.reservation in ("paged", "peak-forecast") and step.prefill_tokens == 0:
            assert step.kv.reserved - step.kv.written <= step.running * (config.block_size - 1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(load=loads(), data=st.data())
def test_trap_20_random_aborts_between_steps_leak_nothing(serve, load, data):
    config, requests = load
    victims = data.draw(st.dictionaries(st.integers(0, 12), st.sampled_from(requests), max_size=4))

    def abort(engine, batch):
        victim = victims.get(len(engine.steps))
        if victim and victim not in [row.request for row in batch.rows]:
            engine.scheduler.abort(victim)

    run = serve(config, requests, before_step=abort)
    assert all(request.completed or request.aborted for request in run.result.requests)

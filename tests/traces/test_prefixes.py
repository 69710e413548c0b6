"""Ideal prefix reuse, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferdoc.errors import TraceError
from inferdoc.traces import SCHEMA, Trace, ideal_hits, read_trace, tokenize, window_hits, with_token_ids


def of_ids(*prompts, models=None):
    columns = {
        "row": list(range(1, len(prompts) + 1)),
        "input_tokens": [len(prompt) for prompt in prompts],
        "output_tokens": [1] * len(prompts),
        "prompt_ids": [list(prompt) for prompt in prompts],
        "model": models or [None] * len(prompts),
    }
    frame = pl.DataFrame({name: columns.get(name, [None] * len(prompts)) for name in SCHEMA}, schema=SCHEMA)
    return Trace(frame, "hand.jsonl", "jsonl")


def of_blocks(*rows, block_size=512):
    columns = {
        "row": list(range(1, len(rows) + 1)),
        "input_tokens": [tokens for tokens, _ in rows],
        "output_tokens": [1] * len(rows),
        "prefix_blocks": [ids for _, ids in rows],
    }
    frame = pl.DataFrame({name: columns.get(name, [None] * len(rows)) for name in SCHEMA}, schema=SCHEMA)
    return Trace(frame, "hand.jsonl", "mooncake", block_size=block_size)


def distinct(count, start):
    return list(range(start, start + count))


@pytest.mark.parametrize(("block", "hit"), [(16, 2000), (256, 1792), (2096, 0)])
def test_only_whole_blocks_hit(block, hit):
    shared = distinct(2000, 0)
    hits = ideal_hits(of_ids(shared + distinct(3000, 10_000), shared + distinct(3000, 20_000)), block)
    assert (hits.hit_tokens, hits.prompt_tokens, hits.compulsory_tokens) == (hit, 10_000, 10_000 - hit)
    assert hits.median_shared_tokens == hit / 2


def test_two_whole_blocks_of_a_longer_shared_prefix():
    shared = distinct(4500, 0)
    assert ideal_hits(of_ids(shared + [5000] * 500, shared + [5001] * 500), 2096).hit_tokens == 4192


def test_a_complete_hit_still_computes_its_last_block():
    hits = ideal_hits(of_ids(distinct(64, 0), distinct(64, 0)), 16)
    assert hits.hit_tokens == 48
    assert hits.hit_rate == 0.375
    assert hits.shared_request_share == 0.5


def test_a_complete_hit_of_recorded_blocks_still_computes_its_last_block():
    assert ideal_hits(of_blocks((1024, [1, 2]), (1024, [1, 2])), 512).hit_tokens == 512


def test_the_rate_is_the_ratio_of_the_sums():
    # The second request hits 9,799 of its 9,900 tokens, the others nothing: the mean of the ratios would be 0.33.
    long = distinct(9799, 0)
    hits = ideal_hits(of_ids([*long, 20_000], [*long, *distinct(101, 30_000)], distinct(100, 40_000)), 1)
    assert hits.hit_rate == pytest.approx(9799 / 19_800)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5])
def test_the_rate_of_repeated_rounds_is_cumulative(rounds):
    hits = ideal_hits(of_ids(*[distinct(4096, 0)] * rounds), 1)
    assert hits.hit_rate == (rounds - 1) * 4095 / (rounds * 4096)
    assert hits.compulsory_tokens == 4096 + rounds - 1


def test_a_time_stamp_at_the_head_hides_all_that_follows():
    stable = "x" * 2000
    texts = [f"Now: 2026-01-01 10:00:{i:02}\n{stable}Q{i:02}" for i in range(20)]
    moved = [f"{stable}Q{i:02} Now: 2026-01-01 10:00:{i:02}\n" for i in range(20)]
    # "Now: 2026-01-01 1" is the only whole block in common.
    assert ideal_hits(of_ids(*[text.encode() for text in texts]), 16).hit_tokens == 19 * 16
    assert ideal_hits(of_ids(*[text.encode() for text in moved]), 16).hit_rate == pytest.approx(0.95, abs=0.02)


def test_an_order_of_tools_that_changes_shares_nothing():
    a, b, c, system = (distinct(300, n * 10_000) for n in (1, 2, 3, 4))
    system = system + distinct(700, 50_000)
    turning = [a + b + c + system, b + c + a + system, c + a + b + system]
    assert ideal_hits(of_ids(*turning), 16).hit_tokens == 0
    # 1,900 tokens are 118 whole blocks of 16.
    assert ideal_hits(of_ids(*[turning[0]] * 3), 16).hit_tokens == 2 * 118 * 16


def test_adapters_split_the_cache_only_when_asked():
    trace = of_ids(*[distinct(65, 0)] * 4, models=["a", "a", "b", "b"])
    assert ideal_hits(trace, 16).shared_request_share == 0.75
    assert ideal_hits(trace, 16, per_model=True).shared_request_share == 0.5


def test_equal_blocks_after_different_ones_are_not_shared():
    hits = ideal_hits(of_ids([1] * 16 + [9] * 17, [2] * 16 + [9] * 17), 16)
    assert hits.hit_tokens == 0


def test_a_partly_filled_block_is_not_shared():
    # Block 8 holds 88 tokens in the first row and is full in the second: engines share whole blocks only.
    assert ideal_hits(of_blocks((600, [7, 8]), (1025, [7, 8, 9]), (1025, [7, 8, 10])), 512).hit_tokens == 512 + 1024


@pytest.mark.parametrize(
    ("block", "used", "hit"), [(16, 512, 1024), (512, 512, 1024), (1024, 1024, 1024), (2048, 2048, 0)]
)
def test_recorded_blocks_and_another_block_size(block, used, hit):
    hits = ideal_hits(of_blocks((1025, [1, 2, 3]), (1025, [1, 2, 4])), block)
    assert (hits.block_size, hits.hit_tokens) == (used, hit)
    assert (hits.note is not None) == (block == 16)


def test_block_sizes_that_cannot_be_converted():
    with pytest.raises(TraceError, match="blocks of 48 tokens and the trace's blocks of 512"):
        ideal_hits(of_blocks((1024, [1, 2])), 48)


def test_lengths_only_is_unknown_even_after_ids_were_made_up(write):
    trace = read_trace(write("t.csv", "input_tokens,output_tokens\n64,1\n64,1\n"))
    for known in (trace, with_token_ids(trace, vocab_size=100, seed=0)):
        hits = ideal_hits(known, 16)
        assert (hits.hit_rate, hits.shared_request_share, hits.reason) == (None, None, "the trace has no prefixes")


def test_text_that_is_not_tokenized_is_unknown(jsonl):
    trace = read_trace(jsonl([{"prompt": "hello", "output_tokens": 5}]))
    assert ideal_hits(trace, 16).reason == "the prompts are text that no tokenizer has encoded"
    assert ideal_hits(tokenize(trace, lambda texts: [[1] * 40 for _ in texts]), 16).hit_rate == 0.0


def naive_hits(prompts, block):
    """Whole prefixes in a set: no hash chain, no parents."""
    seen, total = set(), 0
    for prompt in prompts:
        length = len(prompt)
        hit = 0
        while hit + block <= length - 1 and tuple(prompt[: hit + block]) in seen:
            hit += block
        total += hit
        seen.update(tuple(prompt[:end]) for end in range(block, length + 1, block))
    return total


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block", [1, 3, 8])
def test_random_prompts_against_whole_prefixes_in_a_set(seed, block):
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(0, 2, draw.integers(1, 40)).tolist() for _ in range(60)]
    expected = naive_hits(prompts, block)
    assert ideal_hits(of_ids(*prompts), block).hit_tokens == expected
    assert block > 1 or expected > 0


def test_a_window_goes_on_from_the_requests_before_it(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]},
        {"timestamp": 1, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 3]},  # 1,024 from before
        {"timestamp": 2, "input_length": 1600, "output_length": 1, "hash_ids": [1, 2, 3, 4]},  # and 512 of the window
        {"timestamp": 3, "input_length": 600, "output_length": 1, "hash_ids": [9, 8]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    hits = window_hits(read_trace(path), 1, 3, 512)
    assert hits.from_history == [1024, 1024, 0]
    assert hits.hit_rate == pytest.approx((1024 + 1536) / (1536 + 1600 + 600))


def test_a_window_of_lengths_has_no_hits_to_tell(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("timestamp,prompt_tokens,completion_tokens\n0,64,1\n1,64,1\n")
    hits = window_hits(read_trace(path), 1, 1, 16)
    assert (hits.from_history, hits.hit_rate, hits.reason) == ([0], None, "the trace has no prefixes")


def dictionary_hits(prompts, models, learn):
    """Blocks found of each prompt, each block known by its parent and its content; the first `learn` leave theirs."""
    known, found = {}, []
    for index, (blocks, model) in enumerate(zip(prompts, models, strict=True)):
        parent, count, missed = model, 0, False
        for block in blocks:
            missed = missed or (parent, block) not in known
            count += not missed
            if missed and index >= learn:
                break
            parent = known.setdefault((parent, block), len(known))
        found.append(count)
    return found


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 3), st.booleans())
def test_any_small_trace_against_a_dictionary(data, joined, per_model):
    prompts = data.draw(st.lists(st.lists(st.integers(0, 1), max_size=7), min_size=1, max_size=20))
    each = {"min_size": len(prompts), "max_size": len(prompts)}
    models = data.draw(st.lists(st.sampled_from(["a", "b", None]), **each))
    start = data.draw(st.integers(0, len(prompts) - 1))
    lengths = [4 * len(prompt) + data.draw(st.integers(0 if prompt else 1, 3)) for prompt in prompts]
    trace = of_blocks(*zip(lengths, prompts, strict=True), block_size=4)
    trace = Trace(trace.rows.with_columns(pl.Series("model", models, pl.String)), "t", "mooncake", block_size=4)
    block = 4 * joined
    groups = [[tuple(p[at : at + joined]) for at in range(0, len(p) // joined * joined, joined)] for p in prompts]

    def tokens(models, learn):
        found = dictionary_hits(groups, models, learn)
        return [min(count, (length - 1) // block) * block for count, length in zip(found, lengths, strict=True)]

    expected = tokens(models if per_model else [None] * len(prompts), len(prompts))
    hits = ideal_hits(trace, block, per_model=per_model)
    assert (hits.hit_tokens, hits.prompt_tokens) == (sum(expected), sum(lengths))
    assert hits.median_shared_tokens == np.median(expected)
    window = window_hits(trace, start, len(prompts) - start, block)
    assert window.from_history == tokens([None] * len(prompts), start)[start:]
    assert window.hit_rate == sum(tokens([None] * len(prompts), len(prompts))[start:]) / sum(lengths[start:])

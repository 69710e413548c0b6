"""The whole analysis on traces worked out by hand, and on a recorded one."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import SCHEMA, Trace, ideal_hits, read_trace
from inferdoc.traces.prefix_analysis import PrefixAnalysis, analyse_prefixes


def trace_of(count, block_size=None, **columns):
    columns |= {"row": list(range(1, count + 1))}
    frame = pl.DataFrame({name: columns.get(name, [None] * count) for name in SCHEMA}, schema=SCHEMA)
    return Trace(frame, "hand.jsonl", "jsonl", block_size=block_size)


def of_ids(*prompts, **columns):
    return trace_of(len(prompts), input_tokens=[len(p) for p in prompts], prompt_ids=prompts, **columns)


def of_blocks(*rows, block_size=512):
    return trace_of(
        len(rows), block_size, input_tokens=[tokens for tokens, _ in rows], prefix_blocks=[ids for _, ids in rows]
    )


def distinct(count, start):
    return list(range(start, start + count))


def by_size(analysis: PrefixAnalysis):
    return {entry.block_size: entry for entry in analysis.block_sizes}


def test_token_ids_give_every_block_size():
    """D22: 2,000 shared tokens are 125 blocks of 16, 7 of 256 and none of 2,096."""
    shared = distinct(2000, 0)
    trace = of_ids(shared + distinct(3000, 10_000), shared + distinct(3000, 20_000))
    sizes = by_size(analyse_prefixes(trace, block_sizes=[16, 256, 2096]))
    assert {size: entry.hit_tokens for size, entry in sizes.items()} == {16: 2000, 256: 1792, 2096: 0}
    assert sizes[2096].cache.points == []
    assert "2096 tokens is used twice" in sizes[2096].cache.reason


def test_each_block_size_is_what_it_is_alone():
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, 2, draw.integers(1, 200)).tolist() for _ in range(80)]
    prompts += [[*prompt[: draw.integers(1, len(prompt) + 1)], 7] for prompt in prompts]
    trace = of_ids(*prompts)
    for entry in analyse_prefixes(trace, block_sizes=[4, 6, 16]).block_sizes:
        alone = ideal_hits(trace, entry.block_size)
        assert (entry.hit_tokens, entry.hit_rate) == (alone.hit_tokens, alone.hit_rate)
        assert entry.shared_request_share == alone.shared_request_share
        assert entry.median_shared_tokens == alone.median_shared_tokens
        assert entry.hit_tokens > 0


def test_a_warning_where_the_typical_shared_prefix_is_below_a_block():
    shared = distinct(100, 0)
    prompts = [shared + distinct(500, 1000 * (n + 1)) for n in range(4)]
    (warning,) = [note for note in analyse_prefixes(of_ids(*prompts)).notes if "less than one block" in note]
    assert "one block of 128 tokens" in warning
    assert "96 tokens" in warning


def test_a_complete_hit_still_computes_its_last_block():
    """D23: 64 tokens twice, blocks of 16: 48 of 128 cached."""
    sizes = by_size(analyse_prefixes(of_ids(distinct(64, 0), distinct(64, 0))))
    assert (sizes[16].hit_tokens, sizes[16].hit_rate) == (48, 0.375)
    assert (sizes[16].block_hit_rate, sizes[16].full_block_hit_rate) == (3 / 8, 3 / 8)
    assert (sizes[64].hit_tokens, sizes[64].cache.points) == (0, [])


def test_the_share_of_blocks_with_and_without_partly_filled_ones():
    entry = analyse_prefixes(of_ids(distinct(40, 0), distinct(40, 0)), block_sizes=[16]).block_sizes[0]
    assert (entry.hit_blocks, entry.block_hit_rate, entry.full_block_hit_rate) == (2, 2 / 6, 2 / 4)


def test_the_mean_of_the_rates_stands_under_its_own_name():
    """D24, with hits that a trace can give: 0 of 100, and 9,799 of 9,900 brought by a request before."""
    long = distinct(9799, 0)
    trace = of_ids([*long, 20_000], [*long, *distinct(101, 30_000)], distinct(100, 40_000))
    entry = analyse_prefixes(trace, block_sizes=[1]).block_sizes[0]
    assert entry.hit_rate == pytest.approx(9799 / 19_800)
    assert entry.mean_request_hit_rate == pytest.approx(9799 / 9900 / 3)


def test_the_later_half_is_free_of_first_sights():
    """D25: cumulative (r - 1) / r, but steady from the second round on."""
    trace = of_ids(*[distinct(4096, 0)] * 4)
    analysis = analyse_prefixes(trace, block_sizes=[1])
    entry = analysis.block_sizes[0]
    assert entry.hit_rate == 3 * 4095 / (4 * 4096)
    assert entry.second_half_hit_rate == 4095 / 4096
    assert "later half of the requests the ideal hit rate is 100.0%, over all 75.0%" in analysis.notes[0]


def test_adapters_keep_their_prompts_apart():
    """D27: of 4 equal prompts with adapters a a b b, 2 hit."""
    analysis = analyse_prefixes(of_ids(*[distinct(65, 0)] * 4, model=["a", "a", "b", "b"]), block_sizes=[16])
    assert analysis.block_sizes[0].hit_rate == 3 * 64 / 260
    assert analysis.per_model_hit_rate == 2 * 64 / 260
    assert any("instead of 73.8%" in note for note in analysis.notes)
    assert analyse_prefixes(of_ids([1] * 20, [1] * 20, model=["a", "a"])).per_model_hit_rate is None


def test_ten_prompts_in_turn_are_no_traffic():
    """D28."""
    analysis = analyse_prefixes(of_ids(*[distinct(40, 100 * (n % 10)) for n in range(1000)]))
    assert analysis.unique_prompt_share == 0.01
    assert any(note.startswith("only 1.0% of the prompts are different") for note in analysis.notes)
    few = analyse_prefixes(of_ids(*[distinct(40, 0)] * 5))
    assert few.unique_prompt_share == 0.2
    assert not any("different" in note for note in few.notes)


def test_prompts_differ_by_full_blocks_and_by_length():
    # Two equal, one of another length, one with another block, two too short for a block of which lengths differ.
    prompts = [distinct(33, 0), distinct(33, 0), distinct(34, 0), [*distinct(16, 0), *[9] * 17], [1, 2], [1, 2, 3]]
    assert analyse_prefixes(of_ids(*prompts)).unique_prompt_share == 5 / 6


def test_finer_blocks_than_recorded_are_unknown():
    """D29: nothing is told of blocks that the recorded ones do not make."""
    analysis = analyse_prefixes(of_blocks((1025, [1, 2, 3]), (1025, [1, 2, 4])), block_sizes=[16, 48, 512, 1024])
    sizes = by_size(analysis)
    assert {size: entry.hit_tokens for size, entry in sizes.items()} == {16: None, 48: None, 512: 1024, 1024: 1024}
    for size in (16, 48):
        assert sizes[size].reason == "the trace records blocks of 512 tokens: only multiples of 512 can be told"
        assert (sizes[size].hit_rate, sizes[size].cache) == (None, None)
    assert analysis.block_size == 512
    assert [entry.block_size for entry in analyse_prefixes(of_blocks((1024, [1, 2]))).block_sizes] == [512, 1024, 2048]
    nothing = analyse_prefixes(of_blocks((1024, [1, 2])), block_sizes=[48])
    assert (nothing.reason is not None, nothing.block_size) == (True, None)


def test_no_prefix_information_is_not_zero_reuse(write):
    """D30."""
    trace = read_trace(
        write(
            "azure.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
            "2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:04.0319600,110,27\n",
        )
    )
    analysis = analyse_prefixes(trace)
    assert analysis == PrefixAnalysis(reason="the trace has no prefixes")
    assert json.loads(analysis.model_dump_json())["prompt_tokens"] is None


def test_texts_are_compared_by_bytes():
    """D20: behind a time stamp, 95% of the text is the same and nothing is shared but the words before the digits."""
    stable = "x" * 2000
    moved = [f"{stable}Q{n:02} Now: 10:00:{n:02}" for n in range(20)]
    analysis = analyse_prefixes(trace_of(20, prompt_text=moved), block_sizes=[16])
    # 4 bytes a token: 2,000 shared bytes are 31 blocks of 64 bytes.
    assert analysis.estimated
    assert analysis.block_sizes[0].hit_tokens == 19 * 31 * 16
    assert analysis.prompt_tokens == 20 * -(-len(moved[0]) // 4)
    ahead = [f"Now: 10:00:{n:02}{stable}" for n in range(20)]
    assert analyse_prefixes(trace_of(20, prompt_text=ahead)).block_sizes[0].hit_tokens == 0


def test_bytes_of_a_token_follow_from_recorded_counts():
    texts = ["ü" * 300 + "a", "ü" * 300 + "b"]
    analysis = analyse_prefixes(trace_of(2, prompt_text=texts, input_tokens=[300, 301]), block_sizes=[16])
    # 600 of 601 bytes are 300 of 301 tokens, 18 whole blocks.
    assert analysis.block_sizes[0].hit_tokens == 18 * 16
    assert any("scaled to the recorded tokens" in note for note in analysis.notes)


def test_what_all_prompts_begin_with():
    head = distinct(70, 0)
    prompts = [head + distinct(30, 1000 * n) for n in range(1, 4)]
    assert analyse_prefixes(of_ids(*prompts, [1, 2])).common_prefix_tokens == 64
    assert analyse_prefixes(of_ids(*prompts, distinct(50, 9000))).common_prefix_tokens == 0
    assert analyse_prefixes(of_ids(head)).common_prefix_tokens == 0


def test_capacities_that_are_asked_for_reach_the_curve_and_the_routes():
    prompts = [distinct(33, 0), distinct(33, 100)] * 2
    analysis = analyse_prefixes(of_ids(*prompts), block_sizes=[16], capacities_tokens=[32, 64], replicas=(1,))
    assert [(p.capacity_tokens, p.ideal_share) for p in analysis.block_sizes[0].cache.at] == [(32, 0.0), (64, 1.0)]
    assert [point.hit_rate for point in analysis.routing[0].at] == [0.0, 64 / 132]


@pytest.mark.parametrize("bad", [{"block_sizes": [0]}, {"capacities_tokens": [0]}, {"replicas": [0]}])
def test_sizes_below_one_are_errors(bad):
    with pytest.raises(ValueError, match="below 1"):
        analyse_prefixes(of_ids([1]), **bad)


def test_hashes_without_a_block_size_are_an_error():
    with pytest.raises(TraceError, match="block size"):
        analyse_prefixes(of_blocks((10, [1]), block_size=None))


def test_some_prompts_without_ids_leave_all_unknown():
    trace = trace_of(2, input_tokens=[3, 3], prompt_ids=[[1, 2, 3], None])
    assert analyse_prefixes(trace).reason == "some prompts have no token ids"


def test_the_recorded_conversations(shared):
    path = shared / "traces/mooncake/conversation_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    analysis = analyse_prefixes(read_trace(path))
    seen, hits = set(), []
    for row in rows:
        usable = row["hash_ids"][: (row["input_length"] - 1) // 512]
        hits.append(sum(id in seen for id in usable))
        seen.update(row["hash_ids"][: row["input_length"] // 512])
    total = sum(row["input_length"] for row in rows)
    first = analysis.block_sizes[0]
    assert (first.block_size, first.hit_tokens, first.hit_rate) == (512, sum(hits) * 512, sum(hits) * 512 / total)
    half = len(rows) // 2
    assert first.second_half_hit_rate == sum(hits[half:]) * 512 / sum(row["input_length"] for row in rows[half:])
    assert analysis.common_prefix_tokens == 512
    assert analysis.any_position.hit_tokens == first.hit_tokens
    assert analysis.sessions.reason == "the trace names no sessions"
    assert analysis.most_reused[0].requests == len(rows)
    rates = {(route.policy, route.replicas): route.hit_rate for route in analysis.routing}
    assert rates["round-robin", 1] == first.hit_rate
    assert rates["round-robin", 8] < rates["prefix-aware", 8] <= first.hit_rate
    assert rates["session-sticky", 2] is None
    assert analysis == PrefixAnalysis.model_validate_json(analysis.model_dump_json())

"""Token ids: seeded for lengths, repeated as recorded for hashes, and what does not fit the model."""

from __future__ import annotations

from fractions import Fraction

import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import fit_context, ideal_hits, read_trace, tokenize, with_token_ids


def mooncake(*rows):
    return [{"input_length": length, "output_length": 1, "hash_ids": ids} for length, ids in rows]


@pytest.fixture
def lengths(write):
    return read_trace(write("t.csv", "input_tokens,output_tokens\n5,1\n1000,1\n1000,1\n"))


@pytest.fixture
def hashed(jsonl):
    return read_trace(jsonl(mooncake((1100, [7, 8, 9]), (1024, [7, 8]), (520, [7, 10]))))


def test_lengths_get_ids_of_their_own_that_a_seed_repeats(lengths):
    trace = with_token_ids(lengths, vocab_size=50, seed=3)
    ids = trace.rows["prompt_ids"].to_list()
    assert [len(row) for row in ids] == [5, 1000, 1000]
    assert ids[1] != ids[2]
    assert set(ids[1]) == set(range(50))
    assert with_token_ids(lengths, vocab_size=50, seed=3).rows["prompt_ids"].to_list() == ids
    assert with_token_ids(lengths, vocab_size=50, seed=4).rows["prompt_ids"].to_list() != ids
    assert trace.content == "lengths only"
    assert trace.rows["output_ids"].null_count() == 3


def test_ids_do_not_depend_on_the_window(lengths, hashed):
    for trace in (lengths, hashed):
        whole = with_token_ids(trace, vocab_size=1000, seed=3).rows["prompt_ids"].to_list()
        part = with_token_ids(trace.window(1, 2), vocab_size=1000, seed=3).rows["prompt_ids"].to_list()
        assert part == whole[1:]


def test_reserved_ids_are_never_drawn(lengths):
    ids = with_token_ids(lengths, vocab_size=10, seed=0, reserved={0, 1, 9, 500}).rows["prompt_ids"].to_list()
    assert set(ids[1]) == set(range(2, 9))
    with pytest.raises(ValueError, match="no token ids left"):
        with_token_ids(lengths, vocab_size=2, seed=0, reserved=(0, 1))


def test_prefixes_repeat_exactly_as_recorded(hashed):
    trace = with_token_ids(hashed, vocab_size=32_000, seed=1)
    a, b, c = trace.rows["prompt_ids"].to_list()
    assert [len(a), len(b), len(c)] == [1100, 1024, 520]
    assert a[:1024] == b
    assert a[:512] == c[:512]
    assert a[512:520] != c[512:520]
    assert (trace.content, trace.notes) == ("block hashes", hashed.notes)


def test_scaled_blocks_keep_the_sharing(hashed):
    scaled = hashed.scaled(Fraction(1, 32))
    trace = with_token_ids(scaled, vocab_size=32_000, seed=1)
    a, b, c = trace.rows["prompt_ids"].to_list()
    assert [len(a), len(b), len(c)] == [35, 32, 17]
    assert a[:32] == b
    assert a[:16] == c[:16]
    assert a[16] != c[16]


def test_first_blocks_of_different_hashes_differ(jsonl):
    rows = mooncake(*((512, [n]) for n in range(2000)))
    trace = with_token_ids(read_trace(jsonl(rows)).scaled(Fraction(1, 64)), vocab_size=256, seed=0)
    assert len({tuple(ids) for ids in trace.rows["prompt_ids"].to_list()}) == 2000
    assert not any("share more than recorded" in note for note in trace.notes)


def test_blocks_too_small_to_tell_hashes_apart_are_said(jsonl):
    rows = mooncake(*((512, [n]) for n in range(2000)))
    trace = with_token_ids(read_trace(jsonl(rows)).scaled(Fraction(1, 512)), vocab_size=256, seed=0)
    assert len(set(trace.rows["prompt_ids"].explode().to_list())) == 256
    assert any("1,744 of 2,000 block hashes have the ids of another" in note for note in trace.notes)


def test_a_last_block_without_an_id_is_filled(jsonl):
    rows = [{"input_tokens": 40, "output_tokens": 1, "block_size": 16, "hash_ids": [1, 2]}] * 2
    a, b = with_token_ids(read_trace(jsonl(rows)), vocab_size=10_000, seed=0).rows["prompt_ids"].to_list()
    assert (len(a), len(b)) == (40, 40)
    assert a[:32] == b[:32]
    assert a[32:] != b[32:]


def test_recorded_ids_stay(jsonl):
    rows = [{"prompt_token_ids": [5, 6, 7], "output_tokens": 2}, {"input_tokens": 4, "output_tokens": 2}]
    ids = with_token_ids(read_trace(jsonl(rows)), vocab_size=3, seed=0).rows["prompt_ids"].to_list()
    assert ids[0] == [5, 6, 7]
    assert len(ids[1]) == 4
    assert max(ids[1]) < 3


def test_text_needs_a_tokenizer(jsonl):
    trace = read_trace(jsonl([{"prompt": "hello", "output_tokens": 5}]))
    with pytest.raises(TraceError, match="a model with a tokenizer is needed"):
        with_token_ids(trace, vocab_size=10, seed=0)


def test_tokenizing_counts_with_the_tokenizer_and_says_how_far_off_the_records_were(jsonl):
    recorded = {"prompt": "ab" * 50, "prompt_tokens": 80, "cached_tokens": 80, "completion": "abcd"}
    calls = []

    def encode(texts):
        calls.append(len(texts))
        return [[ord(c) for c in text] for text in texts]

    trace = tokenize(read_trace(jsonl([recorded] * 300)), encode)
    row = trace.rows.row(0, named=True)
    assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"]) == (100, 4, 80)
    assert row["output_ids"] == [97, 98, 99, 100]
    assert sum(calls) == 600
    assert max(calls) < 300
    assert any("+25.0% against those recorded" in note for note in trace.notes)


def test_texts_that_make_no_token_are_counted(jsonl):
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": " "}]
    trace = tokenize(read_trace(jsonl(rows)), lambda texts: [[1] * len(text.strip()) for text in texts])
    assert trace.rows["row"].to_list() == [1]
    assert (trace.left_out[0].reason, trace.left_out[0].first_line) == ("texts that make no token", 2)


def test_a_trace_without_text_is_not_touched(lengths):
    assert tokenize(lengths, lambda texts: []) is lengths


def test_requests_beyond_the_context_are_left_out_and_counted(write):
    trace = read_trace(write("t.csv", "input_tokens,output_tokens\n90,10\n90,11\n5,5\n200,1\n"))
    kept = fit_context(trace, 100)
    assert kept.rows["row"].to_list() == [2, 4]
    assert [(entry.reason, entry.rows, entry.first_line) for entry in kept.left_out] == [
        ("prompt and output beyond the context of 100 tokens", 2, 3)
    ]
    assert fit_context(trace, 201) is trace


def test_no_request_that_fits_says_what_to_do(lengths):
    with pytest.raises(TraceError, match=r"shortest needs 6.*--length-scale"):
        fit_context(lengths, 5)


def test_ideal_reuse_of_made_up_ids_equals_that_of_the_hashes(hashed):
    """The ids repeat where the hashes do: counted on the ids themselves, by a set of whole prefixes."""
    ids = with_token_ids(hashed, vocab_size=32_000, seed=1).rows["prompt_ids"].to_list()
    seen, hit = set(), 0
    for prompt in ids:
        fit = (len(prompt) - 1) // 512
        hit += 512 * max((n for n in range(fit + 1) if n == 0 or tuple(prompt[: 512 * n]) in seen), default=0)
        seen.update(tuple(prompt[: 512 * n]) for n in range(1, len(prompt) // 512 + 1))
    assert hit == 1024
    assert ideal_hits(hashed, 512).hit_tokens == hit

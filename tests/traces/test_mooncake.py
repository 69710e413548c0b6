"""Mooncake JSONL: milliseconds, 512-token blocks, 64-bit ids, one id for each block."""

from __future__ import annotations

import pytest

from inferdoc.errors import TraceError
from inferdoc.evidence import LeftOut
from inferdoc.traces import ideal_hits, read_trace


def row(timestamp=0, input_length=600, output_length=1, hash_ids=(7, 8), **more):
    fields = {"timestamp": timestamp, "input_length": input_length, "output_length": output_length}
    return fields | {"hash_ids": list(hash_ids)} | more


def test_times_are_milliseconds_and_differences_are_exact(jsonl):
    trace = read_trace(jsonl([row(t) for t in (1, 2, 9, 11)]))
    assert trace.rows["arrival_s"].to_list() == [0, 0.001, 0.008, 0.010]
    assert (trace.time_unit, trace.block_size, trace.content) == ("ms", 512, "block hashes")
    assert trace.rate_per_s == pytest.approx(3 / 0.010)


def test_a_slice_starts_at_zero_and_says_what_it_lacks(jsonl):
    trace = read_trace(jsonl([row(1178625), row(1181625)]))
    assert trace.rows["arrival_s"].to_list() == [0.0, 3.0]
    assert any("first timestamp is 1,178.625 s" in note and "lower bound" in note for note in trace.notes)


@pytest.mark.parametrize(("length", "ids"), [(600, [7]), (513, [1, 2, 3]), (512, [1, 2]), (600, [])])
def test_a_count_of_ids_that_does_not_fit_the_length(jsonl, length, ids):
    path = jsonl([row(), row(input_length=length, hash_ids=ids)])
    with pytest.raises(TraceError, match=rf"trace\.jsonl:2: hash_ids has {len(ids)} ids for input_length {length}"):
        read_trace(path)
    trace = read_trace(path, skip_bad_rows=True)
    reason = "number of hash_ids does not fit input_length"
    assert trace.left_out == (LeftOut(reason=reason, rows=1, first_line=2, places=["2"]),)


def test_a_single_row_of_another_block_size_is_an_error_not_a_guess(jsonl):
    with pytest.raises(TraceError, match="blocks of 512 tokens make 2"):
        read_trace(jsonl([row(input_length=600, hash_ids=[7])]))


def test_a_file_that_has_another_block_size_throughout(jsonl):
    rows = [row(input_length=60 + 64 * n, hash_ids=range(n + 1)) for n in range(12)]
    trace = read_trace(jsonl(rows))
    assert trace.block_size == 64
    assert any("blocks of 64 tokens" in note for note in trace.notes)


def test_ids_keep_all_64_bits(jsonl):
    ids = [2**64 - 1, 2**53 + 1]
    trace = read_trace(jsonl([row(hash_ids=ids), row(hash_ids=[2**64 - 2, 2**53])]))
    assert trace.rows["prefix_blocks"].to_list()[0] == ids
    # Through floats both first ids would be 2**64 and the rows would share a block.
    assert ideal_hits(trace, 512).hit_tokens == 0


@pytest.mark.parametrize("ids", [[-1, 2], [1.5, 2], ["1", "2"], [2**64, 2], "7,8"])
def test_ids_that_are_no_64_bit_numbers(jsonl, ids):
    rows = [row(), row() | {"hash_ids": ids}]
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: hash_ids is .*expected a list of whole numbers"):
        read_trace(jsonl(rows))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output_length", -5),
        ("output_length", "many"),
        ("input_length", 1.5),
        ("input_length", True),
        ("timestamp", "x"),
    ],
)
def test_wrong_numbers_are_named_with_line_field_and_value(jsonl, field, value):
    path = jsonl([row(), row() | {field: value}, row()])
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    text = str(value).lower()
    told = f"text of {len(text)} character" if value in ("many", "x") else f"'{text}': expected "
    assert str(raised.value).startswith(f"{path}:2: {field} is {told}")
    assert len(read_trace(path, skip_bad_rows=True)) == 2


def test_a_missing_time_among_others_is_not_zero(jsonl):
    rows = [row(1000), row(2000), row(3000)]
    del rows[1]["timestamp"]
    path = jsonl(rows)
    with pytest.raises(TraceError, match=r":2: timestamp is missing, though other rows have it"):
        read_trace(path)
    assert read_trace(path, skip_bad_rows=True).rows["arrival_s"].to_list() == [0.0, 2.0]


def test_absent_stays_absent(jsonl):
    trace = read_trace(jsonl([{"input_length": 5, "output_length": 1}] * 2))
    assert trace.duration_s is None
    assert trace.rate_per_s is None
    assert trace.block_size is None
    assert trace.content == "lengths only"
    for column in ("arrival_s", "cached_tokens", "prefix_blocks", "session", "turn", "model", "ttft_s", "prompt_ids"):
        assert trace.rows[column].null_count() == 2, column


def test_requests_without_output_tokens_failed(jsonl):
    trace = read_trace(jsonl([row(0), row(1000, output_length=0), row(2000), row(3000, output_length=0)]))
    reason = "failed requests: no tokens, or marked as failed by the source"
    assert trace.left_out == (LeftOut(reason=reason, rows=2, first_line=2, places=["2", "4"]),)
    assert trace.rows["row"].to_list() == [1, 3]
    assert trace.rows["status"].to_list() == ["ok", "ok"]


def test_only_failures_is_an_error(jsonl):
    with pytest.raises(TraceError, match="no request that can be used"):
        read_trace(jsonl([row(output_length=0)]))


def test_no_lengths_at_all(jsonl):
    path = jsonl([row() | {"input_length": None}])
    with pytest.raises(TraceError, match="rows without lengths: no row has input_length"):
        read_trace(path)
    with pytest.raises(TraceError, match="rows without lengths: no row has output_length"):
        read_trace(jsonl([row() | {"output_length": None, "hash_ids": None}]))


def test_hashes_without_any_output_length_can_be_analysed(jsonl):
    trace = read_trace(jsonl([row() | {"output_length": None}]))
    assert (trace.content, trace.has("output_tokens")) == ("block hashes", False)
    assert any("1 of 1 requests have no output" in note for note in trace.notes)


def test_rows_without_an_output_length_stay_unknown_and_are_counted_when_run(jsonl):
    trace = read_trace(jsonl([row(0), row(1000) | {"output_length": None}, row(2000)]))
    assert trace.rows["output_tokens"].to_list() == [1, None, 1]
    assert any("1 of 3 requests have no output" in note for note in trace.notes)
    runnable = trace.runnable()
    assert runnable.rows["row"].to_list() == [1, 3]
    assert (runnable.left_out[0].rows, runnable.left_out[0].first_line) == (1, 2)


def test_rows_out_of_order_are_sorted_stably(jsonl):
    rows = [row(5000), row(0), row(3000), row(0, output_length=2)]
    trace = read_trace(jsonl(rows))
    assert trace.rows["row"].to_list() == [2, 4, 3, 1]
    assert any("not in order" in note for note in trace.notes)


def test_a_clock_that_starts_again_is_a_new_segment(jsonl):
    week = [row(t * 1000) for t in range(20)]
    trace = read_trace(jsonl(week + week))
    assert trace.rows["row"].to_list() == list(range(1, 41))
    # 20 rows a second apart, then one median gap of a second, then the same again.
    assert trace.duration_s == 39.0
    assert any("clock starts again at line 21" in note for note in trace.notes)


def test_fractions_of_a_millisecond_raise_a_doubt_about_the_unit(jsonl):
    assert any("--trace-format jsonl" in note for note in read_trace(jsonl([row(0.0), row(0.0614)])).notes)


def test_sessions_get_turns(jsonl):
    rows = [row(t, session_id=s) for t, s in ((0, "a"), (1, "b"), (2, "a"), (3, "a"))]
    assert read_trace(jsonl(rows)).rows["turn"].to_list() == [1, 1, 2, 3]


def test_a_block_size_that_rows_give_counts_also_for_few_of_them(jsonl):
    trace = read_trace(jsonl([row(input_length=30, hash_ids=[1, 2], block_size=16)] * 3))
    assert (trace.block_size, len(trace)) == (16, 3)
    with pytest.raises(TraceError, match="blocks of 16 tokens make 2"):
        read_trace(jsonl([row(input_length=30, hash_ids=[1, 2, 3], block_size=16)]))
    # 512 would fit as well.
    assert read_trace(jsonl([row(input_length=600, hash_ids=[1, 2], block_size=300)])).block_size == 300
    with pytest.raises(TraceError, match="block_size has 2 values"):
        read_trace(jsonl([row(block_size=16), row(block_size=512)]))


@pytest.mark.parametrize(
    "text", [{"messages": [{"role": "user", "content": "x"}]}, {"prompt": "x"}, {"text": "x"}, {"input_text": "x"}]
)
def test_rows_with_lengths_and_text_are_read_for_their_text(jsonl, text):
    lengths = {"timestamp": 1, "input_length": 10, "output_length": 5}
    trace = read_trace(jsonl([lengths | text]))
    assert trace.format != "mooncake"
    assert (trace.content, trace.rows["input_tokens"].to_list()) == ("text", [10])
    assert trace.rows["output_tokens"].to_list() == [5]
    assert read_trace(jsonl([row() | text])).format == "mooncake"
    assert read_trace(jsonl([lengths | dict.fromkeys(text)])).format == "mooncake"

"""Views of a trace: windows, scaled lengths, one replica's share, its fingerprint and its summary."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import polars as pl
import pytest

from inferdoc.errors import TraceError
from inferdoc.traces import SCHEMA, read_trace


@pytest.fixture
def table(write):
    def read(rows, header="timestamp,input_tokens,output_tokens"):
        return read_trace(write("t.csv", header + "\n" + "".join(f"{row}\n" for row in rows)))

    return read


@pytest.fixture
def hashed(jsonl):
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 33, "hash_ids": [7, 8]},
        {"timestamp": 1000, "input_length": 1025, "output_length": 32, "hash_ids": [7, 9, 10]},
        {"timestamp": 2000, "input_length": 3, "output_length": 1, "hash_ids": [11]},
    ]
    return read_trace(jsonl(rows))


def test_every_column_is_there_with_its_type(table):
    assert table(["0,1,1"]).rows.schema == pl.Schema(SCHEMA)


def test_a_window_is_contiguous_and_starts_at_zero(table):
    trace = table([f"{t},{t + 1},1" for t in (10, 20, 40, 70)])
    part = trace.window(1, 2)
    assert part.rows["row"].to_list() == [3, 4]
    assert part.rows["arrival_s"].to_list() == [0.0, 20.0]
    assert part.rate_per_s == 1 / 20
    assert len(trace.window(2, 50)) == 2


@pytest.mark.parametrize(("start", "count"), [(-1, 2), (4, 1), (0, 0)])
def test_windows_without_requests(table, start, count):
    with pytest.raises(ValueError, match="window"):
        table(["0,1,1"] * 4).window(start, count)


def test_scaling_rounds_up_and_keeps_the_blocks(hashed):
    scaled = hashed.scaled(Fraction(1, 32))
    assert scaled.rows["input_tokens"].to_list() == [19, 33, 1]
    assert scaled.rows["output_tokens"].to_list() == [2, 1, 1]
    assert scaled.block_size == 16
    blocks = scaled.rows["prefix_blocks"].to_list()
    assert blocks == hashed.rows["prefix_blocks"].to_list()
    assert [len(ids) for ids in blocks] == [-(-n // 16) for n in (19, 33, 1)]
    assert scaled.workload().length_scale == 1 / 32
    assert hashed.scaled(Fraction(1)) is hashed


def test_scaling_twice_is_scaling_once_for_the_blocks(hashed):
    twice = hashed.scaled(Fraction(1, 2)).scaled(Fraction(1, 16))
    assert (twice.block_size, twice.length_scale) == (16, Fraction(1, 32))


def test_a_scale_that_splits_a_token_names_scales_that_work(hashed):
    for scale in (Fraction(1, 1024), Fraction(1, 3), Fraction(3, 1024)):
        with pytest.raises(TraceError, match=r"scales that work: 1/2, 1/4, 1/8, .*1/256, 1/512$"):
            hashed.scaled(scale)


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1, 2), Fraction(3, 2)])
def test_scales_out_of_range(hashed, scale):
    with pytest.raises(TraceError, match="above 0"):
        hashed.scaled(scale)


def test_lengths_scale_without_blocks_and_measured_times_become_unknown(table):
    trace = table(["0,100,10,30,1.5", "1,1,1,0,2.5"], "timestamp,input_tokens,output_tokens,cached_tokens,ttft_s")
    scaled = trace.scaled(Fraction(1, 8))
    assert scaled.rows.select("input_tokens", "output_tokens", "cached_tokens").rows() == [(13, 2, 3), (1, 1, 0)]
    assert scaled.rows["ttft_s"].to_list() == [None, None]
    assert scaled.rows["arrival_s"].to_list() == [0.0, 1.0]


def test_real_text_cannot_be_scaled(jsonl):
    with pytest.raises(TraceError, match="holds real text"):
        read_trace(jsonl([{"prompt": "hello", "output_tokens": 5}])).scaled(Fraction(1, 2))


def test_replicas_keep_whole_sessions_and_an_equal_share(table):
    rows = [f"{n},10,1,s{n % 400}" for n in range(2000)]
    trace = table(rows, "timestamp,input_tokens,output_tokens,session_id")
    part = trace.replica(4, seed=1)
    assert (part.rows["session"].value_counts()["count"] == 5).all()
    # 400 sessions with a chance of 1/4: 100 expected, standard deviation 8.7.
    assert 65 < part.rows["session"].n_unique() < 135
    assert part.rows["arrival_s"][0] == 0.0
    assert part.rows["row"].to_list() == trace.replica(4, seed=1).rows["row"].to_list()
    assert part.rows["row"].to_list() != trace.replica(4, seed=2).rows["row"].to_list()
    assert part.workload().replicas == 4


def test_replicas_share_single_requests_where_there_are_no_sessions(table):
    trace = table([f"{n},10,1" for n in range(2000)])
    # 2,000 requests with a chance of 1/4: 500 expected, standard deviation 19.4.
    assert 420 < len(trace.replica(4, seed=1)) < 580
    assert trace.replica(1, seed=1) is trace


def test_replicas_out_of_range(table):
    trace = table(["0,1,1,a"] * 3, "timestamp,input_tokens,output_tokens,session_id")
    with pytest.raises(TraceError, match="give 1 or more"):
        trace.replica(0, seed=0)
    with pytest.raises(TraceError, match="share of 3 requests is empty"):
        trace.replica(10**9, seed=0)


def test_the_fingerprint_is_that_of_the_work_not_of_the_name(write):
    text = "timestamp,input_tokens,output_tokens\n0,5,1\n1,6,2\n"
    one = read_trace(write("one.csv", text))
    assert one.fingerprint() == read_trace(write("two.csv", text)).fingerprint()
    assert one.fingerprint() != read_trace(write("one.csv", text.replace("6,2", "6,3"))).fingerprint()
    assert one.fingerprint() != one.window(0, 1).fingerprint()
    assert len(one.fingerprint()) == 64


def test_percentiles_need_their_number_of_requests(table):
    for count, known in ((5, set()), (6, {50}), (36, {50, 90}), (72, {50, 90, 95}), (368, {50, 90, 95, 99})):
        quantities = table([f"0,{n},1" for n in range(1, count + 1)]).workload().quantities
        for percent in (50, 90, 95, 99):
            quantity = quantities[f"input_tokens_p{percent}"]
            assert quantity.n == count
            assert (quantity.value is None) == (percent not in known)
            assert (quantity.reason is None) == (percent in known)


def test_the_workload_says_what_was_understood(table):
    rows = [f"{n},{10 * n},{n}" for n in range(1, 101)] + ["101,5,0"]
    workload = table(rows).workload()
    assert (workload.source, workload.format, workload.time_unit) == ("t.csv", "csv", "s")
    assert (workload.requests, workload.duration_s, workload.rate_per_s) == (100, 99.0, 1.0)
    assert [(entry.rows, entry.first_line) for entry in workload.left_out] == [(1, 102)]
    # 10, 20, ... 1000: the 50% point lies halfway between 500 and 510, the 95% point at 0.95 * 99 steps after 10.
    assert workload.quantities["input_tokens_p50"].value == 505.0
    assert workload.quantities["input_tokens_p95"].value == pytest.approx(10 + 0.95 * 99 * 10)
    assert workload.quantities["input_tokens_mean"].value == 505.0
    assert workload.quantities["output_tokens_mean"].value == 50.5
    assert workload.quantities["input_output_ratio"].value == 10.0
    assert workload.quantities["input_tokens_p99"].value is None


def test_lengths_not_yet_counted_are_unknown(jsonl):
    quantities = read_trace(jsonl([{"prompt": "hello", "completion": "you"}])).workload().quantities
    assert {quantity.value for quantity in quantities.values()} == {None}
    assert all(quantity.reason for quantity in quantities.values())


def test_the_fingerprint_is_of_the_values_that_are_there(jsonl):
    rows = [{"timestamp": n, "input_length": 600, "output_length": 2, "hash_ids": [1, n]} for n in range(3)]
    trace = read_trace(jsonl(rows))
    print_of = trace.fingerprint()
    wider = replace(trace, rows=trace.rows.with_columns(pl.lit(None, pl.Int64).alias("a column of later")))
    assert wider.fingerprint() == print_of
    in_pieces = replace(trace, rows=pl.concat([trace.rows[:1], trace.rows[1:]], rechunk=False))
    assert in_pieces.fingerprint() == print_of
    for name, value in (("timestamp", 7), ("output_length", 3), ("hash_ids", [1, 9]), ("session_id", "s")):
        changed = [*rows[:2], rows[2] | {name: value}]
        assert read_trace(jsonl(changed)).fingerprint() != print_of, name


def test_ids_moved_from_one_prompt_to_the_next_change_the_fingerprint(jsonl):
    def print_of(*ids):
        rows = [{"input_toks": 1, "output_toks": 1, "input_tok_ids": list(each)} for each in ids]
        return read_trace(jsonl(rows), trace_format="jsonl").fingerprint()

    assert print_of([1, 2], [3]) != print_of([1], [2, 3])


def test_columns_that_the_source_lacks_take_no_memory(jsonl):
    trace = read_trace(jsonl([{"timestamp": n, "input_length": 6, "output_length": 2} for n in range(50_000)]))
    known = {"row", "arrival_s", "input_tokens", "output_tokens"}
    assert trace.rows.select(known).estimated_size() == 4 * 8 * 50_000
    assert trace.rows.estimated_size() < 4 * 8 * 50_000 + 1_000
    absent = set(SCHEMA) - known - {"status"}
    assert not any(trace.has(name) for name in absent)
    assert trace.rows.estimated_size() < 4 * 8 * 50_000 + 1_000

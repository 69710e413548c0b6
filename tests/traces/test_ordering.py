"""Clocks: one, one that starts again, independent ones."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from inferdoc.traces.assembly import Draft, assemble
from inferdoc.traces.inputs import Inputs
from inferdoc.traces.ledger import Ledger


def trace_of(times, *, segments=None, independent=False, **cells):
    """A trace from arrival times in seconds."""
    count = len(times)
    draft = Draft(
        format="test",
        lines=pl.Series(range(1, count + 1)),
        cells={
            "arrival": pl.Series([None if time is None else str(time) for time in times], dtype=pl.String),
            "input_tokens": pl.Series([str(n + 1) for n in range(count)]),
            "output_tokens": pl.Series(["1"] * count),
        }
        | {role: pl.Series(values, dtype=pl.String) for role, values in cells.items()},
        units={"arrival": "s"},
        ready={} if segments is None else {"segment": pl.Series(segments, dtype=pl.Int64)},
        independent_clocks=independent,
    )
    ledger = Ledger("t", skip_bad_rows=False)
    return assemble(draft, Inputs((), "t"), ledger)


def test_a_clock_that_starts_again_is_one_log_with_segments():
    trace = trace_of([*range(20), *range(15)])
    # The second stretch begins one usual step (1 s) after the end of the first.
    assert trace.rows["arrival_s"].to_list() == [float(second) for second in range(35)]
    assert trace.rows["segment"].to_list() == [0] * 20 + [1] * 15
    assert "the clock starts again at line 21: read as a segment that follows the one before" in trace.notes
    assert (trace.duration_s, trace.independent_clocks) == (34.0, False)


def test_three_stretches_of_one_log():
    trace = trace_of([*range(10), *range(12), *range(11)])
    assert trace.rows["arrival_s"].to_list() == [float(second) for second in range(33)]
    assert trace.rows["segment"].value_counts().sort("segment")["count"].to_list() == [10, 12, 11]


def test_segments_given_by_the_format_follow_each_other_too():
    trace = trace_of([5, 7, 6, 0, 1], segments=[0, 0, 0, 1, 1])
    assert trace.rows["arrival_s"].to_list() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert trace.rows["input_tokens"].to_list() == [1, 3, 2, 4, 5]


def test_segments_whose_clock_went_on_keep_their_times():
    assert trace_of([0, 1, 8, 9], segments=[0, 0, 1, 1]).rows["arrival_s"].to_list() == [0.0, 1.0, 8.0, 9.0]


def test_independent_clocks_begin_at_zero_and_have_no_rate():
    trace = trace_of([100, 103, 102, 7, 5], segments=[0, 0, 0, 1, 1], independent=True)
    assert trace.rows["arrival_s"].to_list() == [0.0, 2.0, 3.0, 0.0, 2.0]
    assert trace.rows["segment"].to_list() == [0, 0, 0, 1, 1]
    assert trace.rows["input_tokens"].to_list() == [1, 3, 2, 5, 4]
    assert (trace.duration_s, trace.rate_per_s) == (None, None)
    assert trace.time_unit == "s"
    assert any("2 parts with clocks of their own" in note for note in trace.notes)
    assert trace.window(1, 3).rows["arrival_s"].to_list() == [0.0, 1.0, 0.0]


def test_one_segment_is_one_clock():
    trace = trace_of([1, 3], segments=[0, 0], independent=True)
    assert (trace.independent_clocks, trace.duration_s) == (False, 2.0)


def test_a_run_without_times_takes_the_times_of_the_others():
    trace = trace_of([1, 2, None, None], segments=[0, 0, 1, 1], independent=True)
    assert trace.rows["arrival_s"].null_count() == 4
    assert any("some runs have no arrival times" in note for note in trace.notes)


def test_rows_of_one_request_count_once_the_last_one():
    trace = trace_of([1, 2, 3, 4], request_id=["a", "b", "a", None])
    assert trace.rows["input_tokens"].to_list() == [2, 3, 4]
    (entry,) = trace.left_out
    assert (entry.rows, entry.places) == (1, ["1"])
    assert "written more than once" in entry.reason


def test_equal_rows_without_ids_are_said_and_kept():
    different = trace_of([1, 2, 2, 2, 3])
    assert not any("equal to another" in note for note in different.notes)
    trace = trace_of([1, 2, 2, 2, 3], input_tokens=["5", "6", "7", "7", "8"], session=["a", "b", "c", "c", "c"])
    assert "rows that are equal to another one in all that is recorded: 1;" in " ".join(trace.notes)
    assert len(trace) == 5


def test_embeddings_are_set_aside_not_called_failed():
    trace = trace_of([1, 2, 3], operation=["chat", "/v1/embeddings", "chat"])
    assert [entry.reason for entry in trace.left_out] == ["embeddings: no output tokens by their nature"]
    assert len(trace) == 2


def test_mixed_models_are_said():
    assert "requests to 2 models: a (2), b (1)" in trace_of([1, 2, 3], model=["a", "b", "a"]).notes


@pytest.mark.parametrize("start", [0, 1_700_000_000])
def test_seconds_are_exact_quotients(start):
    times = [start, *(start + n * 0.037 for n in range(1, 500))]
    texts = [f"{time:.3f}" for time in times]
    milliseconds = np.array([round(float(text) * 1000) for text in texts])
    assert trace_of(texts).rows["arrival_s"].to_list() == ((milliseconds - milliseconds[0]) * 10**6 / 1e9).tolist()


def test_rows_out_of_order_in_a_log_whose_clock_starts_again():
    times = [*range(20), *range(15)]
    times[4], times[5] = times[5], times[4]
    trace = trace_of(times)
    assert trace.rows["arrival_s"].to_list() == [float(second) for second in range(35)]
    assert trace.rows["segment"].to_list() == [0] * 20 + [1] * 15
    assert trace.rows["row"].to_list() == [1, 2, 3, 4, 6, 5, *range(7, 36)]
    assert any("(1 steps back): sorted" in note for note in trace.notes)


def test_absolute_times_do_not_start_again():
    start = 1_700_000_000
    trace = trace_of([*range(start, start + 20), *range(start, start + 15)])
    assert (trace.duration_s, trace.rows["segment"].null_count()) == (19.0, 35)
